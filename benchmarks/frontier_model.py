"""Speed of each series of a sweep in virtual time beside the speed that the models of `optim/draft_window` expect.

The models get the drafting time and the pass times of the profile, RTT and rate of the point, and the acceptance rate
of the run: by position in windows, one for all tokens of a stream. Windows and `lookahead` are as configured; a stream
is expected to be as fast as its best setting. `auto`, which may not draft at all, gets the acceptance rate of `stream`
at the same point; under FH and SH, which have no streams, it has no expected speed. A rejection under SH costs the trip
of the hidden states that the base station asks for.

Run: python benchmarks/frontier_model.py SWEEP_DIRECTORY [--rows FILE.csv]
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support.points import value_of

from testbed.experiments.inputs.profile import PassWork, Profile, load_profile
from testbed.experiments.report.data import RowSource
from testbed.experiments.results.files import read_requests, read_rounds
from testbed.experiments.sweep.report import load_all
from testbed.optim.draft_window.lookahead import Waits, response_s
from testbed.optim.draft_window.streams import StreamSetting, StreamTimes, stream_token_s
from testbed.protocols.messages import MOST_JOINING
from testbed.ue.windows.stream_choice import CHUNKS


class Measured(NamedTuple):
    """Sums over the requests of a point."""

    tokens: int
    seconds: float
    lengths: tuple[int, ...]
    """Tokens of each request."""
    alpha: float
    """Acceptance rate of a drafted token if those before it are accepted."""
    by_position: tuple[float, ...]
    """The same of each position in a window."""
    up_bytes: float
    """Mean of a round, the prompt included, without what the base station asks for."""
    asked_bytes: float = 0.0
    """Mean of what it asks for after a rejection."""


NO_STREAMS = ("fh", "sh")
STREAMS = ("stream", "auto, target waits", "auto")


def measured(part: RowSource) -> Measured:
    """Sums of a point; in streams a miss is a round that made drafted tokens void."""
    requests, rounds = read_requests(part.directory), read_rounds(part.directory)
    lengths = requests["tokens"].to_pylist()
    tokens = sum(lengths)
    drafted, accepted, void = (rounds[name].to_pylist() for name in ("drafted", "accepted", "void"))
    if part.row["series"] in STREAMS:
        alpha = 1 - sum(bool(one) for one in void) / tokens
    else:
        misses = sum(took < had for took, had in zip(accepted, drafted, strict=True))
        alpha = sum(accepted) / max(1, sum(accepted) + misses)
    up, asked = _bytes(rounds, sum(requests["uplink_bytes"].to_pylist()))
    seconds, rates = sum(requests["latency_s"].to_pylist()), _by_position(drafted, accepted)
    return Measured(tokens, seconds, tuple(lengths), alpha, rates, up, asked)


def _bytes(rounds: Any, total: int) -> tuple[float, float]:
    """Mean uplink bytes of a round, and of what is asked for in the rounds that have a second exchange."""
    sent, queried = rounds["uplink_bytes"].to_pylist(), rounds["queried"].to_pylist()
    plain = [one for one, count in zip(sent, queried, strict=True) if not count]
    second = len(sent) - len(plain)
    asked = (sum(sent) - len(sent) * sum(plain) / len(plain)) / second if second and plain else 0.0
    return (total - asked * second) / len(sent), asked


def _by_position(drafted: Sequence[int], accepted: Sequence[int]) -> tuple[float, ...]:
    """Acceptance rate of each position that was reached; empty: nothing was drafted."""
    rates = []
    for place in range(max(drafted)):
        reached = [took > place for took, had in zip(accepted, drafted, strict=True) if had > place and took >= place]
        if not reached:
            break
        rates.append(sum(reached) / len(reached))
    return tuple(rates)


def expected_s(row: dict[str, Any], found: Measured, profile: Profile) -> float:
    """Time of all requests by the models."""
    draft_s, window, lookahead = profile.draft.window_s(1, 1), row["window"], row["lookahead"]
    pass_s = profile.verify.pass_s([PassWork(0, 1, 0)])
    link_s = row["rtt_ms"] / 1e3 + 8 * found.up_bytes / (row["uplink_mbps"] * 1e6)
    if row["series"] == "target-only":
        return found.tokens * pass_s + len(found.lengths) * link_s
    if row["series"] in STREAMS:
        waiting = (True, False) if row["series"] == "auto" else (True,)
        settings = [StreamSetting(c, a, w) for c in CHUNKS for a in (c, MOST_JOINING * c) for w in waiting]
        times = StreamTimes(draft_s, link_s, pass_s)
        best_s = min(stream_token_s(one, found.alpha, times, window) for one in settings)
        alone_s = pass_s if row["series"] == "auto" else best_s
        return found.tokens * min(best_s, alone_s) + len(found.lengths) * link_s
    verify_s = profile.verify.pass_s([PassWork(window, window + 1, 0)])
    again_s = row["rtt_ms"] / 1e3 + 8 * found.asked_bytes / (row["uplink_mbps"] * 1e6) if found.asked_bytes else 0.0
    waits = Waits(draft_s, link_s + verify_s, verify_s, again_s)
    return sum(response_s(one, window, found.by_position, waits, lookahead or 0) for one in found.lengths)


def main() -> None:
    """Print a line of CSV for each point, and write them to a file as well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--rows", type=Path)
    options = parser.parse_args()
    (shown,) = load_all([options.sweep])
    rows, alphas = list[dict[str, Any]](), dict[tuple[Any, ...], float]()
    for part in sorted(shown.parts, key=lambda part: part.row["series"] == "auto"):
        row = part.row
        if row["series"] == "auto" and row["method"] in NO_STREAMS:
            continue
        found = measured(part)
        profile = value_of(part, "profile")
        place = (profile, row["rtt_ms"], row["uplink_mbps"])
        if row["series"] == "auto":
            found = found._replace(alpha=alphas.get(place, found.alpha))
        elif row["series"] == "stream":
            alphas[place] = found.alpha
        seconds = expected_s(row, found, load_profile(profile))
        rows.append({
            "method": row["method"], "profile": profile, "rtt_ms": row["rtt_ms"], "uplink_mbps": row["uplink_mbps"],
            "series": row["series"],
            "alpha": round(found.alpha, 3), "tokens_per_s": round(found.tokens / found.seconds, 2),
            "model_tokens_per_s": round(found.tokens / seconds, 2), "ratio": round(found.seconds / seconds, 3),
        })  # fmt: skip
    for file in [sys.stdout, *([options.rows.open("w", newline="")] if options.rows else [])]:
        out = csv.DictWriter(file, list(rows[0]))
        out.writeheader()
        out.writerows(rows)


if __name__ == "__main__":
    main()
