"""The student of a distillation: chosen layers of its target, or a narrower net of the same architecture."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from testbed.errors import BadInput, ModelError
from testbed.models.checkpoint import Checkpoint
from testbed.models.export import architecture_of, head_dim

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
LAYER = "model.layers."
MULTIPLE = 32
"""Dimensions are multiples of this, since quantised rows are stored in blocks."""


class StudentShape(NamedTuple):
    """What a student keeps of its target.

    Attributes:
        layers: indices of the target's layers; of a narrower net only their number counts.
        hidden: hidden dimension of a narrower net, which begins untrained; None: the target's own.
        ids: the target's ids that have rows in embedding and head, in the order of the student's; None: all.
        seed: seed of untrained weights.
    """

    layers: tuple[int, ...]
    hidden: int | None = None
    ids: tuple[int, ...] | None = None
    seed: int = 0


def chosen_layers(text: str, count: int) -> tuple[int, ...]:
    """Layers of a target with `count` layers: `4` spreads four over all of them, the first and the last included;
    `0,10,29` are indices.

    Raises:
        BadInput: no such layers.
    """
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as exc:
        raise BadInput(f"layers are a number, or indices separated by commas, not {text!r}") from exc
    if len(numbers) > 1:
        if sorted(set(numbers)) != numbers or not 0 <= numbers[0] <= numbers[-1] < count:
            raise BadInput(f"layers must be increasing indices in 0..{count - 1}, not {text}")
        return tuple(numbers)
    wanted = numbers[0]
    if not 1 <= wanted <= count:
        raise BadInput(f"layers must lie in 1..{count}, the target's, not {wanted}")
    return tuple(round(i * (count - 1) / max(1, wanted - 1)) for i in range(wanted))


def check_student(target: Path, shape: StudentShape, quantised: bool) -> None:
    """Refuse a student that could not be made or stored, before any long work.

    Args:
        quantised: whether it is to be stored in blocks of 32 weights.

    Raises:
        BadInput: a hidden dimension that is no multiple of 32, or not below the target's.
        ModelError: a target that cannot be read, of another architecture, or with dimensions of other multiples.
    """
    checkpoint = Checkpoint(target)
    architecture_of(checkpoint)
    config = _config(checkpoint.config, shape)
    widths = (config.hidden_size, config.intermediate_size, config.num_attention_heads * head_dim(config))
    if quantised and any(width % MULTIPLE for width in widths):
        raise ModelError(f"{target}: quantised rows need multiples of {MULTIPLE}, unlike {widths}; give --gguf f16")


def make_student(target: Path, shape: StudentShape) -> Any:
    """A transformers model in float32 on the CPU, ready for training.

    Chosen layers, norms, embedding and head have the target's weights. A narrower net has untrained layers; its
    embedding and head are the target's, projected on their principal components.

    Args:
        target: Hugging Face directory of a Llama, Qwen2 or Qwen3 model.

    Raises:
        BadInput: a hidden dimension that is no multiple of 32, or not below the target's.
        ModelError: a target that cannot be read, or of another architecture.
    """
    from transformers import AutoModelForCausalLM

    checkpoint = Checkpoint(target)
    architecture_of(checkpoint)
    config = _config(checkpoint.config, shape)
    with torch.random.fork_rng():
        torch.manual_seed(shape.seed)
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = _kept(checkpoint, shape) if shape.hidden is None else _projected(checkpoint, shape)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    unfilled = [name for name in missing if shape.hidden is None and name != HEAD]
    if unexpected or unfilled:
        raise ModelError(f"{target}: cannot take tensor {[*unexpected, *unfilled][0]} over into a drafter")
    model.tie_weights()
    return model


def _config(of_target: Any, shape: StudentShape) -> Any:
    """transformers' configuration of the student."""
    config = copy.deepcopy(of_target)
    count = len(shape.layers)
    config.num_hidden_layers = count
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[i] for i in shape.layers]
    if shape.ids is not None:
        config.vocab_size = len(shape.ids)
        config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    if shape.hidden is not None:
        _narrow(config, shape.hidden)
    return config


def _narrow(config: Any, hidden: int) -> None:
    """Scale a configuration to another hidden dimension; heads keep their size."""
    if hidden % MULTIPLE or not 0 < hidden < config.hidden_size:
        raise BadInput(f"hidden must be a multiple of {MULTIPLE} below the target's {config.hidden_size}, not {hidden}")
    size, share = head_dim(config), config.num_attention_heads // config.num_key_value_heads
    groups = max(1, round(config.num_key_value_heads * hidden / config.hidden_size))
    ffn = config.intermediate_size * hidden / config.hidden_size
    config.head_dim, config.num_key_value_heads, config.num_attention_heads = size, groups, groups * share
    config.intermediate_size = max(1, round(ffn / MULTIPLE)) * MULTIPLE
    config.hidden_size = hidden


def _kept(checkpoint: Checkpoint, shape: StudentShape) -> dict[str, Tensor]:
    """The target's weights by the student's names."""
    places = {index: place for place, index in enumerate(shape.layers)}
    weights = {}
    for name in checkpoint.names:
        if name.endswith("rotary_emb.inv_freq"):
            continue
        if not name.startswith(LAYER):
            weights[name] = _rows(checkpoint, name, shape.ids)
            continue
        index, _, rest = name.removeprefix(LAYER).partition(".")
        if int(index) in places:
            weights[f"{LAYER}{places[int(index)]}.{rest}"] = torch.from_numpy(checkpoint.load(name))
    return weights


def _rows(checkpoint: Checkpoint, name: str, ids: Sequence[int] | None) -> Tensor:
    """A tensor outside the layers; of embedding and head the rows of these ids."""
    array = checkpoint.load(name)
    if ids is None or name not in (EMBEDDING, HEAD):
        return torch.from_numpy(array)
    return torch.from_numpy(array[np.array(ids)])


def _projected(checkpoint: Checkpoint, shape: StudentShape) -> dict[str, Tensor]:
    """Embedding and head of the target in fewer dimensions."""
    assert shape.hidden is not None
    found = {}
    for name in (EMBEDDING, HEAD):
        if name in checkpoint.names:
            rows = _rows(checkpoint, name, shape.ids)
            _, directions = torch.linalg.eigh(rows.T @ rows)  # in order of increasing eigenvalues
            found[name] = (rows @ directions[:, -shape.hidden :]).contiguous()
    return found
