"""Proof that a GGUF file under llama.cpp computes what its Hugging Face directory computes under transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from numpy.typing import NDArray

from testbed.errors import ModelError
from testbed.llama.context import LlamaContext, LlamaOptions
from testbed.llama.origin import DIFFERENCE
from testbed.models.export import DTypeName, export_gguf

POSITIONS = 128
Weights = Literal["f32", "f16", "q8_0", "q4_1"]
TOLERANCES: dict[Weights, float] = {"f32": 1e-3, "f16": 2e-2, "q8_0": 2e-1, "q4_1": 2e-1}
"""Largest difference of a logit or a hidden value, as a share of the largest magnitude, by dtype of the file."""


@dataclass(frozen=True, slots=True)
class Parity:
    """Difference of the logits of llama.cpp and transformers for the same ids."""

    positions: int
    logits_diff: float
    """Largest absolute difference of a logit."""
    logits_scale: float
    """Largest magnitude of a logit under transformers."""
    hidden_diff: float
    """Largest absolute difference of a final-layer hidden value."""
    hidden_scale: float
    argmax_agreement: float
    """Share of the positions with the same greedy token."""
    tolerance: float

    @property
    def ok(self) -> bool:
        """Are logits and hidden states within the tolerance?"""
        return (
            self.logits_diff <= self.tolerance * self.logits_scale
            and self.hidden_diff <= self.tolerance * self.hidden_scale
        )

    def __str__(self) -> str:
        return (
            f"logits within {self.logits_diff:.2g} of {self.logits_scale:.3g}, hidden states within "
            f"{self.hidden_diff:.2g} of {self.hidden_scale:.3g}, same argmax at {self.argmax_agreement:.1%} of "
            f"{self.positions} positions (tolerance {self.tolerance:g} of the scale)"
        )


def prove_parity(
    model_dir: Path,
    file: Path,
    dtype: Weights = "f32",
    ids: Sequence[int] | None = None,
) -> Parity:
    """Compare a GGUF file under llama.cpp with its directory under transformers in float32.

    Both read the same ids, llama.cpp one at a time as a drafter does, with an f32 cache and without flash attention,
    whose sums on a CPU are f16. Needs memory for both models.

    Args:
        ids: those of a text; None: 128 random ones. On random ids a trained model's largest values are outliers, which
            the rounded activations of quantised weights miss by far.

    Raises:
        ModelError: one of the models cannot be loaded.
    """
    options = LlamaOptions(sequences=1, kv_type="f32", flash_attention=False)
    llama = LlamaContext(file, options)
    try:
        if ids is None:
            ids = np.random.default_rng(0).integers(0, llama.rows, min(POSITIONS, llama.context)).tolist()
        logits, hidden = _llama_outputs(llama, ids)
    finally:
        llama.close()
    expected_logits, expected_hidden = _transformers_outputs(model_dir, ids)
    if logits.shape != expected_logits.shape or hidden.shape != expected_hidden.shape:
        raise ModelError(f"{file}: not of the shape of {model_dir}")
    return Parity(
        positions=len(ids),
        logits_diff=_largest(logits - expected_logits),
        logits_scale=_largest(expected_logits),
        hidden_diff=_largest(hidden - expected_hidden),
        hidden_scale=_largest(expected_hidden),
        argmax_agreement=float((logits.argmax(1) == expected_logits.argmax(1)).mean()),
        tolerance=TOLERANCES[dtype],
    )


def _largest(values: NDArray[np.float32]) -> float:
    return float(np.abs(values).max())


def _llama_outputs(llama: LlamaContext, ids: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Logits [positions, rows] and hidden states [positions, hidden_size]."""
    logits, hidden = [], []
    for position, token in enumerate(ids):
        llama.compute(0, position, [token], outputs=True)
        logits.append(llama.logits().copy())
        hidden.append(llama.hidden().copy())
    return np.stack(logits), np.stack(hidden)


def _transformers_outputs(model_dir: Path, ids: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The same from transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=torch.float32, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError, RuntimeError) as exc:
        reason = " ".join(str(exc).split())
        raise ModelError(f"{model_dir}: transformers cannot load it: {reason}") from exc
    with torch.inference_mode():
        hidden = model.model(torch.tensor([ids])).last_hidden_state
        return model.lm_head(hidden)[0].numpy(), hidden[0].numpy()


def _record(file: Path, difference: float) -> None:
    """Write how far the states differ into the file's metadata."""
    reader = gguf.GGUFReader(file, "r+")
    entry = reader.fields[DIFFERENCE]
    entry.parts[entry.data[0]][0] = difference
    reader.data.flush()


def export_and_prove(model_dir: Path, out: Path, dtype: DTypeName = "f32") -> Parity:
    """Export a model directory and compare the file under llama.cpp with transformers; keep it only where they agree.

    Raises:
        ModelError: as `export_gguf` and `prove_parity`, or the two differ by more than the dtype's tolerance.
    """
    unproved = out.with_name(f"{out.name}.unproved")
    try:
        export_gguf(model_dir, unproved, dtype)
        parity = prove_parity(model_dir, unproved, dtype)
        if not parity.ok:
            raise ModelError(f"{model_dir}: its GGUF file computes something else, and is not kept: {parity}")
        _record(unproved, parity.hidden_diff / parity.hidden_scale)
        unproved.replace(out)
    finally:
        unproved.unlink(missing_ok=True)
    return parity
