"""Conversion of GGUF files, compared with the models that they came from and with llama.cpp."""

from __future__ import annotations

import io
import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from testbed.errors import ModelError
from testbed.models.random_gguf import DecoderShape, write_random
from testbed.models.real.from_gguf import from_gguf, save_tokenizer
from testbed.models.real.parity import prove_parity
from tests.support.ggufs import write_mamba, write_tokenizer
from tests.support.models import KINDS

SHAPE = DecoderShape("llama", layers=2, hidden=128, heads=4, groups=2, head_size=32, ffn=192, rows=320)


@pytest.mark.parametrize("kind", KINDS)
def test_export_and_conversion_are_inverse(
    kind: str, random_models: dict[str, Path], random_ggufs: dict[str, Path], tmp_path: Path
) -> None:
    """Bit for bit, as transformers wrote them."""
    from_gguf(random_ggufs[kind], tmp_path / "back")
    expected = load_file(random_models[kind] / "model.safetensors")
    found = load_file(tmp_path / "back" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        np.testing.assert_array_equal(found[name], weights)


@pytest.mark.parametrize("kind", ["llama", "qwen2-tied", "qwen3"])
def test_the_converted_model_computes_as_llama_cpp(kind: str, random_ggufs: dict[str, Path], tmp_path: Path) -> None:
    """Rotary base, heads, epsilon and biases reach config.json, too."""
    from_gguf(random_ggufs[kind], tmp_path / "back")
    parity = prove_parity(tmp_path / "back", random_ggufs[kind])
    assert parity.ok
    assert parity.argmax_agreement == 1.0


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0"])
def test_quantised_weights_are_those_that_the_gguf_package_reads(dtype: str, tmp_path: Path) -> None:
    write_random(tmp_path / "small.gguf", SHAPE, dtype)
    from_gguf(tmp_path / "small.gguf", tmp_path / "back")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "small.gguf").tensors}
    down = tensors["blk.1.ffn_down.weight"]
    found = load_file(tmp_path / "back" / "model.safetensors")
    np.testing.assert_array_equal(
        found["model.layers.1.mlp.down_proj.weight"], gguf.dequantize(down.data, down.tensor_type)
    )
    assert prove_parity(tmp_path / "back", tmp_path / "small.gguf", "q8_0").ok


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="architecture mamba"):
        from_gguf(write_mamba(tmp_path / "mamba.gguf"), tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_no_program_beside_a_file_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even after a yes to the question that transformers would ask."""
    file = write_tokenizer(tmp_path / "model.gguf")
    (tmp_path / "own.py").write_text(
        "from pathlib import Path\nfrom transformers import PreTrainedTokenizerFast\n"
        f"Path({str(tmp_path / 'ran')!r}).touch()\nclass Own(PreTrainedTokenizerFast): pass\n"
    )
    named = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Own"]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    save_tokenizer(file, tmp_path / "out")
    assert not (tmp_path / "ran").exists()
    assert json.loads((tmp_path / "out" / "tokenizer.json").read_text())["model"]["merges"] == [["a", "b"]]
