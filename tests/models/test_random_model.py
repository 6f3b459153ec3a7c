"""`testbed models random`: requested sizes, reproducible, usable by a BS, outputs never end early."""

from __future__ import annotations

import json
import math
import resource
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from testbed.bs.engines.model_files import check_files
from testbed.bs.engines.target import describe
from testbed.cli.main import main
from testbed.decision_head.episodes import EpisodeStore
from testbed.errors import TestbedError
from testbed.models.bundle import bundled
from testbed.protocols.vocabulary import fingerprint
from tests.support.mismatches import some_meta, some_mismatches

TINY = ["--hidden", "64", "--layers", "2", "--ffn", "96", "--heads", "2", "--positions", "128"]


def make(out: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["models", "random", "--out", str(out), *TINY, *options, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def weights(directory: Path) -> dict[str, list[int]]:
    """Shapes of the file's tensors by name."""
    with safe_open(str(directory / "model.safetensors"), "numpy") as file:
        return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


@pytest.mark.parametrize("kind", ["llama", "qwen3", "qwen3-moe"])
def test_a_model_of_every_kind(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model"
    document = make(out, capsys, "--kind", kind, "--experts", "4", "--active", "2")
    shapes = weights(out)
    assert document == {"directory": str(out), "parameters": sum(math.prod(shape) for shape in shapes.values())}
    assert fingerprint(out) == fingerprint(bundled().require("tokenizer"))
    target = describe(str(out))
    assert (target.end_ids, target.max_positions) == ((), 128)
    files = check_files(out, dtype="float32", vocab_size=target.vocab_size, max_model_len=None)
    assert files.architecture.lower().startswith(kind.replace("-", "")) and files.head_size == 32
    assert any("expert" in name for name in shapes) == (kind == "qwen3-moe")
    rows = shapes["lm_head.weight"][0]
    assert rows % 64 == 0 and rows >= target.vocab_size


def test_the_seed_makes_the_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        make(tmp_path / name, capsys, "--seed", seed)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--heads", "3"], "a multiple of 32, not"),
        (["--hidden", "48"], "a multiple of 32, not"),
        (["--layers", "0"], "layers must be at least 1"),
        (["--kind", "qwen3-moe", "--experts", "2", "--active", "3"], "3 of 2 experts"),
        (["--kind", "mamba"], "mamba"),
    ],
)
def test_invalid_sizes_are_refused(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "random", "--out", str(tmp_path / "m"), *TINY, *options]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_a_directory_with_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").touch()
    assert main(["models", "random", "--out", str(tmp_path), *TINY]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_disk_without_room_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """safetensors raises an error of its own."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        status = main(["models", "random", "--out", str(tmp_path / "model"), *TINY])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = capsys.readouterr().err.splitlines()[-1]  # after transformers' progress
    assert status == 1 and said.startswith("testbed: cannot write ")
    with pytest.raises(TestbedError, match=r"cannot write .*\.safetensors: "):
        labelled_without_room(tmp_path / "episodes", limits)


def labelled_without_room(out: Path, limits: tuple[int, int]) -> None:
    found, _, _ = some_mismatches(400, 0)
    store = EpisodeStore(out)
    store.create(some_meta())
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        store.write(0, found)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
