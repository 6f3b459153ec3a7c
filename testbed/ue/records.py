"""Records that a UE writes: one per round, one per request."""

from __future__ import annotations

import msgspec

from testbed.channel.csi import Csi
from testbed.protocols.messages import NO_HINT


class RoundRecord(msgspec.Struct, frozen=True):
    """One round of one request. Durations are in seconds; their sum is the round's share of the latency."""

    round: int
    protocol: str
    base_len: int
    """Committed prefix before the round, prompt included."""
    drafted: int
    accepted: int
    committed: int
    """Tokens that the round added to the output, including correction or bonus token, without those after its end."""
    candidates: int
    queried: int
    batch_size: int
    draft_s: float
    link_s: float
    """Time from send to verdict minus the BS's own time: the link and the sockets at both ends."""
    queue_s: float
    verify_s: float
    judge_s: float
    overhead_s: float
    """The rest of the time: software on both sides."""
    uplink_bytes: int
    downlink_bytes: int
    gap: float
    """Logit gap of the token that the target added (see `Verdict.gap`)."""
    others_drafted: int = 0
    """Drafted tokens of other sessions in the pass that verified the round, if the session asked (`Open.load`)."""
    csi: Csi | None = None
    choice: str = ""
    """Why `auto` chose this protocol."""
    wasted_s: float = 0.0
    """Time spent drafting tokens that were not accepted, those left out of the window included: their number times the
    mean drafting time per token of the round, without prefill (WISP eqs. 7, 8)."""
    hint: int = NO_HINT
    """Window for the next round that the verdict hinted; 0: the BS decodes alone, `NO_HINT`: no hint."""
    begin_s: float | None = None
    """Times on the UE's monotonic clock: begin of the round (and of drafting, which takes `draft_s`), window sent,
    verdict received, end of the round."""
    sent_s: float | None = None
    verdict_s: float | None = None
    end_s: float | None = None
    energy_j: float | None = None
    """Energy of the device from `begin_s` to `end_s`, followed by its parts: drafting, waiting for the link, waiting
    for the BS (queue, verification, judging), the rest. None: not measured, or not throughout."""
    draft_j: float | None = None
    link_j: float | None = None
    wait_j: float | None = None
    other_j: float | None = None
    power_gap_s: float | None = None
    """Time of the round without power samples; None: power was not measured."""
    temp_c: float | None = None
    """Temperature of the device's hottest zone."""
    throttled: str | None = None
    """Cause of throttling, as in `power.Reading`; empty: none."""
    lookahead: int = 0
    """Windows that were drafted ahead of the verdict, at most."""
    drafted_ahead: int = 0
    void: int = 0
    """Tokens drafted while this round waited for its verdict, the guess of the next token included, and those of them
    that the verdict made void."""
    hidden_s: float = 0.0
    """Time of this round that had passed when the round before it ended: drafting ahead, and waiting after that. The
    durations above do not include it."""
    streamed: bool = False
    """Whether the target decoded without waiting for windows, and those that came joined its output."""
    kept: int = 0
    """Number of accepted candidates. If the window was cut short, the candidate that ended it was judged too, later
    ones were not."""


class RequestRecord(msgspec.Struct, frozen=True):
    """One request: a prompt and its output."""

    prompt_len: int
    token_ids: list[int]
    finish_reason: str
    """`stop` or `length`."""
    latency_s: float
    uplink_bytes: int
    """Bytes of all rounds and of opening the session."""
    downlink_bytes: int
    rounds: list[RoundRecord]
    clock_unix_s: float | None = None
    """Unix time at zero of the UE's monotonic clock; None: virtual time."""


def remaining(hidden_s: float, *parts_s: float) -> list[float]:
    """Durations that follow each other, without their first `hidden_s`."""
    left = []
    for part_s in parts_s:
        cut_s = min(max(part_s, 0.0), hidden_s)
        hidden_s -= cut_s
        left.append(part_s - cut_s)
    return left
