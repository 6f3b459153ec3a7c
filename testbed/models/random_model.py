"""Random models of given sizes, for timing: latency depends on the size of a model, not on its weights.

The Hugging Face directory contains the bundled pair's tokenizer and no end token, so that outputs always have the
requested length.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

from testbed.errors import BadInput
from testbed.files import make_folder, require_empty
from testbed.models.bundle import bundled
from testbed.models.checkpoint import writing
from testbed.options import Config, option
from testbed.protocols.vocabulary import fingerprint, read_tokenizer

Kind = Literal["llama", "qwen3", "qwen3-moe"]
ROWS_OF = 64
"""The number of rows of the output head is a multiple of this."""


class RandomModel(Config, frozen=True, kw_only=True):
    """Settings of `testbed models random`.

    Raises:
        BadInput: invalid sizes.
    """

    kind: Annotated[Kind, option("Architecture.")] = "llama"
    hidden: Annotated[int, option("Hidden dimension.", least=1)] = 256
    layers: Annotated[int, option("Decoder layers.", least=1)] = 4
    ffn: Annotated[int, option("Feed-forward dimension, per expert for qwen3-moe.", least=1)] = 1024
    heads: Annotated[int, option("Attention heads.", least=1)] = 4
    experts: Annotated[int, option("M, number of experts; qwen3-moe only.", least=1)] = 16
    active: Annotated[int, option("m, active experts per token; qwen3-moe only.", least=1)] = 2
    positions: Annotated[int, option("Maximum context length.", least=1, unit="tokens")] = 2048
    seed: Annotated[int, option("Seed of the weights.", least=0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden % self.heads or self.hidden // self.heads % 32:
            raise BadInput(f"hidden / heads must be a multiple of 32, not {self.hidden} / {self.heads}")
        if self.active > self.experts:
            raise BadInput(f"{self.active} of {self.experts} experts cannot be active")


def make_random(chosen: RandomModel, out: Path) -> int:
    """Write a random float32 model with the bundled tokenizer; return its number of parameters.

    Raises:
        BadInput: the directory is not empty.
    """
    require_empty(out)
    import torch
    import transformers

    tokenizer = bundled().require("tokenizer")
    name, fields = _fields(chosen, _rows(tokenizer))
    config = getattr(transformers, f"{name}Config")(**fields)
    with torch.random.fork_rng():
        torch.manual_seed(chosen.seed)
        model = getattr(transformers, f"{name}ForCausalLM")(config).float()
    make_folder(out)
    with writing(out):
        model.save_pretrained(out)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        if (tokenizer / file).exists():
            shutil.copy(tokenizer / file, out / file)
    assert fingerprint(out) == fingerprint(tokenizer)
    return int(sum(weight.numel() for weight in model.parameters()))


def _rows(tokenizer: Path) -> int:
    count = 1 + max(read_tokenizer(tokenizer).get_vocab().values())
    return -(-count // ROWS_OF) * ROWS_OF


def _fields(chosen: RandomModel, rows: int) -> tuple[str, dict[str, Any]]:
    """Prefix of the transformers classes, and the configuration."""
    fields: dict[str, Any] = {
        "vocab_size": rows,
        "hidden_size": chosen.hidden,
        "intermediate_size": chosen.ffn,
        "num_hidden_layers": chosen.layers,
        "num_attention_heads": chosen.heads,
        "num_key_value_heads": chosen.heads,
        "head_dim": chosen.hidden // chosen.heads,
        "max_position_embeddings": chosen.positions,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "tie_word_embeddings": False,
    }
    if chosen.kind != "qwen3-moe":
        return {"llama": "Llama", "qwen3": "Qwen3"}[chosen.kind], fields
    experts = {"num_experts": chosen.experts, "num_experts_per_tok": chosen.active, "moe_intermediate_size": chosen.ffn}
    return "Qwen3Moe", {**fields, **experts, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
