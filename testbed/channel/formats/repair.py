"""Repairs of converted traces: sorts rows, drops invalid ones, fills in missing values, and reports each repair."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.channel.trace import Array, Trace
from testbed.errors import BadInput

GAP_STEPS = 1.5
"""A step of more than this many median steps is a gap."""


@dataclass(frozen=True)
class Options:
    """Options of a conversion, with values for what a format lacks.

    Raises:
        BadInput: a value out of its range.
    """

    bin_s: float = 1.0
    """Width of a sample that aggregates single packets (mahimahi)."""
    run: int | None = None
    """Run to read from a file with several (Lumos5G); None: the first."""
    ratio: float | None = None
    """Uplink rate over downlink rate, used if only one was measured; None: `Format.ratio`."""
    rtt_ms: float = 30.0
    per: float = 0.0

    def __post_init__(self) -> None:
        if not (self.ratio is None or 0 < self.ratio < math.inf):
            raise BadInput(f"--ratio must be positive, not {self.ratio:g}")
        if not 0 <= self.rtt_ms < math.inf:
            raise BadInput(f"--rtt-ms must be finite and not negative, not {self.rtt_ms:g}")
        if not 0 <= self.per < 1:
            raise BadInput(f"--per must lie in [0, 1), not {self.per:g}")


@dataclass(frozen=True)
class Converted:
    """A trace, and notes on all repairs and assumptions."""

    trace: Trace
    notes: list[str]


def make_trace(found: dict[str, Array], options: Options, ratio: float, notes: list[str], name: str) -> Converted:
    """Make a trace from the columns of a file.

    `found` has `t_s` [s] and at least one of `up`, `down` [Mbit/s], and optionally `rtt` [ms], `per_up`, `per_down`,
    `snr` [dB]: arrays [n], nan where a row has no value. `ratio` is uplink over downlink, used if one is missing.
    Repairs are appended to `notes`; `name` is the file's.

    Raises:
        BadInput: no rates, or no usable row.
    """
    if "up" not in found and "down" not in found:
        raise BadInput(f"{name} has neither uplink nor downlink rates")
    if "up" not in found:
        found["up"] = found["down"] * ratio
        notes.append(f"uplink: took {ratio:g} × downlink (--ratio)")
    if "down" not in found:
        found["down"] = found["up"] / ratio
        notes.append(f"downlink: took uplink / {ratio:g} (--ratio)")
    found = _in_order(found, notes, name)
    n = found["t_s"].size
    for key in ("per_up", "per_down"):
        if key not in found:
            found[key] = np.full(n, options.per)
            notes.append(f"no {key}: took {options.per:g} from --per")
    found["rtt"] = _held(found.get("rtt", np.full(n, np.nan)), options.rtt_ms, notes)
    snr = found.get("snr", np.full(n, np.nan))
    if np.isnan(snr).any():
        notes.append(f"no SNR in {int(np.isnan(snr).sum())} of {n} samples: left empty")
    return Converted(
        Trace(found["t_s"], found["up"], found["down"], found["rtt"], found["per_up"], found["per_down"], snr), notes
    )


def _in_order(found: dict[str, Array], notes: list[str], name: str) -> dict[str, Array]:
    """Valid rows sorted by time, one per time, the first at 0 s."""

    def keep(mask: Any, what: str) -> None:
        nonlocal found
        if mask.dtype == bool and not mask.all():
            notes.append(f"{int((~mask).sum())} rows {what}")
        found = {key: values[mask] for key, values in found.items()}

    keep(np.isfinite(found["t_s"]), "without a valid time dropped")
    rates = np.minimum(found["up"], found["down"])  # nan if one of them is
    keep(
        (rates >= 0) & np.isfinite(found["up"]) & np.isfinite(found["down"]),
        "with a missing or negative rate dropped (sentinels)",
    )
    if not found["t_s"].size:
        raise BadInput(f"{name} has no usable row ({'; '.join(notes) or 'it is empty'})")
    early = int((found["t_s"] < np.maximum.accumulate(found["t_s"])).sum())
    if early:
        notes.append(f"{early} rows out of order sorted")
    keep(np.argsort(found["t_s"], kind="stable"), "")
    keep(np.diff(found["t_s"], append=np.inf) > 0, "with a repeated time dropped, the last one kept")
    found["t_s"] = found["t_s"] - found["t_s"][0]
    steps = np.diff(found["t_s"])
    if steps.size and steps.max() > GAP_STEPS * np.median(steps):
        i, gaps = int(steps.argmax()), int((steps > GAP_STEPS * np.median(steps)).sum())
        longest = f"{steps[i]:g} s at t={found['t_s'][i]:g} s"
        notes.append(f"gap of {longest} held" if gaps == 1 else f"{gaps} gaps held, the longest of {longest}")
    return found


def _held(rtt: Array, default: float, notes: list[str]) -> Array:
    """RTTs with missing values filled in: the previous value, before the first one the first, or else the default."""
    known = np.flatnonzero(~np.isnan(rtt) & (rtt >= 0))
    if not known.size:
        notes.append(f"no RTT: took {default:g} ms from --rtt-ms")
        return np.full(rtt.size, default)
    if known.size < rtt.size:
        notes.append(f"no RTT in {rtt.size - known.size} of {rtt.size} samples: the last known one held")
    last = np.maximum(np.searchsorted(known, np.arange(rtt.size), side="right") - 1, 0)
    filled: Array = rtt[known[last]]
    return filled
