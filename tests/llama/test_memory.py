"""Memory of a drafter, computed from its header, against llama.cpp's reported allocations."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from testbed.errors import ConfigError, ModelError
from testbed.llama.context import LlamaOptions
from testbed.llama.memory import expected
from testbed.models.bundle import bundled
from testbed.models.random_gguf import KINDS, SHAPES, DecoderShape, write_random
from tests.support.ggufs import write_mamba

NEARLY = 0.02 * 2**20
"""Tolerance for the two digits of llama.cpp's sizes, and for alignment."""
SIZES = re.compile(r"(Mapped model|REPACK model|KV|compute) buffer size = +([0-9.]+) MiB")
LOADS = """
import ctypes, json, sys
from pathlib import Path
from llama_cpp import llama_cpp
from testbed.llama import context, library

said = {}
now = []
keep = llama_cpp.llama_log_callback(lambda level, text, _: now.append(text.decode(errors="replace")))
library._log_callback = lambda: keep
for path, options in json.loads(sys.argv[1]):
    now.clear()
    context.LlamaContext(Path(path), context.LlamaOptions(**options)).close()
    said[path] = "".join(now)
print(json.dumps(said))
"""
SMALL = {
    "qwen2": DecoderShape("qwen2", 3, 224, 7, 1, 32, 640, 2048),
    "qwen3": DecoderShape("qwen3", 2, 256, 4, 2, 96, 512, 2048),
    "llama": DecoderShape("llama", 4, 256, 8, 8, 32, 1024, 2048),
}
"""Shapes with the drafters' proportions, including heads that do not divide the embedding."""


def llama_says(cases: dict[Path, LlamaOptions]) -> dict[Path, dict[str, float]]:
    """Sizes in bytes of llama.cpp's buffers, by name; read from its log in a separate process."""
    given = json.dumps([(str(path), asdict(options)) for path, options in cases.items()])
    done = subprocess.run([sys.executable, "-c", LOADS, given], capture_output=True, text=True, timeout=120, check=True)
    said = {}
    for path, log in json.loads(done.stdout).items():
        sizes: dict[str, float] = {}
        for name, mib in SIZES.findall(log):
            sizes[name] = sizes.get(name, 0.0) + float(mib) * 2**20
        said[Path(path)] = sizes
    return said


def test_sizes_are_what_llama_cpp_allocates(tmp_path: Path) -> None:
    cases = {bundled().require("drafter"): LlamaOptions(context=700, sequences=3, gpu_layers=0)}
    for number, (name, shape) in enumerate(SMALL.items()):
        for dtype in KINDS:
            if shape.hidden % 32 == 0:
                path = tmp_path / f"{name}-{dtype}.gguf"
                write_random(path, shape, dtype, seed=number)
                cases[path] = LlamaOptions(context=1024 * (1 + number), sequences=1 + number, gpu_layers=0)
    said = llama_says(cases)
    for path, options in cases.items():
        parts, told = expected(path, options), said[path]
        # Copies depend on the processor's instructions; what is copied need not stay mapped at the file's end.
        copied, mapped = told.get("REPACK model", 0.0), told["Mapped model"]
        assert copied == pytest.approx(parts.copied_bytes if copied else 0, abs=NEARLY), path.name
        assert parts.weights_bytes - copied - NEARLY <= mapped <= parts.weights_bytes + NEARLY, path.name
        assert (parts.copied_bytes > 0) is ("q4_0" in path.name)
        assert parts.kv_bytes == pytest.approx(told["KV"], abs=0.01 * 2**20), path.name
        # An upper bound, and not a loose one where attention to a long context is what counts.
        assert 0.95 * told["compute"] <= parts.compute_bytes <= 2 * told["compute"], (path.name, told, parts)


def test_a_cache_of_higher_precision_is_twice_as_large() -> None:
    path = bundled().require("drafter")
    half, full = (expected(path, LlamaOptions(kv_type=kind)) for kind in ("f16", "f32"))
    assert full.kv_bytes == 2 * half.kv_bytes
    assert half.weights_bytes == full.weights_bytes
    assert half.total_bytes == half.weights_bytes + half.copied_bytes + half.kv_bytes + half.compute_bytes


def test_published_shapes_have_published_sizes(tmp_path: Path) -> None:
    """Parameters as the model cards count them: 0.49 and 0.6 billion, 1.23, 1.54, 1.7."""
    billions = {"qwen2.5-0.5b": 0.49, "qwen3-0.6b": 0.6, "llama-3.2-1b": 1.23, "qwen2.5-1.5b": 1.54, "qwen3-1.7b": 1.7}
    for name, shape in SHAPES.items():
        attention = shape.hidden * shape.head_size * 2 * (shape.heads + shape.groups)
        weights = shape.rows * shape.hidden + shape.layers * (attention + 3 * shape.hidden * shape.ffn)
        assert weights / 1e9 == pytest.approx(billions[name], rel=0.02), name


def test_what_cannot_be_a_drafter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no attention"):
        expected(write_mamba(tmp_path / "mamba.gguf"))
    with pytest.raises(ModelError, match="more than the model's 4096 positions"):
        expected(bundled().require("drafter"), LlamaOptions(context=5000))
    with pytest.raises(ModelError, match="no such file"):
        expected(tmp_path / "none.gguf")
    with pytest.raises(ConfigError):
        LlamaOptions(context=0)
