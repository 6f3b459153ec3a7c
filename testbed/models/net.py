"""Minimal Llama for training the bundled pair on a CPU.

transformers' module spends most of a CPU training step in casts and in the backward pass of its attention kernel. This
one computes the same function, checked by a test, in about half the time. Its parameters have the names of
`LlamaForCausalLM`, which can load the state dict.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig

THETA = 10000.0
"""Base of the rotary angles, as in transformers."""


def rotary(length: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, each [length, head_dim]."""
    inverse = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device=device), inverse)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


class Attention(nn.Module):
    """Causal multi-head self-attention with rotary positions, without grouped queries."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        d = config.hidden_size
        self.heads = config.num_attention_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """x [batch, length, hidden] → the same shape."""
        batch, length, d = x.shape
        weight = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        qkv = F.linear(x, weight).view(batch, length, 3 * self.heads, d // self.heads).transpose(1, 2)
        qk, v = qkv[:, : 2 * self.heads], qkv[:, 2 * self.heads :]
        half = qk.shape[-1] // 2
        qk = qk * cos + torch.cat([-qk[..., half:], qk[..., :half]], dim=-1) * sin
        q, k = (t.reshape(batch * self.heads, length, -1) for t in qk.split(self.heads, dim=1))
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=(d // self.heads) ** -0.5)
        mixed = torch.bmm(torch.softmax(scores, dim=-1), v.reshape(batch * self.heads, length, -1))
        out: Tensor = self.o_proj(mixed.view(batch, self.heads, length, -1).transpose(1, 2).reshape(batch, length, d))
        return out


class Mlp(nn.Module):
    """SwiGLU feed-forward network."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        d, inner = config.hidden_size, config.intermediate_size
        self.gate_proj, self.up_proj = (nn.Linear(d, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., hidden] → the same shape."""
        gate, up = F.linear(x, torch.cat([self.gate_proj.weight, self.up_proj.weight])).chunk(2, dim=-1)
        out: Tensor = self.down_proj(F.silu(gate) * up)
        return out


class Layer(nn.Module):
    """Decoder layer."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(config), Mlp(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """x [batch, length, hidden] → the same shape."""
        x = x + self.self_attn(_norm(self.input_layernorm, x), cos, sin, mask)
        out: Tensor = x + self.mlp(_norm(self.post_attention_layernorm, x))
        return out


class Decoder(nn.Module):
    """Embedding, decoder layers, final norm."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class Net(nn.Module):
    """Complete model; the embedding is also the output head."""

    def __init__(self, config: LlamaConfig, dtype: torch.dtype = torch.bfloat16) -> None:
        """`dtype` is the type of the forward pass; parameters are float32."""
        super().__init__()
        self.config, self.dtype = config, dtype
        self.model = Decoder(config)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def hidden(self, ids: Tensor) -> Tensor:
        """Final-layer hidden states [batch, length, hidden] of ids [batch, length]."""
        length, device = ids.shape[1], ids.device
        head_dim = self.config.hidden_size // self.config.num_attention_heads
        cos, sin = (t.to(self.dtype) for t in rotary(length, head_dim, THETA, device))
        mask = torch.full((length, length), float("-inf"), device=device, dtype=self.dtype).triu(1)[None]
        x = self.model.embed_tokens(ids).to(self.dtype)
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask)
        return _norm(self.model.norm, x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocabulary] of hidden states [..., hidden]."""
        return F.linear(hidden, self.model.embed_tokens.weight)


def _norm(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    return F.rms_norm(x, norm.normalized_shape, norm.weight.to(x.dtype), norm.eps)
