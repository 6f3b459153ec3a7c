"""The exchange of one round (window sent, verdict received) and the record that it leads to."""

from __future__ import annotations

from typing import NamedTuple

from testbed.errors import ProtocolError
from testbed.protocols.base import Drafted
from testbed.protocols.codec import AnyArray, Packet, unpack_positions
from testbed.protocols.messages import Draft, NeedHidden, Verdict
from testbed.ue.records import RoundRecord


class Exchange(NamedTuple):
    """A window that was sent and its verdict, or a verdict that the BS sent while decoding alone."""

    verdict: Verdict
    arrays: dict[str, AnyArray]
    """Arrays of the verdict."""
    seconds: float
    """Time from sending the window to the verdict; when the BS decodes alone, from the previous verdict."""
    reveal_s: float
    """The part of `seconds` in which the UE answered a query for hidden states."""
    uplink_bytes: int
    downlink_bytes: int
    sent_s: float
    """Start, on the UE's clock."""

    @property
    def link_s(self) -> float:
        """Time on the link: `seconds` without the times of UE and BS."""
        return max(0.0, self.seconds - self.reveal_s - self.verdict.bs_s)


def asked_positions(packet: Packet[NeedHidden], window: int) -> list[int]:
    """Positions in a window of `window` tokens whose hidden states the BS requests.

    Raises:
        ProtocolError: none, or positions outside the window.
    """
    packed = packet.arrays.get("positions")
    if packed is None:
        raise ProtocolError("NeedHidden without positions")
    return unpack_positions(packed, packet.message.count, window)


def record_of(
    kind: str,
    draft: Draft,
    exchange: Exchange,
    drafted: Drafted,
    committed: int,
    span_s: tuple[float, float],
    drafting_s: float,
) -> RoundRecord:
    """The record of a finished round.

    Args:
        kind: kind of the protocol.
        draft: the draft that was sent, or its substitute if the BS decoded alone.
        drafted: the window, empty if the BS decoded alone.
        committed: number of tokens added to the output.
        span_s: begin and end of the round.
        drafting_s: time spent on the drafted tokens.
    """
    verdict, (begin_s, end_s), count = exchange.verdict, span_s, len(drafted.ids)
    paid = count + drafted.left_out
    parts_s = (exchange.link_s, verdict.queue_s, verdict.verify_s, verdict.judge_s)
    return RoundRecord(
        round=draft.round, protocol=kind, base_len=draft.base_len, csi=draft.csi, drafted=count, committed=committed,
        accepted=verdict.accepted, kept=verdict.kept, candidates=verdict.candidates, queried=verdict.queried,
        batch_size=verdict.batch_size, gap=verdict.gap, hint=verdict.window,
        draft_s=draft.draft_s, wasted_s=drafting_s * (1 - verdict.accepted / paid) if paid else 0.0,
        link_s=exchange.link_s, queue_s=verdict.queue_s, verify_s=verdict.verify_s, judge_s=verdict.judge_s,
        overhead_s=max(0.0, end_s - begin_s - draft.draft_s - sum(parts_s)),
        uplink_bytes=exchange.uplink_bytes, downlink_bytes=exchange.downlink_bytes,
        begin_s=begin_s, sent_s=exchange.sent_s, verdict_s=exchange.sent_s + exchange.seconds, end_s=end_s,
    )  # fmt: skip
