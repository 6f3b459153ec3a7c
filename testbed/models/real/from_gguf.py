"""Conversion of GGUF files, quantised or not, to Hugging Face directories in float32: the inverse of `export`."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from testbed.errors import ModelError
from testbed.files import make_folder
from testbed.llama.gguf import Scalar
from testbed.llama.gguf_rules import EMBEDDING, check_gguf
from testbed.models.checkpoint import writing
from testbed.models.export import ARCHITECTURES

FAMILIES = {gguf.MODEL_ARCH_NAMES[arch]: name for name, arch in ARCHITECTURES.items()}
"""transformers' class by GGUF architecture."""
LAYER = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    *(f"self_attn.{name}_proj.{kind}" for kind in ("weight", "bias") for name in "qkv"),
    "self_attn.o_proj.weight",
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
)
"""Tensors that a layer may have, by transformers' name."""
OUTER = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
SCALED = ("rope.scaling.type", "rope.scaling.factor")
WITHOUT_TOKENIZER = ("none", "no_vocab")

Weights = dict[str, NDArray[np.float32]]


def from_gguf(file: Path, out: Path) -> None:
    """Write the model of a GGUF file as a Hugging Face directory, with its tokenizer if it has one.

    All weights are in memory at once, 4 bytes each.

    Raises:
        ModelError: the file is no GGUF file, or has an architecture, a rope scaling or a tensor that is not supported.
        BadInput: the directory cannot be created.
    """
    from safetensors.numpy import save_file

    header = check_gguf(file)
    family = str(header.scalars["general.architecture"])
    if family not in FAMILIES:
        raise ModelError(f"{file}: cannot convert architecture {family}; known are {', '.join(FAMILIES)}")
    entries = {name.removeprefix(f"{family}."): value for name, value in header.scalars.items()}
    if scaled := [name for name in SCALED if entries.get(name, "none") != "none"]:
        raise ModelError(f"{file}: cannot convert a model with {scaled[0]}")
    weights = _weights(file, family, entries)
    rows = header.tensors[EMBEDDING].shape[1]
    make_folder(out)
    with writing(out):
        save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    _write_json(out / "config.json", _config(family, entries, rows, tied="lm_head.weight" not in weights))
    if entries.get("tokenizer.ggml.model", "none") not in WITHOUT_TOKENIZER:
        save_tokenizer(file, out)
        ends = {"eos_token_id": entries.get("tokenizer.ggml.eos_token_id"), "do_sample": False}
        _write_json(out / "generation_config.json", ends)


def quantisation(model: Path) -> str:
    """The most frequent weight type in a GGUF file, such as F32 or Q8_0.

    Raises:
        ModelError: no GGUF file that can be used.
    """
    check_gguf(model)
    counts: Counter[str] = Counter()
    for tensor in gguf.GGUFReader(model).tensors:
        counts[tensor.tensor_type.name] += int(tensor.n_elements)
    return counts.most_common(1)[0][0]


def save_tokenizer(file: Path, out: Path) -> None:
    """Write the tokenizer of a GGUF file, with its chat template, as transformers reads it.

    Raises:
        ModelError: transformers cannot read it.
    """
    from transformers import AutoTokenizer

    alone = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
    try:
        with tempfile.TemporaryDirectory(prefix="testbed-") as folder:
            Path(folder, file.name).symlink_to(file.resolve())  # nothing beside the file counts, least of all programs
            AutoTokenizer.from_pretrained(folder, **alone).save_pretrained(out)
    except Exception as exc:
        raise ModelError(f"{file}: transformers cannot read its tokenizer: {' '.join(str(exc).split())}") from exc


def _weights(file: Path, family: str, entries: Mapping[str, Scalar]) -> Weights:
    """The tensors by transformers' names, dequantised."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    layers = int(entries["block_count"])
    names = gguf.get_tensor_name_map(ARCHITECTURES[FAMILIES[family]], layers)
    weights: Weights = {}
    for wanted in (*OUTER, *(f"model.layers.{layer}.{name}" for layer in range(layers) for name in LAYER)):
        name = names.get_name(wanted, try_suffixes=(".weight", ".bias"))
        tensor = None if name is None else tensors.pop(name, None)
        if tensor is None:
            continue
        array = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        weights[wanted] = np.ascontiguousarray(_halves(wanted, array, family, entries))
    if tensors:
        raise ModelError(f"{file}: cannot convert tensor {min(tensors)}")
    return weights


def _halves(name: str, array: NDArray[np.float32], family: str, entries: Mapping[str, Scalar]) -> NDArray[np.float32]:
    """Rows in transformers' order: GGUF files of Llama have rotary pairs adjacent, transformers halves of a head."""
    heads = {"q_proj": "attention.head_count", "k_proj": "attention.head_count_kv"}.get(name.split(".")[-2])
    if heads is None or family != gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.LLAMA]:
        return array
    count = int(entries.get(heads, entries["attention.head_count"]))
    pairs = array.reshape(count, array.shape[0] // count // 2, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)


def _config(family: str, entries: Mapping[str, Scalar], rows: int, tied: bool) -> dict[str, Any]:
    """transformers' config.json."""
    from transformers import AutoConfig

    heads, hidden = int(entries["attention.head_count"]), int(entries["embedding_length"])
    config = AutoConfig.for_model(
        family,
        architectures=[FAMILIES[family]],
        vocab_size=rows,
        hidden_size=hidden,
        intermediate_size=int(entries["feed_forward_length"]),
        num_hidden_layers=int(entries["block_count"]),
        num_attention_heads=heads,
        num_key_value_heads=int(entries.get("attention.head_count_kv", heads)),
        head_dim=int(entries.get("attention.key_length", hidden // heads)),
        max_position_embeddings=int(entries["context_length"]),
        rms_norm_eps=float(entries["attention.layer_norm_rms_epsilon"]),
        rope_theta=float(entries.get("rope.freq_base", 10000.0)),
        tie_word_embeddings=tied,
        bos_token_id=entries.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=entries.get("tokenizer.ggml.eos_token_id"),
        dtype="float32",
    )
    document: dict[str, Any] = config.to_dict()
    return document


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
