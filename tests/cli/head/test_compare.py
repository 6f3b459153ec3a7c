"""`testbed head compare` on the command line: heads and channels by name, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.cli.main import main
from testbed.experiments.head import compare as comparison
from testbed.experiments.head.config import CompareConfig, ConstantLink

ROW = {"rate_mbps": 20.0, "rtt_ms": 50.0, "per": 0.0, "head": "blind", "points": 1.0}


def test_heads_and_channels_are_named_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given: list[CompareConfig] = []

    def compare(config: CompareConfig, *_: Any) -> dict[str, Any]:
        given.append(config)
        return {"rows": [ROW | {"value": 12.25}], "chosen": [ROW | {"threshold": 0.125, "aal": 11.5}]}

    monkeypatch.setattr(comparison, "compare", compare)
    command = ["head", "compare", "blind=b0,b1", "csi=h0", "--out", str(tmp_path / "out")]
    assert main([*command, "--channel", "20,50", "--channel", "20,50,0.1", "--losses", "1,2"]) == 0
    (config,) = given
    assert config.heads == {"blind": ["b0", "b1"], "csi": ["h0"]} and config.losses == (1.0, 2.0)
    assert config.channels == (ConstantLink(20.0, 50.0), ConstantLink(20.0, 50.0, 0.1))
    printed = capfd.readouterr().out
    assert "12.25" in printed and "11.50" in printed and "0.1250" in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bundled"], "NAME=DIR"),
        (["a=bundled", "--channel", "20"], "MBPS,RTT_MS"),
        (["a=/nowhere"], "/nowhere"),
        (["a=bundled", "--episodes", "/nowhere"], "give --out DIR"),
    ],
)
def test_what_is_no_head_or_channel_is_refused_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["head", "compare", *arguments, "--engine", "transformers", "--out", str(tmp_path / "out")]) == 2
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and said in captured.err
    assert not (tmp_path / "out").exists()


def test_options_of_decoding_are_refused_where_nothing_is_decoded(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["head", "compare", "a=bundled", "--episodes", "e", "--prompts", "7"]) == 2
    assert "--prompts has no effect with --episodes" in capfd.readouterr().err
