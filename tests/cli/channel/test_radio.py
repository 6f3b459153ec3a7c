"""`testbed channel radio`: refusals; the models themselves where Sionna is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from testbed.channel.radio.files import read_radio_file
from testbed.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "unknown scenario 'nowhere'"),
        (["umi", "--distance-m", "50", "10"], "[least, most]"),
        (["umi", "--ues", "0"], "ues"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["channel", "radio", *arguments, "--out", str(tmp_path / "a.npz")]) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1 and words in said
    assert not (tmp_path / "a.npz").exists()


def test_a_file_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.npz").write_bytes(b"mine")
    assert main(["channel", "radio", "umi", "--out", str(tmp_path / "a.npz")]) == 2
    assert "--force" in capsys.readouterr().err and (tmp_path / "a.npz").read_bytes() == b"mine"


def test_without_sionna_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "sionna"] or ["sionna"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["channel", "radio", "umi", "--out", str(tmp_path / "a.npz")]) == 2
    assert capsys.readouterr().err.strip().endswith("sionna-no-rt")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Sionna needs Python 3.11")
@pytest.mark.parametrize("scenario", ["umi", "uma", "rma", "inh", "inf"])
def test_every_scenario_is_computed(scenario: str, tmp_path: Path) -> None:
    asked = ["channel", "radio", scenario, "--ues", "3", "--seconds", "0.5", "--out", str(tmp_path / "a.npz")]
    assert main(asked) == 0
    assert read_radio_file(tmp_path / "a.npz").uplink_db.shape == (3, 100)
