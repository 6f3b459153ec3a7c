"""Memory of a UE's process, measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.cli.main import main
from testbed.errors import ModelError
from testbed.experiments.runs.ue_memory import measure
from testbed.llama.context import LlamaOptions
from testbed.llama.memory import expected
from testbed.models.random_gguf import DecoderShape, write_random

LARGE = DecoderShape("llama", 4, 1024, 16, 8, 64, 4096, 32000)
"""100 million parameters: beside its weights the rest of a process is small."""


def test_a_process_takes_what_its_drafters_header_foretells(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    write_random(path, LARGE, "q8_0", seed=3)
    options = LlamaOptions(context=1024, sequences=2, gpu_layers=0, threads=1)
    parts, found = expected(path, options), measure(path, options)
    grown = found.peak_bytes - found.base_bytes
    assert parts.weights_bytes > 100e6
    assert parts.weights_bytes + parts.kv_bytes <= grown <= 1.1 * parts.total_bytes


def test_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ue", "memory", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["expected_bytes"] == sum(told[f"{part}_bytes"] for part in ("weights", "copied", "kv", "compute"))
    assert told["base_bytes"] < told["peak_bytes"] < told["base_bytes"] + 1.5 * told["expected_bytes"]
    assert main(["ue", "memory", "--no-measure"]) == 0
    assert "process not counted" in capsys.readouterr().out


def test_a_drafter_that_cannot_be_loaded_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cut.gguf"
    write_random(path, LARGE._replace(layers=1, rows=64, hidden=64, heads=2, groups=1, head_size=32, ffn=64))
    with pytest.raises(ModelError, match="context"):
        measure(path, LlamaOptions(context=10**6, gpu_layers=0))
    path.write_bytes(path.read_bytes()[:1000])
    for arguments in ([], ["--no-measure"]):
        assert main(["ue", "memory", "--drafter", str(path), *arguments]) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
