"""Tiny GGUF files: models whose cache cannot be rolled back, and a tokenizer alone."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

ROWS, HIDDEN, INNER = 64, 32, 64


def _write(path: Path, arch: str, metadata: dict[str, int | float], tensors: dict[str, tuple[int, ...]]) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    common = {"context_length": 512, "embedding_length": HIDDEN, "block_count": 1, "vocab_size": ROWS}
    for key, value in (common | metadata).items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(f"{arch}.{key}", value)
    writer.add_tokenizer_model("none")
    rng = np.random.default_rng(0)
    for name, shape in tensors.items():
        writer.add_tensor(name, rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_mamba(path: Path) -> Path:
    """A recurrent model of one layer."""
    state, steps, kernel = 16, 2, 4
    metadata = {
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "ssm.conv_kernel": kernel,
        "ssm.inner_size": INNER,
        "ssm.state_size": state,
        "ssm.time_step_rank": steps,
    }
    tensors = {
        "token_embd.weight": (ROWS, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.ssm_in.weight": (2 * INNER, HIDDEN),
        "blk.0.ssm_conv1d.weight": (INNER, kernel),
        "blk.0.ssm_conv1d.bias": (INNER,),
        "blk.0.ssm_x.weight": (steps + 2 * state, INNER),
        "blk.0.ssm_dt.weight": (INNER, steps),
        "blk.0.ssm_dt.bias": (INNER,),
        "blk.0.ssm_a": (INNER, state),
        "blk.0.ssm_d": (INNER,),
        "blk.0.ssm_out.weight": (HIDDEN, INNER),
    }
    return _write(path, "mamba", metadata, tensors)


def write_gemma3(path: Path) -> Path:
    """A model of one layer with a sliding window of 32 tokens."""
    metadata = {
        "feed_forward_length": INNER,
        "attention.head_count": 1,
        "attention.head_count_kv": 1,
        "attention.key_length": HIDDEN,
        "attention.value_length": HIDDEN,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 32,
    }
    norms = ("attn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    matrices = {"ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER)}
    tensors = {
        "token_embd.weight": (ROWS, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        **{f"blk.0.{name}.weight": (HIDDEN,) for name in norms},
        **{f"blk.0.{name}.weight": (HIDDEN, HIDDEN) for name in ("attn_q", "attn_k", "attn_v", "attn_output")},
        **{f"blk.0.{name}.weight": shape for name, shape in matrices.items()},
    }
    return _write(path, "gemma3", metadata, tensors)


def write_tokenizer(path: Path) -> Path:
    """A file without tensors, whose tokenizer knows the letters a and b and their pair."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<end>", "a", "b", "ab"])
    writer.add_token_types([3, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
