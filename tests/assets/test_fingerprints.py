"""Fingerprints: the same for the same weights, another for any byte that is read, instant for large files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from testbed.assets import fingerprints
from testbed.assets.fingerprints import directory_stamp, model_fingerprint
from testbed.errors import BadInput
from tests.support.refusals import refuse


def model(directory: Path, config: bytes = b"{}", **shards: bytes) -> Path:
    directory.mkdir()
    (directory / "config.json").write_bytes(config)
    for name, data in shards.items():
        (directory / f"{name}.safetensors").write_bytes(data)
    files = {name: f"{name}.safetensors" for name in shards}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return directory


def test_a_file_is_named_by_its_bytes_and_not_by_its_name(tmp_path: Path) -> None:
    first, copy, other = (tmp_path / f"{name}.gguf" for name in "abc")
    first.write_bytes(b"weights")
    shutil.copy(first, copy)
    other.write_bytes(b"weighty")
    assert model_fingerprint(first) == model_fingerprint(copy) != model_fingerprint(other)
    assert len(model_fingerprint(first)) == 16
    int(model_fingerprint(first), 16)


def test_a_directory_is_named_by_its_configuration_and_weights(tmp_path: Path) -> None:
    made = [
        model(tmp_path / "a", one=b"x", two=b"y"),
        model(tmp_path / "b", one=b"x", two=b"z"),
        model(tmp_path / "c", b"{ }", one=b"x", two=b"y"),
        model(tmp_path / "d", one=b"xy", two=b""),
        model(tmp_path / "e", one=b"", two=b"xy"),
    ]
    assert len({model_fingerprint(m) for m in made}) == 5
    (made[0] / "tokenizer.json").write_text("{}")
    again = model(tmp_path / "f", one=b"x", two=b"y")
    assert model_fingerprint(made[0]) == model_fingerprint(again)
    (made[0] / "consolidated.safetensors").write_bytes(b"in no engine's way")
    assert model_fingerprint(made[0]) == model_fingerprint(again), "the files that are loaded, and no others"


def test_of_a_large_file_both_ends_blocks_and_size_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "SMALL_BYTES", 1000)
    monkeypatch.setattr(fingerprints, "END_BYTES", 100)
    monkeypatch.setattr(fingerprints, "BLOCK_BYTES", 10)
    data = bytes(17_000)

    def named(changed: bytes) -> str:
        path = tmp_path / "model.gguf"
        path.write_bytes(changed)
        return model_fingerprint(path)

    whole = named(data)
    for start in (0, 99, 1000, 8009, 16_009, 16_900, 16_999):
        assert named(data[:start] + b"\1" + data[start + 1 :]) != whole
    assert named(data + b"\0") != whole
    assert named(data[:500] + b"\1" + data[501:]) == whole  # lies between what is read


def test_large_files_are_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    with path.open("wb") as stream:
        stream.truncate(2**36)  # sparse: 64 GiB that are not there
    assert model_fingerprint(path)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    refuse(lambda: model_fingerprint(tmp_path / "none.gguf"), BadInput, "none.gguf", "No such file")
    refuse(lambda: model_fingerprint(tmp_path), BadInput, "no model.safetensors")
    (tmp_path / "model.safetensors").write_bytes(b"x")
    refuse(lambda: model_fingerprint(tmp_path), BadInput, "config.json")


def test_a_directory_is_read_once_and_only_if_it_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep of somebody else's may name any directory as its predictor, for each of its points."""
    (tmp_path / "head.json").write_text("{}")
    (tmp_path / "head.safetensors").write_bytes(bytes(100))
    stamp, read, read_bytes = directory_stamp(tmp_path), list[Path](), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path), read_bytes(path))[1])
    assert directory_stamp(tmp_path) == stamp and not read
    (tmp_path / "head.json").write_text("{ }")
    assert directory_stamp(tmp_path) != stamp and len(read) == 2
    monkeypatch.setattr(fingerprints, "MOST_BYTES", 102)
    refuse(lambda: directory_stamp(tmp_path), BadInput, "no head or predictor")
