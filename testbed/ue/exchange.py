"""What came of sending a window, and the record of its round."""

from __future__ import annotations

from typing import NamedTuple

from testbed.protocols.codec import AnyArray
from testbed.protocols.messages import Draft, Verdict
from testbed.ue.records import RoundRecord


class Parts(NamedTuple):
    """Fields of a `RoundRecord`, as they are named there."""

    link_s: float
    queue_s: float
    verify_s: float
    judge_s: float


class Exchange(NamedTuple):
    """What came of sending a window, or of listening for what the BS decodes alone."""

    verdict: Verdict
    arrays: dict[str, AnyArray]
    """The verdict's."""
    seconds: float
    """From sending the window to the verdict; alone, from the verdict before."""
    reveal_s: float
    """The UE's own part of that: answering for hidden states."""
    uplink_bytes: int
    downlink_bytes: int
    sent_s: float
    """When it began, on the UE's clock."""

    @property
    def parts_s(self) -> Parts:
        """Where its seconds went, the UE's own left out."""
        verdict = self.verdict
        link_s = max(0.0, self.seconds - self.reveal_s - verdict.bs_s)
        return Parts(link_s, verdict.queue_s, verdict.verify_s, verdict.judge_s)


def record_of(
    kind: str,
    draft: Draft,
    exchange: Exchange,
    drafted: int,
    committed: int,
    span_s: tuple[float, float],
    drafting_s: float,
) -> RoundRecord:
    """The record of a round that has just ended.

    Args:
        kind: of the protocol.
        draft: as it was sent, or what stands in for it where the BS decoded alone.
        drafted: tokens of the window.
        committed: tokens that it added to the output.
        span_s: when the round began and ended.
        drafting_s: what its drafted tokens took.
    """
    verdict, parts, (begin_s, end_s) = exchange.verdict, exchange.parts_s, span_s
    return RoundRecord(
        round=draft.round,
        protocol=kind,
        base_len=draft.base_len,
        drafted=drafted,
        accepted=verdict.accepted,
        committed=committed,
        candidates=verdict.candidates,
        queried=verdict.queried,
        batch_size=verdict.batch_size,
        draft_s=draft.draft_s,
        overhead_s=max(0.0, end_s - begin_s - draft.draft_s - sum(parts)),
        uplink_bytes=exchange.uplink_bytes,
        downlink_bytes=exchange.downlink_bytes,
        gap=verdict.gap,
        csi=draft.csi,
        wasted_s=drafting_s * (1 - verdict.accepted / drafted) if drafted else 0.0,
        hint=verdict.window,
        kept=verdict.kept,
        link_s=parts.link_s,
        queue_s=parts.queue_s,
        verify_s=parts.verify_s,
        judge_s=parts.judge_s,
        begin_s=begin_s,
        sent_s=exchange.sent_s,
        verdict_s=exchange.sent_s + exchange.seconds,
        end_s=end_s,
    )
