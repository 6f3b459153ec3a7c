"""Energy of a run: power samples integrated over its rounds, and the energy columns of its summary rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from testbed.power.accounting import Spans, account, heat, shared_s
from testbed.power.series import Samples
from testbed.protocols import TARGET_ONLY
from testbed.protocols.methods import run_method
from testbed.ue.records import RequestRecord, RoundRecord

PARTS = ("draft_j", "link_j", "wait_j", "other_j")
"""Parts of `energy_j`, in order of time."""
MOST_UNKNOWN_S = 1e-6
"""Longest gap in the power samples for which a round's energy is still computed."""


def measured(requests: Sequence[RequestRecord], samples: Samples) -> list[RequestRecord]:
    """Requests with energy, temperature and throttling of their rounds; rounds without time stamps are unchanged.

    Args:
        requests: all requests of a run, since concurrent rounds share the power.
        samples: power samples in Unix time.
    """
    known = _timed(requests)
    if not known:
        return list(requests)
    links = [_link_shares(request) for request in requests]
    spans = _spans([(requests[n].rounds[at], requests[n].clock_unix_s or 0.0, links[n][at]) for n, at in known])
    found = account(samples, spans)
    temps, reasons = heat(samples, spans.begin_s, spans.end_s)
    rounds = [list(request.rounds) for request in requests]
    for i, (number, at) in enumerate(known):
        gap_s = max(0.0, float(found.unknown_s[i]))
        energies = {name: float(getattr(found, name)[i]) for name in ("energy_j", *PARTS)}
        rounds[number][at] = replace(
            rounds[number][at],
            **(energies if gap_s <= MOST_UNKNOWN_S else dict.fromkeys(energies)),
            power_gap_s=gap_s,
            temp_c=None if np.isnan(temps[i]) else float(temps[i]),
            throttled=reasons[i],
        )
    return [replace(request, rounds=own) for request, own in zip(requests, rounds, strict=True)]


def _timed(requests: Sequence[RequestRecord]) -> list[tuple[int, int]]:
    """Rounds with time stamps: indices of their requests and within them."""
    return [
        (number, at)
        for number, request in enumerate(requests)
        for at, record in enumerate(request.rounds)
        if request.clock_unix_s is not None and None not in (record.begin_s, record.verdict_s, record.end_s)
    ]


def _link_shares(request: RequestRecord) -> list[tuple[float, float]]:
    """Fractions of each round's waiting time spent on the link and at the BS.

    For `target-only`, whose link time is booked entirely on the first round, they are those of the whole request.
    """
    times = [((r.verdict_s or 0.0) - _sent_s(r), r.link_s, r.queue_s + r.verify_s + r.judge_s) for r in request.rounds]
    if request.rounds and request.rounds[0].protocol == TARGET_ONLY:
        waits, links, works = (sum(column) for column in zip(*times, strict=True))
        times = [(waits, links, works)] * len(times)
    shares = []
    for wait_s, link_s, bs_s in times:
        whole_s = max(wait_s, link_s + bs_s)
        shares.append((link_s / whole_s, bs_s / whole_s) if whole_s > 0 else (0.0, 0.0))
    return shares


def _sent_s(record: RoundRecord) -> float:
    """Start of a round's wait; of a window that was sent ahead, the start of the round."""
    return max(record.begin_s or 0.0, record.sent_s or 0.0)


def _spans(rounds: Sequence[tuple[RoundRecord, float, tuple[float, float]]]) -> Spans:
    """Time stamps of rounds in Unix time."""
    columns = np.array(
        [
            (r.begin_s, (r.begin_s or 0.0) + r.draft_s, _sent_s(r), r.verdict_s, r.end_s, *shares)
            for r, _, shares in rounds
        ],
        np.float64,
    ).T
    columns[:5] += np.array([zero_s for _, zero_s, _ in rounds])
    columns[1] = np.minimum(columns[1], columns[2])  # equal except for rounding
    return Spans(*columns)


def idle_energies(requests: Sequence[RequestRecord], idle_w: float | None) -> list[float | None]:
    """Energy [J] of an idle device in the time of each request's rounds; concurrent rounds share it like the measured
    one.

    Args:
        requests: all requests of a run.
        idle_w: power of the idle device before the run; None: not measured, and so are the energies.
    """
    if idle_w is None:
        return [None] * len(requests)
    known = _timed(requests)
    zeros_s = np.array([requests[number].clock_unix_s or 0.0 for number, _ in known])
    rounds = [requests[number].rounds[at] for number, at in known]
    begin_s, end_s = (
        np.array([getattr(r, name) for r in rounds], np.float64) + zeros_s for name in ("begin_s", "end_s")
    )
    found = [0.0] * len(requests)
    for (number, _), time_s in zip(known, shared_s(begin_s, end_s).tolist(), strict=True):
        found[number] += idle_w * time_s
    return list(found)


def energy_columns(
    method: str, requests: Sequence[RequestRecord], idle_j: Sequence[float | None] = ()
) -> dict[str, Any]:
    """Energy columns of a row of `summary.json`; empty if power was not measured.

    Means are over `energy_requests`, the requests with known energy in all rounds. `colocated` has none, since its
    drafting on this device represents work of the BS.

    Args:
        idle_j: energy of the idle device in each request's time, see `idle_energies`; empty: unknown.
    """
    rounds = [record for request in requests for record in request.rounds]
    gaps_s = [record.power_gap_s for record in rounds if record.power_gap_s is not None]
    if not gaps_s:
        return {}
    throttled = [record.throttled for record in rounds if record.throttled is not None]
    places = [i for i, r in enumerate(requests) if r.rounds and all(one.energy_j is not None for one in r.rounds)]
    known = [] if run_method(method).on_bs else [requests[i] for i in places]
    inside = [record for request in known for record in request.rounds]
    means = {name: _mean([getattr(r, name) for r in inside], len(known)) for name in ("energy_j", *PARTS)}
    energy_j, tokens = means["energy_j"], sum(record.committed for record in inside)
    idle = [one for i in places if (one := idle_j[i] if idle_j else None) is not None]
    above = energy_j - sum(idle) / len(known) if energy_j is not None and len(idle) == len(known) else None
    return {
        **means,
        "energy_per_token_j": None if energy_j is None or not tokens else energy_j * len(known) / tokens,
        "above_idle_j": above,
        "energy_requests": len(known),
        "power_gap_s": sum(gaps_s),
        "throttled_rounds": sum(map(bool, throttled)) if throttled else None,
    }


def _mean(values: Sequence[float], requests: int) -> float | None:
    return sum(values) / requests if requests else None
