"""Fits a device profile to the rounds of a field run, for predictions in virtual time.

Training and prediction data are disjoint. Drafting and verification times of a method are fitted to its other repeats
at the same place, which have other prompts but the same thermal and load conditions; without other repeats, to the
other places. Software overhead on the link is fitted to other places, so that an error in a place's link model shows up
and is not absorbed as overhead; without other places, to the other repeats. A run with neither has no prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.channel.cost import Sizes
from testbed.channel.csi import Csi
from testbed.channel.link_model import Schedule
from testbed.channel.trace import Trace
from testbed.errors import TestbedError
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.experiments.runs.calibrate import column, line
from testbed.protocols import PROTOCOLS, TARGET_ONLY
from testbed.protocols.methods import round_trips
from testbed.protocols.quantise import FULL_BITS, quantised

Row = Mapping[str, Any]
"""A row of `rounds.parquet`, with `place`."""
Expected = Callable[[Row], float]
"""Expected time of a round on the link in seconds, without software overhead."""


def field_profile(
    computed: Sequence[Row],
    elsewhere: Sequence[Row],
    expected: Expected,
    padded: Profile | None,
    hidden_bits: int = FULL_BITS,
) -> Profile:
    """Fit one method's rounds: drafting and verification linear in tokens, constant software overhead per message.

    Args:
        computed: rounds to fit drafting and verification times to.
        elsewhere: rounds to fit the software overhead to, beyond the expected time on the link.
        padded: profile that messages were padded to; None: no padding.
        hidden_bits: bits per element of transmitted hidden states.

    Raises:
        TestbedError: no rounds.
    """
    if not computed or not elsewhere:
        raise TestbedError("a device profile cannot be fitted: the field run has no rounds")
    sizes = quantised(padded.sizes, hidden_bits) if padded is not None and padded.sizes is not None else None
    places = ", ".join(dict.fromkeys(str(row["place"]) for row in elsewhere))
    return Profile(
        name="field",
        about="the UE and the base station of a field run",
        source=f"{len(computed)} rounds at {computed[0]['place']}; software overhead: {len(elsewhere)} at {places}",
        assumptions=("Times are linear in tokens; software overhead is the same for every message.",),
        draft=_draft(computed),
        verify=_verify(computed),
        stack_s=_stack_s(elsewhere, expected),
        vocab_size=padded.vocab_size if padded is not None else None,
        hidden_size=padded.hidden_size if padded is not None else None,
        overhead_up_bits=_overhead_bits(elsewhere, "uplink", sizes),
        overhead_down_bits=_overhead_bits(elsewhere, "downlink", sizes),
    )


def by_rounds(row: Row) -> float:
    """Expected time on the link from the channel state recorded in the round (WISV eqs. 6, 10)."""
    if row["csi_uplink_mbps"] is None:
        raise TestbedError("the rounds have no channel state, which the expected time on the link needs")
    state = Csi(*(row[f"csi_{name}"] for name in ("uplink_mbps", "downlink_mbps", "rtt_ms", "per_up", "per_down")))
    up = 1 / (state.uplink_mbps * (1 - state.per_up))
    down = 1 / (state.downlink_mbps * (1 - state.per_down))
    return _link_s(row, state.rtt_ms, up, down)


def by_traces(traces: Mapping[str, Trace]) -> Expected:
    """Expected time on the emulated links from the sending time of a round's window (`sent_s` and `origin_s` of a row
    are on the same clock). Messages wait until the end of an outage.
    """
    known = {place: (_schedule(trace, "up"), _schedule(trace, "down")) for place, trace in traces.items()}

    def expected(row: Row) -> float:
        up, down = known[str(row["place"])]
        sent_s = max(0.0, (row["sent_s"] or 0.0) - (row["origin_s"] or 0.0))
        trips_s = (_trips(row) - 1) * 2 * up.delay_s[up.piece(sent_s)[0]]
        arrived_s = _through_s(up, sent_s, 8 * row["uplink_bytes"]) + trips_s
        return _through_s(down, arrived_s, 8 * row["downlink_bytes"]) - sent_s

    return expected


def _schedule(trace: Trace, way: str) -> Schedule:
    rates = trace.uplink_mbps if way == "up" else trace.downlink_mbps
    per = trace.per_up if way == "up" else trace.per_down
    delay_s = (trace.rtt_ms / 2e3).tolist()
    return Schedule(trace.t_s.tolist(), rates.tolist(), delay_s, per.tolist(), trace.duration_s)


def _through_s(way: Schedule, start_s: float, bits: float) -> float:
    """Arrival time of bits sent at `start_s`, with retransmission of losses."""
    index = way.piece(start_s)[0]
    return way.served_s(start_s, bits / (1 - way.per[index])) + way.delay_s[index]


def _link_s(row: Row, rtt_ms: float, up_us: float, down_us: float) -> float:
    bits_us = 8 * (row["uplink_bytes"] * up_us + row["downlink_bytes"] * down_us)
    return float(_trips(row) * rtt_ms * 1e-3 + bits_us * 1e-6)


def _trips(row: Row) -> int:
    return round_trips(row["protocol"], row["queried"])


# ---------------------------------------------------------------- parts of the profile


def _draft(rounds: Sequence[Row]) -> LinearDraft:
    """Drafting time: base and per token from later rounds, prefill from first rounds."""
    drafted = [row for row in rounds if row["drafted"] > 0]
    later = [row for row in drafted if row["round"] > 0] or drafted
    if not later:
        return LinearDraft(per_token_s=0.0)
    base_s, per_token_s = _line(column(later, "drafted"), column(later, "draft_s"))
    prefill_s = 0.0
    if first := [row for row in drafted if row["round"] == 0]:
        opening = column(first, "draft_s") - base_s - per_token_s * column(first, "drafted")
        prefill_s = max(0.0, float(np.median(opening / np.maximum(1, column(first, "base_len")))))
    return LinearDraft(per_token_s=per_token_s, base_s=base_s, prefill_per_token_s=prefill_s)


def _verify(rounds: Sequence[Row]) -> LinearVerify:
    """Verification time: base and per new token. New tokens are the window and the last token; at first, the prefix."""
    new = np.array([row["drafted"] + (1 if row["round"] else row["base_len"]) for row in rounds], np.float64)
    base_s, per_new_s = _line(new, column(rounds, "verify_s"))
    return LinearVerify(base_s=base_s, per_new_s=per_new_s)


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Least-squares line with non-negative intercept and slope; if all x are equal, the intercept is 0."""
    if x.max() == x.min():
        return (0.0, float(y.mean() / x[0])) if x[0] > 0 else (float(y.mean()), 0.0)
    return line(x, y)


def _stack_s(rounds: Sequence[Row], expected: Expected) -> float:
    """Software overhead per message and direction."""
    later = [row for row in rounds if row["round"] > 0] or list(rounds)
    spent = sum(float(np.sum(column(later, name))) for name in ("link_s", "queue_s", "judge_s", "overhead_s"))
    ways = 2 * sum(map(_trips, later))
    return max(0.0, (spent - sum(map(expected, later))) / ways)


def _overhead_bits(rounds: Sequence[Row], way: str, sizes: Sizes | None) -> int:
    """Bits of a message beyond its payload; 0 without padding, where messages are counted at full size."""
    known = [row for row in rounds if row["protocol"] != TARGET_ONLY and row["drafted"] > 0 and row["round"] > 0]
    if sizes is None or not known:
        return 0
    beyond = []
    for row in known:
        payload = PROTOCOLS[row["protocol"]].payload(row["drafted"], row["queried"], sizes)
        bits, messages = getattr(payload, f"{way}_bits"), getattr(payload, f"{way}_messages")
        beyond.append((8 * row[f"{way}_bytes"] - bits) / messages)
    return max(0, round(float(np.median(beyond))))
