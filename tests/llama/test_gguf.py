"""Hostile GGUF files: refused in one line, or else borne by llama.cpp, which is native code. gguf-py is the oracle.

`make fuzz` tries more of them: TESTBED_FUZZ says how many.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import ModelError
from testbed.llama.gguf import BLOCKS, read_header
from testbed.llama.gguf_rules import check_gguf
from testbed.models.bundle import bundled
from tests.support.ggufs import write_gemma3, write_mamba
from tests.support.refusals import refuse

FILES = int(os.environ.get("TESTBED_FUZZ", "3000")) // 10
NUMBERS = (0, 1, 2, 3, 31, 33, 63, 64, 255, 256, 257, 511, 512, 513, 4095, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1,
           2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip
REALS = (0.0, -0.0, -1.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "llama", "gpt2", "bert", "none", "yarn", "linear", "\0", "x" * 100, "ü")


@pytest.fixture(scope="module")
def good() -> bytes:
    return bundled().require("drafter").read_bytes()


@pytest.fixture(scope="module")
def header_bytes(good: bytes) -> int:
    return int(gguf.GGUFReader(bundled().require("drafter")).data_offset)


def patched(good: bytes, header_bytes: int, rng: random.Random) -> bytes:
    """The file with one to three bytes or words of its header changed."""
    changed = bytearray(good)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(4, header_bytes - 8)
        kind = rng.randrange(5)
        if kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS) % 2**32)
        elif kind == 2:
            changed[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS))
        elif kind == 3:
            changed[at : at + 4] = struct.pack("<f", rng.choice(REALS))
        else:
            changed[at : at + 3] = rng.randbytes(3)
    return bytes(changed)


# ---------------------------------------------------------------- the header, against gguf-py's reading of it


def test_blocks_are_those_of_ggml() -> None:
    known = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}
    for kind, sizes in BLOCKS.items():
        assert known[kind] == sizes, GGMLQuantizationType(kind)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_a_header_says_what_the_file_holds(name: str, random_ggufs: dict[str, Path]) -> None:
    path = random_ggufs[name]
    header, reader = check_gguf(path), gguf.GGUFReader(path)
    fields = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    assert header.scalars == {k: v for k, v in fields.items() if not isinstance(v, list)}
    assert list(header.tensors) == [t.name for t in reader.tensors]
    for tensor in reader.tensors:
        mine = header.tensors[tensor.name]
        assert mine.shape == tuple(tensor.shape.tolist()) and mine.size_bytes == tensor.n_bytes
        assert mine.offset == tensor.data_offset - reader.data_offset


def test_arrays_quantised_tensors_and_tokenizers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    rows, width = 40, 64
    write(path, rows, width, tokens=rows)
    header = check_gguf(path)
    assert header.arrays["tokenizer.ggml.tokens"].length == rows
    assert header.arrays["tokenizer.ggml.token_type"].values == (1,) * rows
    assert header.tensors["token_embd.weight"].size_bytes == rows * width // 32 * 34
    refuse(lambda: check_gguf(write(path, rows, width, tokens=rows - 1)), ModelError, "39 tokens", "40 rows")
    refuse(lambda: check_gguf(write(path, rows, width, tokens=rows, scores=3)), ModelError, "scores of 3 tokens")


def write(path: Path, rows: int, width: int, tokens: int, scores: int | None = None) -> Path:
    """A file that holds a tokenizer and an embedding at 8 bits, and no layers."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(tokens)])
    writer.add_token_types([1] * tokens)
    writer.add_token_scores([0.5] * (tokens if scores is None else scores))
    data = gguf.quantize(np.ones((rows, width), np.float32), GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", data, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# ---------------------------------------------------------------- what it may say


def changes(values: dict[str, Any]) -> Iterator[tuple[str, Any, str]]:
    yield "general.architecture", "falcon", "unknown model architecture 'falcon'; known: llama"
    yield "llama.block_count", 0, "llama.block_count of 0"
    yield "llama.block_count", 513, "1 to 512"
    yield "llama.embedding_length", 2**20, "llama.embedding_length"
    yield "llama.attention.head_count", 0, "head_count of 0"
    yield "llama.attention.head_count", 2**31, "head_count"
    yield "llama.attention.head_count_kv", 2, "3 heads over 2"
    yield "llama.attention.layer_norm_rms_epsilon", float("nan"), "epsilon"
    yield "llama.attention.layer_norm_rms_epsilon", -1.0, "epsilon"
    yield "llama.rope.freq_base", float("inf"), "freq_base"
    yield "llama.rope.dimension_count", 34, "rope.dimension_count of 34 in heads of 32"
    yield "llama.rope.dimension_count", 7, "rope.dimension_count of 7"
    yield "llama.vocab_size", 871, "vocab_size of 871"
    yield "tokenizer.ggml.model", "bert", "tokenizer 'bert'"
    yield "tokenizer.ggml.bos_token_id", 870, "there are 870 tokens"
    yield "general.alignment", 33, "general.alignment of 33"
    yield "split.count", 3, "several files"
    yield "llama.rope.scaling.type", "sideways", "rope scaling 'sideways'"
    yield "llama.expert_used_count", 2, "2 of 0 experts are used"
    yield "llama.expert_count", 4, "0 of 4 experts are used"
    for name in ("block_count", "context_length", "embedding_length", "attention.head_count"):
        yield f"llama.{name}", None, f"llama.{name}"
        yield f"llama.{name}", "three", f"llama.{name}"
        yield f"llama.{name}", [1, 2], f"llama.{name}"


def test_entries_that_cannot_be_are_refused_in_one_line(tmp_path: Path) -> None:
    source, path = bundled().require("drafter"), tmp_path / "m.gguf"
    reader = gguf.GGUFReader(source)
    values = {k: (f.contents(), f.types[0]) for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    tensors = [t for t in reader.tensors if t.name == "token_embd.weight"]

    def rewritten(key: str, value: Any) -> Path:
        names = {"general.architecture": "falcon"} if key == "general.architecture" else {}
        writer = gguf.GGUFWriter(path, names.get("general.architecture", "llama"))
        for name, (content, kind) in (values | {key: (value, kind_of(value))}).items():
            if name != "general.architecture" and content is not None:
                writer.add_key_value(name, content, kind, sub_type=gguf.GGUFValueType.UINT32)
        for tensor in tensors:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    check_gguf(rewritten("general.name", "unharmed"))
    for key, value, words in changes(values):
        refuse(lambda key=key, value=value: check_gguf(rewritten(key, value)), ModelError, words, str(path))


def test_norms_are_of_32_bit_numbers(good: bytes, tmp_path: Path) -> None:
    """One that is said to be quantised passes llama.cpp's own checks, and ends the process at the first token."""
    at = good.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    assert struct.unpack_from("<I", good, at) == (GGMLQuantizationType.F32,)
    path = tmp_path / "m.gguf"
    path.write_bytes(good[:at] + struct.pack("<I", GGMLQuantizationType.Q4_0) + good[at + 4 :])
    refuse(lambda: check_gguf(path), ModelError, "'output_norm.weight'", "32-bit numbers")


def kind_of(value: Any) -> Any:
    kinds = {str: gguf.GGUFValueType.STRING, float: gguf.GGUFValueType.FLOAT32, list: gguf.GGUFValueType.ARRAY}
    return kinds.get(type(value), gguf.GGUFValueType.UINT32)


def records(*tensors: tuple[bytes, tuple[int, ...], int, int], data: int = 64) -> bytes:
    """A file with tensors only."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 0)
    for name, shape, kind, offset in tensors:
        out += struct.pack("<Q", len(name)) + name + struct.pack("<I", len(shape))
        out += struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, offset)
    return out + bytes(-len(out) % 32 + data)


def entry(value: bytes) -> bytes:
    """A file of one metadata entry, given its type and value."""
    return b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + value + bytes(64)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (records((b"t", (16,), 0, 32)), "not within the file bounds"),
        (records((b"t", (16,), 0, 2**63)), "not within the file bounds"),
        (records((b"t", (2**62, 4), 0, 0)), "not within the file bounds"),
        (records((b"t", (2**63, 2**63, 2**63, 2**63), 0, 0)), "not within the file bounds"),
        (records((b"t", (16,), 0, 31)), "no multiple of 32"),
        (records((b"t", (16, 0), 0, 0)), "shape (16, 0)"),
        (records((b"t", (16,), 8, 0)), "multiple of 32"),
        (records((b"t", (16,), 99, 0)), "unknown type 99"),
        (records((b"t", (), 0, 0)), "0 dimensions"),
        (records((b"t", (1, 1, 1, 1, 1), 0, 0)), "5 dimensions"),
        (records((b"t", (2**32 - 1,) * 200, 0, 0)), "200 dimensions"),
        (records((b"t", (1,), 0, 0), (b"t", (1,), 0, 0)), "twice"),
        (records((b"x" * 64, (1,), 0, 0)), "64 bytes; at most 63"),
        (records((b"a\0b", (1,), 0, 0)), "zero byte"),
        (records((b"\xff", (1,), 0, 0)), "utf-8"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**17, 0) + bytes(2**18), "131072 tensors; at most"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**15) + bytes(2**18), "32768 metadata entries; at most"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0) + bytes(2**10), "ends within its header"),
        (entry(struct.pack("<IIQ", 9, 9, 1)), "type 9"),
        (entry(struct.pack("<IIQ", 9, 4, 2**62)), "ends within"),
        (entry(struct.pack("<IIQ", 9, 8, 2**62)), "strings; at most"),
        (entry(struct.pack("<IIQ", 9, 8, 2**20)), "ends within"),
        (entry(struct.pack("<IQ", 8, 2**64 - 1)), "ends within"),
    ],
)  # fmt: skip
def test_headers_that_lie_about_the_file(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    refuse(lambda: read_header(path), ModelError, words, str(path))


def test_what_the_bounds_let_through_is_only_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(records((b"a", (16,), 0, 0), (b"b", (8,), 0, 32), data=64))
    assert {n: t.size_bytes for n, t in read_header(path).tensors.items()} == {"a": 64, "b": 32}


@given(seed=st.integers(0, 2**32), cut=st.none() | st.integers(0, 4000))
@settings(max_examples=300)
def test_whatever_is_changed_is_read_or_refused(
    seed: int, cut: int | None, good: bytes, header_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No other exception, no message of more than a line."""
    path = tmp_path_factory.getbasetemp() / "hostile.gguf"
    path.write_bytes(patched(good, header_bytes, random.Random(seed))[: None if cut is None else cut])
    said = ""
    try:
        check_gguf(path)
    except ModelError as exc:
        said = str(exc)
    assert "\n" not in said and len(said) < 600


# ---------------------------------------------------------------- llama.cpp

LOAD = """
import pathlib, sys
from testbed.errors import TestbedError
from testbed.ue.llama.drafter import LlamaDrafter
loaded = refused = 0
for name in sys.stdin.read().split():
    print(name, file=sys.stderr, flush=True)
    try:
        drafter = LlamaDrafter(pathlib.Path(name), threads=1, sequences=1, context=None)
        sequence = drafter.open([1, 2, 3])
        sequence.draft_one()
        drafter.close()
        loaded += 1
    except TestbedError:
        refused += 1
print(loaded, refused)
"""


def load_all(paths: list[Path]) -> tuple[int, int]:
    """How many of the files llama.cpp loads and drafts with, and how many are refused, in a process of its own."""
    names = "\n".join(map(str, paths))
    done = subprocess.run(
        [sys.executable, "-c", LOAD], input=names, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, f"ended by {done.returncode} over {done.stderr.splitlines()[-1:]}"
    loaded, refused = map(int, done.stdout.split())
    return loaded, refused


@pytest.mark.fuzz
def test_what_passes_the_check_does_not_end_llama_cpp(good: bytes, header_bytes: int, tmp_path: Path) -> None:
    """Files with changed headers that pass the check are loaded, and draft a token."""
    passed: list[Path] = []
    loaded = refused = 0
    for seed in range(FILES):
        path = tmp_path / f"{seed}.gguf"
        path.write_bytes(patched(good, header_bytes, random.Random(f"gguf/{seed}")))
        try:
            check_gguf(path)
            passed.append(path)
        except ModelError:
            refused += 1
            path.unlink()
        if len(passed) == 100 or (passed and seed == FILES - 1):
            loaded += load_all(passed)[0]
            for one in passed:
                one.unlink()
            passed = []
    given = FILES - refused
    print(f"\n{FILES} hostile GGUF files: {refused} refused by the check; llama.cpp was given {given}, loaded {loaded}")
    assert refused > FILES / 4 and loaded > 0


def test_the_roots_of_other_families_pass(tmp_path: Path) -> None:
    for number, make in enumerate((write_mamba, write_gemma3)):
        check_gguf(make(tmp_path / f"{number}.gguf"))


def test_a_file_larger_than_the_address_space_is_refused(
    good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    (tmp_path / "x.gguf").write_bytes(good)
    monkeypatch.setattr("testbed.llama.gguf.mmap.mmap", full)
    refuse(lambda: read_header(tmp_path / "x.gguf"), ModelError, "x.gguf cannot be read: Cannot allocate memory")
