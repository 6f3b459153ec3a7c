"""Counters of the UEs of a cell between the end of the warm-up and the end of the run."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from testbed.clock import Clock
from testbed.ue.records import RequestRecord, RoundRecord

TOLERANCE_S = 1e-9
"""Tolerance for rounding errors of summed times."""


class ResponseSums(msgspec.Struct):
    """Sums over the responses whose latencies are counted."""

    input_tokens: int = 0
    output_tokens: int = 0
    uplink_bytes: int = 0
    """Bytes of their prompts and rounds."""

    def add(self, record: RequestRecord) -> None:
        """Count a response."""
        self.input_tokens += record.prompt_len
        self.output_tokens += len(record.token_ids)
        self.uplink_bytes += record.uplink_bytes


Watch = Callable[[float, bool], Callable[[], None]]
"""Called when a response begins that is due before the end of the run: its due time, and whether it began after the
warm-up. The result is called at its end."""


def unwatched(due_s: float, after_warmup: bool) -> Callable[[], None]:
    """A `Watch` that does nothing."""
    return lambda: None


class UeTally:
    """What one UE did between `from_s` and `to_s` on the clock.

    Args:
        watch: told of every response.
    """

    def __init__(self, clock: Clock, from_s: float, to_s: float, watch: Watch = unwatched) -> None:
        self._clock, self._from_s, self._to_s, self._watch = clock, from_s, to_s, watch
        self.bytes = {True: 0.0, False: 0.0}
        """Bytes delivered, by direction; True: uplink."""
        self.delays_s: list[float] = []
        """Delays of uplink messages sent within the time, from sending to arrival."""
        self.sent = 0
        """Uplink messages sent within the time."""
        self.tokens = self.rounds = self.drafted = 0
        """Committed tokens, rounds, and drafted tokens."""
        self.protocols: Counter[str] = Counter()
        """Rounds with drafted tokens by the protocol of their windows."""
        self.looked_ahead = self.drafted_ahead = self.void = 0
        """Rounds with lookahead, tokens drafted before a verdict was there, and those of them that it made void."""
        self.switches = 0
        """Changes of its window, protocol or θ by the controller of the cell."""
        self.accepted = self.rejected = self.kept = 0
        """Drafted tokens that were accepted, first rejections, and mismatches that a judge kept."""
        self.air_s = {True: 0.0, False: 0.0}
        """Time of the slots in which it sent and received."""
        self.band_s = {True: 0.0, False: 0.0}
        """The same, times its shares of the bandwidth."""
        self.csi_error_db, self.csi_known = 0.0, 0
        """Sum of the errors of the uplink rates that it knew, and their number."""
        self.answered = ResponseSums()
        self.busy_s = {"drafting": 0.0, "radio": 0.0, "verification": 0.0}
        """Time of its rounds by what it waited for."""
        self.computed_s = 0.0
        """Time in which its drafter computed, also while it waited for verdicts."""
        self.latencies_s: list[float] = []
        """Latencies of responses that began within the time and ended before the run."""
        self.judged = self.violated = 0
        """Responses that began within the time and were due before its end, and those of them that were late. One that
        began earlier, was due and has not ended by the end of the time counts as late: who is never served begins no
        others."""
        self.same, self.marks = list[bool](), list[tuple[bool, bool]]()
        """For each response that models decoded: whether it equals the target's own; whether its answer, and the answer
        of the target's own, are right."""
        self._deadlines: tuple[float, float] | None = None
        """Time from which the tokens of the response in progress are due, and their speed; None: never."""
        self._committed = 0
        """Tokens of the response in progress."""

    def __getstate__(self) -> dict[str, Any]:
        """What is counted, without clock and watch, for another process."""
        return {name: value for name, value in vars(self).items() if name not in ("_clock", "_watch")}

    @property
    def counting(self) -> bool:
        """Whether the time has begun and not ended."""
        return self._from_s <= self._clock.time() < self._to_s

    @property
    def due_s(self) -> float:
        """Time by which the next token of the response in progress is due; infinite without a guaranteed speed."""
        if self._deadlines is None:
            return math.inf
        from_s, speed_tps = self._deadlines
        return from_s + (self._committed + 1) / speed_tps

    def start(self, began_s: float, speed_tps: float | None) -> None:
        """Begin to decode the response that arrived at `began_s`."""
        self._deadlines, self._committed = None if speed_tps is None else (began_s, speed_tps), 0

    def round(self, record: RoundRecord) -> None:
        """Count a round that ends now."""
        self._committed += record.committed
        if self.counting:
            self.tokens += record.committed
            self.rounds += 1
            self.drafted += record.drafted
            self.protocols[record.protocol] += record.drafted > 0
            self.looked_ahead += record.lookahead
            self.drafted_ahead += record.drafted_ahead
            self.void += record.void
            self.accepted += record.accepted
            self.kept += record.kept
            self.rejected += record.accepted < record.drafted
            self.busy_s["drafting"] += record.draft_s
            self.busy_s["radio"] += record.link_s
            self.busy_s["verification"] += record.queue_s + record.verify_s + record.judge_s

    def computed(self, seconds: float) -> None:
        """Count a step of its drafter that ends now."""
        self.computed_s += seconds * self.counting

    def sends(self, up: bool) -> float | None:
        """Count a message that is sent now; returns the time if its delay counts."""
        if not (up and self.counting):
            return None
        self.sent += 1
        return self._clock.time()

    def arrives(self, up: bool, size_bytes: float, sent_s: float | None) -> None:
        """Count a message that arrives now; `sent_s` is what `sends` returned."""
        if self.counting:
            self.bytes[up] += size_bytes
        if sent_s is not None:
            self.delays_s.append(self._clock.time() - sent_s)

    def compared(self, same: bool, right: tuple[bool, bool] | None) -> None:
        """Count a response that ends now: whether it is the target's own, and whether its answer and that of the
        target's own are right; None: there is nothing to compare with.
        """
        if self.counting:
            self.same.append(same)
            self.marks += [right] if right else []

    def switched(self) -> None:
        """Count a change of its window, protocol or θ by the controller."""
        self.switches += self.counting

    def known(self, error_db: float) -> None:
        """Count the error of an uplink rate that the UE knows."""
        if self.counting:
            self.csi_error_db, self.csi_known = self.csi_error_db + error_db, self.csi_known + 1

    def response(self, tokens: int, speed_tps: float | None) -> Callable[[RequestRecord], None]:
        """Count a response of `tokens` that is requested now; call the result with its record at its end."""
        began_s, counted, loop = self._clock.time(), self.counting, asyncio.get_running_loop()
        due_s = began_s + tokens / speed_tps if speed_tps else math.inf
        timer: asyncio.TimerHandle | None = None
        if due_s < self._to_s and counted:
            self.judged += 1
            timer = loop.call_at(due_s + TOLERANCE_S, self._violate)
        elif due_s < self._to_s and began_s < self._from_s:
            timer = loop.call_at(self._to_s - TOLERANCE_S, self._starve)
        watched = self._watch(due_s, counted) if timer is not None else None

        def ended(record: RequestRecord) -> None:
            if timer is not None and watched is not None:
                timer.cancel()
                watched()
            if counted:
                self.latencies_s.append(self._clock.time() - began_s)
                self.answered.add(record)

        return ended

    def _violate(self) -> None:
        self.violated += 1

    def _starve(self) -> None:
        self.judged += 1
        self.violated += 1


class DueWay(Protocol):
    """A way that takes the time by which a message should arrive."""

    def carry(self, size_bytes: float, deliver: Callable[[], None], due_s: float) -> None:
        """See `RadioPort.carry`."""


class Counted:
    """Implements `OneWay`: a port whose messages are counted, and due with the next token of the UE."""

    def __init__(self, way: DueWay, tally: UeTally, up: bool) -> None:
        self._way, self._tally, self._up = way, tally, up

    def carry(self, size_bytes: float, deliver: Callable[[], None]) -> None:
        """See `OneWay.carry`."""
        sent_s = self._tally.sends(self._up)

        def arrived() -> None:
            self._tally.arrives(self._up, size_bytes, sent_s)
            deliver()

        self._way.carry(size_bytes, arrived, self._tally.due_s)
