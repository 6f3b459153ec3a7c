"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from testbed.config import RunConfig, load
from testbed.errors import BadInput, ConfigError, TestbedError
from testbed.files import MOST_BYTES, file_bytes, held, json_object, json_values, whole_file, yaml_values
from testbed.unpacked import parquet
from testbed.unpacked.parquet import parquet_table
from tests.support.refusals import refuse


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '[{"b": {"x": 1, "a": 0, "a": 0}}]'])
def test_a_key_that_is_there_twice_is_refused(text: str, tmp_path: Path) -> None:
    """The last one won."""
    with pytest.raises(ValueError, match="the key 'a' is there twice"):
        json_values(text)
    path = tmp_path / "config.json"
    path.write_text(text)
    refuse(lambda: json_object(path), BadInput, "config.json", "'a' is there twice")
    assert json_values('[{"a": 1, "b": 2}, {"a": 3}]') == [{"a": 1, "b": 2}, {"a": 3}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r'{"a": ["\ud800"]}', "surrogates not allowed"),
        (r'{"\udfff": 1}', "surrogates"),
        ("[" + "9" * 400 + "]", "an integer of 400 digits"),
    ],
)
def test_what_is_no_text_or_no_number_anywhere_is_refused(text: str, said: str) -> None:
    """Both were tracebacks further on."""
    for content in (text, text.encode()):
        with pytest.raises(ValueError, match=said):
            json_values(content)
    with pytest.raises(ValueError, match="can't decode"):
        json_values(b'{"a": "\xed\xa0\x80"}')


def test_escaped_text_and_large_integers_are_read() -> None:
    assert json_values(r'["\ud83d\ude00", "\u00e9", 18446744073709551615, -9223372036854775808]') == [
        "\U0001f600",
        "é",
        2**64 - 1,
        -(2**63),
    ]
    assert json_values('{"model_max_length": 1000000000000000019884624838656}') == {"model_max_length": int(1e30)}


def test_a_file_takes_the_place_of_the_old_one_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with whole_file(path) as part:
        part.write_text("new")
        assert path.read_text() == "old" and part.parent == tmp_path
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("device", "not a regular file"),
        ("pipe", "not a regular file"),
        ("sparse", "larger than"),
        ("none", "No such file"),
    ],
)
def test_what_never_ends_is_not_read(name: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "device").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(OSError, match=reason):
        file_bytes(tmp_path / name)
    (tmp_path / "file").write_bytes(b"whole")
    assert file_bytes(tmp_path / "file") == b"whole"


BOMB = "".join(f"l{i}: &l{i} [{','.join([f'*l{i - 1}' if i else 'x'] * 9)}]\n" for i in range(9))
MERGED = "l0: &l0 {x: 1}\n" + "".join(
    f"l{i}: &l{i} {{<<: [{','.join([f'*l{i - 1}'] * 9)}], k{i}: 1}}\n" for i in range(1, 12)
)
"""Each mapping is merged nine times into the next."""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MERGED, "more than 1000000 values"),
        (BOMB, "more than 1000000 values"),
        ("a: &a [*a]", "more than 1000000 values"),
        ("a: " + "[" * 100_000 + "]" * 100_000, "nested more than 100 deep"),
        ("- " * 100_000, "nested more than 100 deep"),
        ("a: 2001-99-99", "not YAML"),
        ("a: " + "9" * 5000, "not YAML"),
        ("a: *b", "not YAML"),
        ("a: 1\nb: 2\na: 3", "the key 'a' is there twice"),
        ("- {x: [1, {y: 1, z: 2, y: 3}]}", "the key 'y' is there twice"),
    ],
)
def test_yaml_that_cannot_be_used_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        yaml_values(text.encode())


def test_values_in_yaml() -> None:
    assert yaml_values(b"a: &x [1, 2.5]\nb: [*x, *x]") == {"a": [1, 2.5], "b": [[1, 2.5], [1, 2.5]]}
    assert yaml_values(b"[{a: a, b: [a, a]}, {a: {a: a}}]") == [{"a": "a", "b": ["a", "a"]}, {"a": {"a": "a"}}]
    assert yaml_values(b"a: &a {x: 1}\nb: {<<: *a, y: 2}") == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}


FULL = os.strerror(errno.ENOSPC)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, FULL), FULL),
        (OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28]"), FULL),
        (OSError("something else"), "something else"),
    ],
)
def test_a_full_disk_is_one_line_and_leaves_the_old_one(error: OSError, said: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write() -> None:
        with whole_file(path) as part:
            part.write_text("half of it")
            raise error

    refuse(write, TestbedError, f"cannot write {path}: {said}")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_other_errors_are_not_the_disk_s(tmp_path: Path) -> None:
    def write() -> None:
        with whole_file(tmp_path / "file") as part:
            part.write_text("half of it")
            raise ValueError("mine")

    refuse(write, ValueError, "mine")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_held_by_one_process_and_free_again_when_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    code = """import sys, pathlib
from testbed.files import held
with held(pathlib.Path(sys.argv[1]), "taken"):
    print("held", flush=True)
    input()
"""
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(BadInput, match=r"^taken$"), held(folder, "taken"):
            pass
        other.kill()
    with held(folder, "taken"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot create"), held(tmp_path / "file", "taken"):
        pass


def test_a_configuration_without_end_is_refused() -> None:
    for pipes, reason in ((False, "not a regular file"), (True, "more than 67108864 bytes")):
        with pytest.raises(ConfigError, match=reason):
            load(RunConfig, Path("/dev/zero"), pipes)


def test_a_parquet_file_unpacks_to_no_more_than_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "MOST_UNPACKED_BYTES", 2**20)
    path = tmp_path / "rounds.parquet"

    def written(column: Any) -> None:
        pq.write_table(pa.table({"method": ["fh"] * 2000, "x": column}), path, compression="zstd")

    def read(*names: str) -> Any:
        return parquet_table(path, names.__contains__, 2000)

    repeated = pa.DictionaryArray.from_arrays(np.zeros(2000, np.int32), ["a" * 1000])
    numbers = pa.array([[0] * 200] * 2000)
    for column in (repeated.cast(pa.string()), ["a" * 1000] * 2000, numbers):
        written(column)
        assert path.stat().st_size < 20_000
        refuse(lambda: read("method", "x"), BadInput, "unpacks to more than 1048576 bytes")
        assert read("method").to_pydict() == {"method": ["fh"] * 2000}
    for column in (repeated, repeated.cast(pa.large_string()), pa.array([["a" * 1000]] * 2000)):
        written(column)
        refuse(lambda: read("x"), BadInput, "text or bytes in another form")
    refuse(lambda: parquet_table(path, str, 1999), BadInput, "has 2000 rows; at most 1999")
    written([str(i % 7) for i in range(2000)])
    assert read("x")["x"].to_pylist() == [str(i % 7) for i in range(2000)]
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        read("x")
    with pytest.raises(FileNotFoundError):
        parquet_table(tmp_path / "none", str, 1)


def test_a_device_or_pipe_is_not_replaced(tmp_path: Path) -> None:
    """As root, an output /dev/null replaced the device by a file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    for name in ("pipe", "link"):
        with pytest.raises(BadInput, match="not a regular file"), whole_file(tmp_path / name) as part:
            part.write_text("x")
        assert (tmp_path / name).is_fifo() or (tmp_path / name).is_char_device()
    assert len(list(tmp_path.iterdir())) == 2
