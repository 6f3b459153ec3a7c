"""The tensors that a target's architecture and config.json imply, with their shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from testbed.bs.engines.target import Size

Shape = tuple[int, ...]
MOST_POSITIONS = 2**23
"""Longest context that an engine makes tables for, after scaling; published models have a million."""
MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
"""`model_type` of each architecture that is supported."""
DEFAULTS: dict[str, dict[str, int]] = {
    "LlamaForCausalLM": {"intermediate_size": 11008},
    "Qwen2ForCausalLM": {"intermediate_size": 22016, "num_key_value_heads": 32},
    "Qwen3ForCausalLM": {"intermediate_size": 22016, "num_key_value_heads": 32, "head_dim": 128},
    "Qwen3MoeForCausalLM": {
        "intermediate_size": 6144, "num_key_value_heads": 4, "num_experts": 128, "moe_intermediate_size": 768,
    },
}  # fmt: skip
"""Fields of config.json that have another default than `ModelConfig`'s, by architecture."""
Positive = Annotated[float, msgspec.Meta(ge=1e-6, le=1e15)]
"""Numbers of rotary embeddings, whose angles are none with zero, less, or infinity; engines then attend to nothing."""


class RopeScaling(msgspec.Struct):
    """Rotary embeddings, and how they are scaled to more positions.

    Raises:
        ValueError: a band of frequencies without width.
    """

    rope_theta: Positive | None = None
    factor: Positive | None = None
    original_max_position_embeddings: Size | None = None
    attention_factor: Positive | None = None
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None

    def __post_init__(self) -> None:
        if self.low_freq_factor is not None and self.low_freq_factor == self.high_freq_factor:
            raise ValueError("low_freq_factor and high_freq_factor must differ")


class ModelConfig(msgspec.Struct):
    """Fields of config.json of the supported architectures; their defaults, with those of `DEFAULTS`, are those of
    transformers' classes.
    """

    vocab_size: Size
    hidden_size: Size
    num_attention_heads: Size
    max_position_embeddings: Size
    num_hidden_layers: Size
    intermediate_size: Size | None = None
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    num_experts: Size | None = None
    num_local_experts: Size | None = None
    """The same, in files of transformers 5."""
    moe_intermediate_size: Size | None = None
    decoder_sparse_step: Size = 1
    mlp_only_layers: list[int] | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    tie_word_embeddings: bool | None = None
    rope_theta: Positive | None = None
    rope_scaling: RopeScaling | None = None
    rope_parameters: RopeScaling | None = None
    quantization_config: dict[str, Any] | None = None

    @property
    def experts(self) -> int:
        """Experts of a sparse layer; 0: there are none."""
        return self.num_local_experts or self.num_experts or 0

    @property
    def head_size(self) -> int:
        """Width of an attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def scaled_positions(self) -> float:
        """Positions for which an engine makes tables: scaled embeddings have more than the model was made for."""
        scaling = self.rope_scaling or self.rope_parameters or RopeScaling()
        before = scaling.original_max_position_embeddings or self.max_position_embeddings
        return max(self.max_position_embeddings, before * (scaling.factor or 1.0))


def expected_tensors(architecture: str, config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of all tensors of a model in Hugging Face's format, without what may be left out: a head that is
    tied to the embeddings.
    """
    yield "model.embed_tokens.weight", (config.vocab_size, config.hidden_size)
    yield "model.norm.weight", (config.hidden_size,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, config.hidden_size)
    for layer in range(config.num_hidden_layers):
        before = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{before}{norm}.weight", (config.hidden_size,)
        yield from _attention(f"{before}self_attn.", architecture, config)
        if _sparse(architecture, config, layer):
            experts, width = config.experts, config.moe_intermediate_size or 0
            yield f"{before}mlp.gate.weight", (experts, config.hidden_size)
            for expert in range(experts):
                yield from _mlp(f"{before}mlp.experts.{expert}.", config.hidden_size, width, False)
        else:
            width = config.intermediate_size or 0
            yield from _mlp(f"{before}mlp.", config.hidden_size, width, bool(config.mlp_bias))


def _attention(before: str, architecture: str, config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    queries = config.num_attention_heads * config.head_size
    keys = (config.num_key_value_heads or config.num_attention_heads) * config.head_size
    qwen2 = architecture == "Qwen2ForCausalLM"
    for name, rows, columns in (
        ("q_proj", queries, config.hidden_size), ("k_proj", keys, config.hidden_size),
        ("v_proj", keys, config.hidden_size), ("o_proj", config.hidden_size, queries),
    ):  # fmt: skip
        yield f"{before}{name}.weight", (rows, columns)
        if name != "o_proj" if qwen2 else config.attention_bias:
            yield f"{before}{name}.bias", (rows,)
    if architecture.startswith("Qwen3"):
        for name in ("q_norm", "k_norm"):
            yield f"{before}{name}.weight", (config.head_size,)


def _mlp(before: str, hidden: int, width: int, biased: bool) -> Iterator[tuple[str, Shape]]:
    for name, rows, columns in (("gate_proj", width, hidden), ("up_proj", width, hidden), ("down_proj", hidden, width)):
        yield f"{before}{name}.weight", (rows, columns)
        if biased:
            yield f"{before}{name}.bias", (rows,)


def _sparse(architecture: str, config: ModelConfig, layer: int) -> bool:
    """Whether a layer has experts."""
    if architecture != "Qwen3MoeForCausalLM" or not config.experts:
        return False
    return layer not in (config.mlp_only_layers or ()) and (layer + 1) % config.decoder_sparse_step == 0
