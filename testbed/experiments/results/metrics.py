"""Metrics as the field reports them: acceptance as vLLM and llama.cpp define it, token times, speed-up, bytes a token.

`docs/reference/metrics.md` has the formulas, and whose names they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from testbed.intervals import LEAST_VALUES
from testbed.protocols import TARGET_ONLY
from testbed.protocols.methods import COLOCATED
from testbed.ue.records import RequestRecord
from testbed.ue.run import Outcome

TAILS = (50, 95, 99)
"""Percentiles of times between tokens."""
BASES = {"speedup_target_only": TARGET_ONLY, "speedup_colocated": COLOCATED}
"""Columns of speed-up and the methods that they compare with."""


class RequestTimes(msgspec.Struct, frozen=True):
    """Times of one request in seconds, from its arrival; waiting for a free place is included."""

    ttft_s: float
    """Time to the first tokens."""
    latency_s: float
    tokens: int
    gaps_s: list[float]
    """Times between arrivals of tokens: one for each round after the first."""

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None for one token."""
        return (self.latency_s - self.ttft_s) / (self.tokens - 1) if self.tokens > 1 else None


def times_of(record: RequestRecord, latency_s: float) -> RequestTimes:
    """Times of a request that took `latency_s` from its arrival, by the ends of its rounds."""
    ends_s = [one.end_s for one in record.rounds if one.committed and one.end_s is not None]
    return times_from(ends_s, latency_s, len(record.token_ids))


def times_from(ends_s: Sequence[float], latency_s: float, tokens: int) -> RequestTimes:
    """Times of a request by the ends of its rounds that committed, at least one."""
    arrived_s = ends_s[-1] - latency_s
    gaps_s = [after - before for before, after in itertools.pairwise(ends_s)]
    return RequestTimes(ends_s[0] - arrived_s, latency_s, tokens, gaps_s)


class DraftedRound(Protocol):
    """A round as far as acceptance goes, such as a `RoundRecord`."""

    @property
    def drafted(self) -> int:
        """Tokens of the window."""

    @property
    def accepted(self) -> int:
        """Leading tokens of it that were accepted."""


def acceptance_columns(rounds: Sequence[DraftedRound]) -> dict[str, Any]:
    """Acceptance over the rounds that drafted; None if none did."""
    pairs = np.array([(r.drafted, r.accepted) for r in rounds if r.drafted], np.int64).reshape(-1, 2)
    names = ("acceptance", "acceptance_cond", "mean_accepted", "mean_acceptance_length", "acceptance_by_position")
    if not len(pairs):
        return dict.fromkeys(names)
    drafted, accepted = pairs.T
    mean = float(accepted.mean())
    positions = np.arange(1, drafted.max() + 1)
    shares = (accepted[:, None] >= positions).mean(axis=0).tolist()
    alpha = accepted.sum() / (accepted.sum() + (accepted < drafted).sum())
    return dict(zip(names, (float(accepted.sum() / drafted.sum()), float(alpha), mean, 1 + mean, shares), strict=True))


def time_columns(records: Sequence[RequestRecord]) -> dict[str, float | None]:
    """Token times: means of TTFT and TPOT over requests, mean and percentiles of the times between tokens; None if the
    rounds have no time stamps, or a percentile rests on too few values.
    """
    known = all(
        any(r.committed for r in one.rounds) and all(r.end_s is not None for r in one.rounds) for one in records
    )
    times = [times_of(one, one.latency_s) for one in records] if known else []
    gaps_s = [gap_s for one in times for gap_s in one.gaps_s]
    return {
        "ttft_s": _mean([one.ttft_s for one in times]),
        "tpot_s": _mean([one.tpot_s for one in times if one.tpot_s is not None]),
        "itl_s": _mean(gaps_s),
        **{f"itl_p{share}_s": _percentile(gaps_s, share) for share in TAILS},
    }


def byte_columns(records: Sequence[RequestRecord]) -> dict[str, float | None]:
    """Bytes per committed token; None without tokens."""
    tokens = sum(len(one.token_ids) for one in records)
    up, down = sum(one.uplink_bytes for one in records), sum(one.downlink_bytes for one in records)
    return {
        "uplink_bytes_per_token": up / tokens if tokens else None,
        "downlink_bytes_per_token": down / tokens if tokens else None,
    }


def speedup_columns(mine: Sequence[Outcome], everyone: Sequence[Outcome]) -> dict[str, float | None]:
    """Total latency of the same requests by the target alone, and by speculation at the BS, over a method's; None where
    the run lacks one of them.
    """
    latency_s = sum(o.record.latency_s for o in mine)
    found: dict[str, float | None] = {}
    for column, base in BASES.items():
        theirs = {o.request: o.record.latency_s for o in everyone if o.method == base}
        whole = all(o.request in theirs for o in mine)
        found[column] = sum(theirs[o.request] for o in mine) / latency_s if whole and latency_s > 0 else None
    return found


def _percentile(values: Sequence[float], share: int) -> float | None:
    return float(np.percentile(values, share)) if len(values) >= LEAST_VALUES.get(share, 1) else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None
