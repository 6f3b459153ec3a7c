"""Tiny random Hugging Face models, on which the testbed's engines are compared with transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

KINDS = ("llama", "llama-tied", "qwen2", "qwen2-tied", "qwen3", "qwen3-tied", "qwen2-padded")
"""Models of the fixture `random_models`: an architecture and a variant."""
PADDED_ROWS = 20
TOKENS = 300
"""Real tokens of every random model. One made with more rows (`vocab_size=`) has padded rows beyond them."""

_COMMON: dict[str, Any] = {
    "vocab_size": TOKENS,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"hidden_size": 96, "head_dim": 32}),
    "qwen3-moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {
            "head_dim": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
    ),
}


def make_model(kind: str, directory: Path, seed: int, **overrides: Any) -> Path:
    """Write a random float32 model (config.json, safetensors) into `directory` and return it.

    Weights are larger than an initialiser's, so that distributions are peaked and a wrong permutation, bias, norm or
    rotary base shows. Padded rows are louder still: an engine that does not mask them picks them.

    Args:
        kind: "llama", "qwen2", "qwen3" or "qwen3-moe"; heads have 32 dimensions, two query heads share a key head.
        overrides: fields of the architecture's configuration; `max_shard_size` goes to `save_pretrained`.
    """
    import torch
    import transformers

    config_name, model_name, extra = _ARCHITECTURES[kind]
    shards = {"max_shard_size": overrides.pop("max_shard_size")} if "max_shard_size" in overrides else {}
    config = getattr(transformers, config_name)(**{**_COMMON, **extra, **overrides})
    model = getattr(transformers, model_name)(config).float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                weight.copy_(0.3 * noise + (0.0 if name.endswith("bias") else 1.0))
            elif "embed" in name or "lm_head" in name:
                weight.copy_(0.25 * noise)
                weight[TOKENS:] *= 3.0
            else:
                weight.copy_(1.5 * noise / weight.shape[-1] ** 0.5)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory, **shards)
    return directory


def edit_config(directory: Path, **fields: Any) -> None:
    """Overwrite fields of a model's config.json; a field set to None is removed."""
    path = directory / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}, indent=1))
