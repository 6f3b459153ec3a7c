"""Counters of a UE that moves between base stations."""

from __future__ import annotations

from collections import Counter

from testbed.clock import Clock
from testbed.experiments.cell.tally import UeTally, Watch, unwatched
from testbed.ue.records import RoundRecord

MIN_STAY_S = 1.0
"""Time of stay below which a handover back to the cell before is a ping-pong (3GPP TR 36.839, section 5.1.2)."""


class RoamingTally(UeTally):
    """What one UE did, and where; arguments as in `UeTally`."""

    def __init__(self, clock: Clock, from_s: float, to_s: float, watch: Watch = unwatched) -> None:
        super().__init__(clock, from_s, to_s, watch)
        self.station: int | None = None
        """Cell that serves it; None: none does."""
        self.tokens_at: Counter[int] = Counter()
        """Committed tokens by cell."""
        self.arrivals: Counter[int] = Counter()
        """Handovers by the cell that took the UE over."""
        self.ping_pongs = 0
        """Handovers back to the cell before, after less than `MIN_STAY_S`."""
        self._stays: list[tuple[int, float]] = []
        """The last cell and the one before: number, and time of arrival."""
        self.failures = 0
        """Times at which its base station failed."""
        self.prefilled_again: Counter[int] = Counter()
        """Tokens whose keys and values a base station computed although another had them, by cell."""
        self.moved_bytes = 0
        """Keys and values that were moved."""
        self.interruptions_s: list[float] = []
        """Times from leaving a base station within a response to the next committed tokens."""
        self._left_s: float | None = None

    def start(self, began_s: float, speed_tps: float | None) -> None:
        """See `UeTally.start`."""
        super().start(began_s, speed_tps)
        self._left_s = None

    def round(self, record: RoundRecord) -> None:
        """See `UeTally.round`."""
        super().round(record)
        if not self.counting:
            return
        if self.station is not None:
            self.tokens_at[self.station] += record.committed
        if self._left_s is not None:
            self.interruptions_s.append(self._clock.time() - self._left_s)
        self._left_s = None

    def left(self, decoding: bool) -> None:
        """The UE leaves its base station, within a response or not."""
        self.station = None
        if not decoding:
            self._left_s = None
        elif self._left_s is None:  # else no tokens have come since it left the one before
            self._left_s = self._clock.time()

    def arrived(self, station: int, handover: bool) -> None:
        """A base station takes the UE over; `handover`: from another one that had not failed."""
        now_s, self.station = self._clock.time(), station
        if self.counting:
            back = len(self._stays) > 1 and self._stays[0][0] == station and now_s - self._stays[1][1] < MIN_STAY_S
            self.arrivals[station] += handover
            self.ping_pongs += handover and back
        self._stays = [*self._stays[-1:], (station, now_s)]

    def failed(self) -> None:
        """Its base station has failed."""
        self.failures += self.counting

    def moved(self, size_bytes: int) -> None:
        """Keys and values are moved to its next base station."""
        self.moved_bytes += size_bytes * self.counting

    def prefilled(self, station: int, tokens: int) -> None:
        """A base station has computed tokens again."""
        if self.counting:
            self.prefilled_again[station] += tokens
