"""Decision head: probability that a mismatched draft token must be rejected, from hidden states and channel.

p_rej = σ(w2·ReLU(W1·x + b1) + b2) with x = [h_d; h_t; c], each entry standardised (WISV eqs. 23–25). Inference only
needs numpy. On disk, a head is a directory with `head.json` and `head.safetensors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from testbed.channel.csi import FEATURES, QualityKind
from testbed.errors import BadInput, ModelError
from testbed.files import file_bytes, make_folder, whole_file
from testbed.protocols.messages import Reading
from testbed.protocols.quantise import FULL_BITS, check_bits

SCHEMA = 1
TEXTS: dict[Reading, str] = {"predicting": "that predict a token", "after": "after reading a token"}
INFO, WEIGHTS = "head.json", "head.safetensors"
MOST_WEIGHTS = 2**30
"""Largest size of its weights [bytes]."""
USUAL = 1000.0
"""Standard deviations from the mean within which inputs must give numbers."""


class HeadInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Contents of `head.json`: models, sizes and thresholds of a head.

    Raises:
        BadInput: an invalid schema, size, feature, number of bits or threshold.
    """

    schema: int = SCHEMA
    drafter_hidden: int
    """d_d"""
    target_hidden: int
    """d_t"""
    width: int
    """Width of the hidden layer."""
    features: tuple[str, ...]
    """Channel features, a subset of `channel.csi.FEATURES`; (): the head ignores the channel."""
    drafter_fingerprint: str
    target_fingerprint: str
    drafter_quantisation: str
    hidden_bits: int = FULL_BITS
    """Bits per element of drafter states in training."""
    states: Reading = "predicting"
    """Hidden states that it reads: see `protocols.messages.Reading`."""
    thresholds: tuple[tuple[float, float], ...] = ()
    """Pairs (channel quality q, θ), q increasing, chosen on calibration data; one pair: a constant θ."""
    quality: QualityKind = "goodput-rtt"
    """The q of `thresholds`; the default is that of heads written before it could be chosen."""
    calibration: tuple[float, float] = (1.0, 0.0)
    """Slope and intercept of the Platt scaling, already included in the last layer."""
    about: str = ""
    episodes: str = ""
    """Digest of the episodes that it was trained on; empty: unknown, as of heads before it was kept."""
    metrics: dict[str, float] = {}
    """Scores on the calibration prompts held out of training."""

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise BadInput(f"schema must be {SCHEMA}, not {self.schema}")
        for name in ("drafter_hidden", "target_hidden", "width"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 1, not {getattr(self, name)}")
        unknown = [name for name in self.features if name not in FEATURES]
        if unknown or len(set(self.features)) < len(self.features):
            raise BadInput(f"features must be some of {', '.join(FEATURES)}, each once, not {self.features}")
        check_bits(self.hidden_bits)
        places = [q for q, _ in self.thresholds]
        if places != sorted(set(places)) or any(not 0 <= value <= 1 for pair in self.thresholds for value in pair):
            raise BadInput(f"thresholds must be pairs (q, θ) in [0, 1] with increasing q, not {self.thresholds}")

    @property
    def inputs(self) -> int:
        """Number of entries of x."""
        return self.drafter_hidden + self.target_hidden + len(self.features)

    @property
    def columns(self) -> list[int]:
        """Columns of `features` in `channel.csi.FEATURES`."""
        return [FEATURES.index(name) for name in self.features]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the head's arrays."""
        flat = {"b1": (self.width,), "w2": (self.width,), "b2": (1,), "mean": (self.inputs,), "scale": (self.inputs,)}
        return {"w1": (self.width, self.inputs), **flat}


@dataclass(frozen=True, eq=False)
class DecisionHead:
    """Weights of a head, ready for inference.

    Raises:
        BadInput: arrays of wrong shapes or with entries that are not finite, scales that are not positive, or weights
            so large that p_rej of usual states would not be a number.
    """

    info: HeadInfo
    w1: NDArray[np.float32]
    """[width, inputs]"""
    b1: NDArray[np.float32]
    """[width]"""
    w2: NDArray[np.float32]
    """[width]"""
    b2: NDArray[np.float32]
    """[1]"""
    mean: NDArray[np.float32]
    """[inputs] mean of x on the training data."""
    scale: NDArray[np.float32]
    """[inputs] standard deviation of x on the training data."""

    def __post_init__(self) -> None:
        for name, shape in self.info.shapes.items():
            array = getattr(self, name)
            if array.dtype != np.float32 or array.shape != shape:
                raise BadInput(f"{name} must be float32 {list(shape)}, not {array.dtype} {list(array.shape)}")
            if not np.isfinite(array).all():
                raise BadInput(f"{name} has entries that are not finite")
        if not (self.scale > 0).all():
            raise BadInput("scale must be positive")
        if self._reach() > float(np.finfo(np.float32).max):
            raise BadInput("its weights are too large: states near their means give no numbers")

    def _reach(self) -> float:
        """Bound of all sums in `logits`, for inputs within `USUAL` standard deviations of their means."""
        w1, b1, w2, b2, mean, scale = (np.abs(getattr(self, name).astype(np.float64)) for name in self.info.shapes)
        layer = w1 / scale
        hidden = layer @ (2 * mean + USUAL * scale) + b1
        return float(max(layer.max(), hidden.max(), w2 @ hidden + b2[0]))

    @cached_property
    def _folded(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """First layer with the standardisation folded in, transposed [inputs, width], and its bias [width]."""
        layer = self.w1 / self.scale.astype(np.float64)
        return np.ascontiguousarray(layer.T, np.float32), (self.b1 - layer @ self.mean).astype(np.float32)

    def reject_probability(
        self, drafter_hidden: NDArray[Any], target_hidden: NDArray[Any], channel: NDArray[Any]
    ) -> NDArray[np.float32]:
        """p_rej [m] of m mismatches, in one matrix product; 1 where an input is not finite or far too large.

        Args:
            drafter_hidden: [m, d_d], h_d.
            target_hidden: [m, d_t], h_t.
            channel: [m, F], c, with columns as in `info.features`.

        Raises:
            ValueError: wrong shapes.
        """
        z = self.logits(drafter_hidden, target_hidden, channel)
        p: NDArray[np.float32] = np.exp(-np.logaddexp(np.float32(0), -z))
        return p

    def logits(
        self, drafter_hidden: NDArray[Any], target_hidden: NDArray[Any], channel: NDArray[Any]
    ) -> NDArray[np.float32]:
        """Logits z [m], with p_rej = σ(z); arguments as in `reject_probability`."""
        x = self._inputs(drafter_hidden, target_hidden, channel)
        sound = np.isfinite(x).all(axis=1)
        x[~sound] = 0
        layer, bias = self._folded
        with np.errstate(over="ignore", invalid="ignore"):
            z: NDArray[np.float32] = np.maximum(x @ layer + bias, 0) @ self.w2 + self.b2
        z[~sound | np.isnan(z)] = np.inf
        return z

    def threshold(self, quality: float) -> float:
        """θ at a channel quality, interpolated linearly in `info.thresholds`.

        Raises:
            BadInput: the head has no thresholds.
        """
        if not self.info.thresholds:
            raise BadInput("this head has no thresholds of its own; give one with --threshold")
        qualities, values = zip(*self.info.thresholds, strict=True)
        return float(np.interp(quality, qualities, values))

    def _inputs(self, *parts: NDArray[Any]) -> NDArray[np.float32]:
        """x [m, inputs]"""
        rows, info = len(parts[0]), self.info
        x = np.empty((rows, info.inputs), np.float32)
        start = 0
        for part, size in zip(parts, (info.drafter_hidden, info.target_hidden, len(info.features)), strict=True):
            if part.shape != (rows, size):
                raise ValueError(f"a head's input must be [{rows}, {size}], not {list(part.shape)}")
            x[:, start : start + size] = part
            start += size
        return x


def save_head(head: DecisionHead, directory: Path) -> None:
    """Write a head to a directory, created if missing.

    Raises:
        BadInput, TestbedError: as `make_folder` and `whole_file`.
    """
    from safetensors.numpy import save  # here, since a UE has no safetensors

    arrays = {name: np.ascontiguousarray(getattr(head, name)) for name in head.info.shapes}
    make_folder(directory)
    for name, content in ((WEIGHTS, save(arrays)), (INFO, _json(head.info))):
        with whole_file(directory / name) as part:
            part.write_bytes(content)


def load_head(directory: Path) -> DecisionHead:
    """Read a head from a directory.

    Raises:
        ModelError: no head there, or a malformed file.
    """
    from safetensors import SafetensorError  # here, since a UE has no safetensors
    from safetensors.numpy import load

    path = directory / INFO
    try:
        info = msgspec.json.decode(file_bytes(path), type=HeadInfo)
        path = directory / WEIGHTS
        arrays: dict[str, NDArray[Any]] = load(file_bytes(path, MOST_WEIGHTS))
        if arrays.keys() != info.shapes.keys():
            raise BadInput(f"it must hold {', '.join(info.shapes)}, not {', '.join(sorted(arrays)) or 'nothing'}")
        return DecisionHead(info, **arrays)
    except OSError as exc:
        raise ModelError(f"no decision head in {directory}: {path.name}: {exc.strerror or exc}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, SafetensorError, BadInput) as exc:
        raise ModelError(f"{path} is not part of a decision head: {exc}") from exc


def check_fits(
    info: HeadInfo,
    *,
    target_fingerprint: str | None = None,
    drafter_fingerprint: str | None = None,
    target_hidden: int | None = None,
    drafter_hidden: int | None = None,
    hidden_bits: int | None = None,
    states: Reading | None = None,
) -> None:
    """Check that a head was trained for the given models and hidden states. None: unknown, not checked.

    Raises:
        ModelError: another model, or hidden states of another size, number of bits or position.
    """
    quantisation = f" ({info.drafter_quantisation})" if info.drafter_quantisation else ""
    for side, note, fingerprint, hidden in (
        ("target", "", target_fingerprint, target_hidden),
        ("drafter", quantisation, drafter_fingerprint, drafter_hidden),
    ):
        trained, size = getattr(info, f"{side}_fingerprint"), getattr(info, f"{side}_hidden")
        if fingerprint is not None and fingerprint != trained:
            given = fingerprint or "unknown"
            raise ModelError(f"this head was trained for {side} {trained}{note}, not for {side} {given}")
        if hidden is not None and hidden != size:
            raise ModelError(f"this head takes {side} states of size {size}, and this {side}'s have {hidden}")
    if hidden_bits is not None and hidden_bits != info.hidden_bits:
        raise ModelError(f"this head was trained on drafter states of {info.hidden_bits} bits, not of {hidden_bits}")
    if states is not None and states != info.states:
        raise ModelError(f"this head reads the states {TEXTS[info.states]}, and this UE uploads those {TEXTS[states]}")


def _json(info: HeadInfo) -> bytes:
    return msgspec.json.format(msgspec.json.encode(info), indent=2) + b"\n"
