"""The registry of engines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from testbed.bs.engines.base import VerifyRequest
from testbed.bs.engines.llama import LlamaEngine
from testbed.bs.engines.registry import ENGINES, load_engine
from testbed.config import ServeConfig
from testbed.errors import BadInput, ModelError
from tests.support.models import TOKENS


def test_synthetic() -> None:
    engine = load_engine(
        "synthetic", None, dtype="bfloat16", vocab_size=100, max_model_len=50, seed=None, hidden_size=8
    )
    assert (engine.model_name, engine.vocab_size, engine.max_positions, engine.hidden_size) == ("synthetic", 100, 50, 8)


def test_transformers(random_models: dict[str, Path]) -> None:
    engine = load_engine("transformers", random_models["qwen2-padded"], vocab_size=TOKENS, max_model_len=50)
    assert (engine.vocab_size, engine.max_positions) == (TOKENS, 50)
    engine.close()


def test_llama(random_ggufs: dict[str, Path]) -> None:
    engine = load_engine("llama", random_ggufs["qwen2-padded"], vocab_size=TOKENS, max_model_len=50, threads=1)
    assert (engine.vocab_size, engine.max_positions) == (TOKENS, 50)
    engine.close()


def test_llamas_kv_cache(random_ggufs: dict[str, Path]) -> None:
    """f32 by default for a float32 target."""
    margins = {}
    for kv_type in (None, "f32", "f16"):
        keywords = ENGINES["llama"].keywords(msgspec.structs.asdict(ServeConfig(kv_type=kv_type, threads=1)))
        engine = load_engine("llama", random_ggufs["llama"], vocab_size=TOKENS, max_model_len=50, **keywords)
        assert isinstance(engine, LlamaEngine)
        first = np.arange(1, 20, dtype=np.int32)
        (result,) = engine.verify([VerifyRequest("a", first, first[:3])])
        margins[kv_type] = result.margin
        engine.close()
    assert (margins[None] == margins["f32"]).all() and (margins["f16"] != margins["f32"]).any()
    assert margins["f16"] == pytest.approx(margins["f32"], abs=0.05)


def test_what_is_unknown_lists_what_is_known() -> None:
    with pytest.raises(BadInput, match="unknown engine 'sglang'; known: vllm, transformers, llama, synthetic"):
        load_engine("sglang", "x")
    with pytest.raises(BadInput, match=r"no option speed; known: .*hidden_size"):
        load_engine("synthetic", None, speed=1)


@pytest.mark.parametrize("kind", ["vllm", "transformers"])
def test_no_model(kind: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="needs a model"):
        load_engine(kind, None)
    with pytest.raises(ModelError, match="no model at"):
        load_engine(kind, tmp_path / "nowhere")


def test_a_target_in_the_other_format(random_ggufs: dict[str, Path], random_models: dict[str, Path]) -> None:
    with pytest.raises(ModelError, match="is a file, and this engine takes a Hugging Face directory"):
        load_engine("transformers", random_ggufs["llama"])
    with pytest.raises(ModelError, match="takes a GGUF file: `testbed models export"):
        load_engine("llama", random_models["llama"])
    with pytest.raises(BadInput, match="needs a model: a GGUF file"):
        load_engine("llama", None)


@pytest.mark.parametrize(
    ("kind", "absent"),
    [
        ("synthetic", {"torch", "transformers", "vllm"}),
        ("transformers", {"vllm"}),
        ("llama", {"torch", "transformers", "vllm"}),
    ],
)
def test_engines_do_not_import_each_other(kind: str, absent: set[str]) -> None:
    code = (
        "import pkgutil, sys; from testbed.bs.engines.registry import ENGINES; "
        f"pkgutil.resolve_name(ENGINES[{kind!r}].load); print({{m.split('.')[0] for m in sys.modules}} & {absent!r})"
    )
    assert kind in ENGINES
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "set()\n"
