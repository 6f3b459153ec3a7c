"""What a UE writes down: one record a round, one a request."""

from __future__ import annotations

import msgspec

from testbed.channel.csi import Csi
from testbed.protocols.messages import NO_HINT


class RoundRecord(msgspec.Struct, frozen=True):
    """One round of one request; durations in seconds. Their sum is the round's share of the latency."""

    round: int
    protocol: str
    base_len: int
    """Committed prefix before the round, prompt included."""
    drafted: int
    accepted: int
    committed: int
    """Tokens that the round added to the output, correction or bonus included, cut at the end of the output."""
    candidates: int
    queried: int
    batch_size: int
    draft_s: float
    link_s: float
    """Time between send and verdict that the BS does not account for: the link and both ends' sockets."""
    queue_s: float
    verify_s: float
    judge_s: float
    overhead_s: float
    """The rest: software on both sides."""
    uplink_bytes: int
    downlink_bytes: int
    gap: float
    """Logit gap of the token that the target added (see `Verdict.gap`)."""
    csi: Csi | None = None
    choice: str = ""
    """Why `auto` took this protocol."""
    wasted_s: float = 0.0
    """Time spent drafting tokens that did not stay: their number times the round's mean drafting time of a token,
    the prompt's left out (WISP eqs. 7, 8)."""
    hint: int = NO_HINT
    """Window that the verdict hinted for the next round; 0: the BS goes on alone, `NO_HINT`: none."""
    begin_s: float | None = None
    """Instants on the UE's monotonic clock: the round began (drafting, for `draft_s`), its window was sent, the verdict
    was there, the round was over."""
    sent_s: float | None = None
    verdict_s: float | None = None
    end_s: float | None = None
    energy_j: float | None = None
    """Energy of the device from `begin_s` to `end_s`, and its parts: drafting, waiting for the link, waiting for the BS
    (queue, verification, judgement), the rest. None: not measured, or not throughout."""
    draft_j: float | None = None
    link_j: float | None = None
    wait_j: float | None = None
    other_j: float | None = None
    power_gap_s: float | None = None
    """Time of the round that no sample of power tells of; None: power was not measured."""
    temp_c: float | None = None
    """Of the device's hottest zone."""
    throttled: str | None = None
    """Why the device was slower than it could be, as `power.Reading` has it; empty: it was not."""
    kept: int = 0
    """Candidates that stayed. Where a window was cut short, the one that ended it was judged too, later ones were
    not."""


class RequestRecord(msgspec.Struct, frozen=True):
    """One decoded prompt."""

    prompt_len: int
    token_ids: list[int]
    finish_reason: str
    """`stop` or `length`."""
    latency_s: float
    uplink_bytes: int
    """All rounds, and the opening of the session."""
    downlink_bytes: int
    rounds: list[RoundRecord]
    clock_unix_s: float | None = None
    """Unix time of the zero of the UE's monotonic clock; None: the clock is a virtual one."""
