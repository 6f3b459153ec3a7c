"""Proof that a GGUF file under llama.cpp computes what its Hugging Face directory computes under transformers."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gguf
import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput, ModelError
from testbed.files import whole_file
from testbed.llama.context import LlamaContext, LlamaOptions
from testbed.llama.origin import DIFFERENCE
from testbed.models.checkpoint import causal_lm
from testbed.models.export import DTypeName, export_gguf
from testbed.models.problems import generate
from testbed.models.real.from_gguf import from_gguf, quantisation
from testbed.protocols.vocabulary import FILE, read_tokenizer

POSITIONS = 128
Weights = Literal["f32", "f16", "q8_0", "q4_0", "q4_1"]
TOLERANCES: dict[Weights, float] = {"f32": 1e-3, "f16": 2e-2, "q8_0": 2e-1, "q4_0": 2e-1, "q4_1": 2e-1}
"""Largest difference of a logit or a hidden value, as a share of the largest magnitude, by dtype of the file."""
AGREEMENTS = {"q8_0": 0.9, "q4_0": 0.75}
"""Least share of positions of a text with the same greedy token, by quantised dtype: what a drafter is used for."""
QUESTIONS = 8
"""Bundled problems that make up the text."""


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
    on_text: bool = False
    """Whether the ids are those of a text; otherwise they are random."""
    least_agreement: float | None = None
    """Share of equal greedy tokens that suffices, whatever the tolerance; None: only the tolerance counts."""

    @property
    def ok(self) -> bool:
        """Whether logits and hidden states are within the tolerance or, where that suffices, greedy tokens agree."""
        return (self.least_agreement is not None and self.argmax_agreement >= self.least_agreement) or (
            self.logits_diff <= self.tolerance * self.logits_scale
            and self.hidden_diff <= self.tolerance * self.hidden_scale
        )

    def __str__(self) -> str:
        what = "text" if self.on_text else "random ids"
        enough = "" if self.least_agreement is None else f", or {self.least_agreement:.0%} of the positions"
        return (
            f"logits within {self.logits_diff:.2g} of {self.logits_scale:.3g}, hidden states within "
            f"{self.hidden_diff:.2g} of {self.hidden_scale:.3g}, same argmax at {self.argmax_agreement:.1%} of "
            f"{self.positions} positions of {what} (tolerance {self.tolerance:g} of the scale{enough})"
        )


def prove_parity(
    model_dir: Path,
    file: Path,
    dtype: Weights = "f32",
    ids: Sequence[int] | None = None,
    least_agreement: float | None = None,
) -> Parity:
    """Compare a GGUF file under llama.cpp with its directory under transformers in float32.

    Both read the same ids, llama.cpp one at a time as a drafter does, with an f32 cache and without flash attention,
    whose sums on a CPU are f16. Needs memory for both models.

    Args:
        ids: those of a text; None: 128 random ones. On random ids a trained model's largest values are outliers, which
            the rounded activations of quantised weights miss by far.
        least_agreement: see `Parity`.

    Raises:
        ModelError: one of the models cannot be loaded.
    """
    on_text = ids is not None
    options = LlamaOptions(sequences=1, kv_type="f32", flash_attention=False)
    with contextlib.closing(LlamaContext(file, options)) as llama:
        ids = _random_ids(llama) if ids is None else ids
        logits, hidden = _llama_outputs(llama, ids)
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
        on_text=on_text,
        least_agreement=least_agreement,
    )


def prove_file(file: Path) -> Parity:
    """Compare a GGUF file under llama.cpp with its own weights under transformers.

    Raises:
        ModelError: the file cannot be used or converted.
    """
    kind = quantisation(file).lower()
    dtype: Weights = kind if kind in TOLERANCES else "q4_1"
    with tempfile.TemporaryDirectory(prefix="testbed-") as scratch:
        from_gguf(file, Path(scratch))
        beside, own = file.parent / FILE, Path(scratch) / FILE
        if beside.is_file() and not own.exists():
            shutil.copyfile(beside, own)
        least = None if kind in ("f32", "f16") else AGREEMENTS.get(kind, min(AGREEMENTS.values()))
        return prove_parity(Path(scratch), file, dtype, text_ids(Path(scratch)), least)


def text_ids(model_dir: Path, count: int = POSITIONS) -> list[int] | None:
    """The first ids of bundled problems and their answers; None: the directory has no tokenizer.

    Raises:
        ModelError: it has a damaged one.
    """
    if not (model_dir / FILE).is_file():
        return None
    text = "\n\n".join(f"{one.question}\n{one.answer}" for one in itertools.islice(generate("test", 0), QUESTIONS))
    ids: list[int] = read_tokenizer(model_dir).encode(text).ids
    return ids[:count]


def _random_ids(llama: LlamaContext) -> list[int]:
    """128 ids of a model's vocabulary, or as many as its context holds."""
    ids: list[int] = np.random.default_rng(0).integers(0, llama.rows, min(POSITIONS, llama.context)).tolist()
    return ids


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

    model = causal_lm(model_dir)
    with torch.inference_mode():
        hidden = model.model(torch.tensor([ids])).last_hidden_state
        return model.lm_head(hidden)[0].numpy(), hidden[0].numpy()


def _record(file: Path, difference: float) -> None:
    """Write how far the states differ into the file's metadata."""
    reader = gguf.GGUFReader(file, "r+")
    entry = reader.fields[DIFFERENCE]
    entry.parts[entry.data[0]][0] = difference
    reader.data.flush()


def export_and_prove(
    model_dir: Path,
    out: Path,
    dtype: DTypeName = "f32",
    least_agreement: float | None = None,
    ids: Sequence[int] | None = None,
) -> Parity:
    """Export a model directory and compare the file under llama.cpp with transformers; keep it only where they agree.

    Args:
        least_agreement: share of equal greedy tokens that suffices; None: the dtype's, see `AGREEMENTS`.
        ids: text on which they are compared; None: bundled problems, or random ids where there is no tokenizer.

    Raises:
        ModelError: as `export_gguf` and `prove_parity`, or the two differ by more than the dtype's tolerance.
        BadInput: `least_agreement` is not a share.
    """
    if least_agreement is not None and not 0 <= least_agreement <= 1:
        raise BadInput(f"min-agreement is a share in [0, 1], not {least_agreement:g}")
    enough = AGREEMENTS.get(dtype) if least_agreement is None else least_agreement
    with whole_file(out) as unproved:
        export_gguf(model_dir, unproved, dtype)
        parity = prove_parity(model_dir, unproved, dtype, text_ids(model_dir) if ids is None else ids, enough)
        if not parity.ok:
            hint = "" if dtype not in AGREEMENTS else "; --min-agreement SHARE keeps a drafter that agrees less often"
            raise ModelError(f"{model_dir}: its GGUF file computes something else, and is not kept: {parity}{hint}")
        _record(unproved, parity.hidden_diff / parity.hidden_scale)
    return parity
