"""Counters of a capacity run: responses in time and late, rounds, and when the run may end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from testbed.experiments.capacity.systems import CapacityConfig
from testbed.ue.records import RoundRecord
from testbed.virtual_time import VirtualClock

ALL, ANY, CLEAR = "all", "any", "clear"
"""End of a run: when every judged response is decided; when it is clear for every class whether ε is kept; when it
is clear whether all classes keep it."""
LONGEST = 9
"""Maximum number of horizons by which a run is extended if too few responses begin."""
SLACK_S = 1e-9
"""Tolerance for rounding errors of summed times."""


class ClassCount(msgspec.Struct):
    """Judged responses of one class."""

    judged: int = 0
    violated: int = 0
    kept: int = 0

    @property
    def open(self) -> int:
        """Undecided responses."""
        return self.judged - self.violated - self.kept

    @property
    def share(self) -> float:
        """Share of the decided responses that are violated."""
        decided = self.violated + self.kept
        return self.violated / decided if decided else 0.0


class CapacityRun(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a run."""

    system: str
    ues: int
    seed: int
    classes: dict[str, ClassCount]
    """Counts by token speed."""
    complete: bool
    """Whether every judged response was decided; otherwise the run ended as soon as it was clear whether ε is kept."""
    goodput_tps: float
    """Committed tokens a second within the horizon, of all UEs."""
    drafted: int
    """Tokens, within the horizon."""
    accepted: int
    rounds: int
    batch_size: float
    """Mean over rounds."""
    busy_share: float
    """Share of the run during which the BS was verifying."""
    evicted_tokens: int
    virtual_s: float
    cpu_s: float
    events: list[tuple[float, float, bool]] | None = None
    """Each round in the horizon: queue and verification time, and whether it missed its class's speed (eq. 4)."""
    passes: list[tuple[list[tuple[int, int]], float]] | None = None
    """Each pass: new and cached tokens of its requests, and its seconds."""

    def holds(self, epsilon: float) -> bool:
        """Whether every class keeps ε."""
        return all(keeps(count, epsilon) is not False for count in self.classes.values())


def keeps(count: ClassCount, epsilon: float) -> bool | None:
    """Whether at most ε of a class's judged responses are violated; None: undecided."""
    if count.violated > epsilon * count.judged:
        return False
    return True if count.violated + count.open <= epsilon * count.judged else None


class Tally:
    """Counts responses as they begin, end and miss their deadlines; `done` is set once the run may end."""

    def __init__(self, config: CapacityConfig, clock: VirtualClock, classes: Sequence[float], until: str) -> None:
        self._clock, self._epsilon, self._until = clock, config.epsilon, until
        self.from_s, self.to_s = config.warmup_s, config.warmup_s + config.horizon_s
        self.classes = {speed: ClassCount() for speed in classes}
        self.done = asyncio.Event()
        self.tokens = self.drafted = self.accepted = self.rounds = self.batches = 0
        self.events: list[tuple[float, float, bool]] = []
        self._least, self._begun, self.closed = config.judged, 0, False
        self._longest_s = LONGEST * config.horizon_s
        asyncio.get_running_loop().call_at(self.to_s, self._look)

    def begun(self, speed_tps: float, tokens: int) -> Callable[[], None] | None:
        """Record the start of a response; returns a function to call at its end, None if the response is not judged."""
        now_s = self._clock.time()
        if now_s < self.from_s or self.closed:
            return None
        if self._enough():
            self._look()
            return None
        self._begun += 1
        count = self.classes[speed_tps]
        count.judged += 1
        due_s = now_s + tokens / speed_tps + SLACK_S

        late = False

        def overdue() -> None:
            nonlocal late
            late = True
            count.violated += 1
            self._look()

        timer = asyncio.get_running_loop().call_at(due_s, overdue)

        def ended() -> None:
            if not late:
                timer.cancel()
                count.kept += 1
                self._look()

        return ended

    def round(self, record: RoundRecord, speed_tps: float) -> None:
        """Record a finished round."""
        if not self.from_s <= self._clock.time() < self.to_s:
            return
        self.tokens += record.committed
        self.drafted += record.drafted
        self.accepted += record.accepted
        self.rounds += 1
        self.batches += record.batch_size
        took_s = record.draft_s + record.link_s + record.queue_s + record.verify_s
        self.events.append((record.queue_s, record.verify_s, record.committed < speed_tps * took_s))

    def _enough(self) -> bool:
        """Whether enough responses have begun."""
        past_s = self._clock.time() - self.to_s
        return past_s >= 0 and (self._begun >= self._least or past_s >= self._longest_s)

    def _look(self) -> None:
        self.closed = self.closed or self._enough()
        if not self.closed:
            return
        clear = [keeps(count, self._epsilon) for count in self.classes.values()]
        if (
            not any(count.open for count in self.classes.values())
            or (self._until != ALL and None not in clear)
            or (self._until == CLEAR and False in clear)
        ):
            self.done.set()
