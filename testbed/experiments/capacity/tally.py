"""Counters of a capacity run: responses in time and late, rounds, and when the run may end."""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import msgspec

from testbed.errors import BadInput
from testbed.experiments.capacity.config import CapacityConfig
from testbed.experiments.results.claims import Count, Quantity, Share
from testbed.intervals import LEAST_JUDGED, ClassVerdict, class_verdict
from testbed.ue.records import RoundRecord
from testbed.virtual_time import VirtualClock

ALL, ANY, CLEAR = "all", "any", "clear"
"""End of a run: when every judged response is decided; when it is clear for every class whether ε is kept; when it
is clear whether all classes keep it."""
LONGEST = 9
"""Number of horizons by which a run is extended at most if too few responses begin, unless few UEs need longer."""
SPARE = 1.5
"""Factor of the time in which as many responses of each class begin as are judged, at the class's speed."""
SLACK_S = 1e-9
"""Tolerance for rounding errors of summed times."""
RoundEvent = tuple[float, float, bool]
"""A round: queue and verification time, and whether it missed its class's speed (eq. 4)."""


class ClassCount(msgspec.Struct):
    """Judged responses of one class."""

    judged: Count = 0
    violated: Count = 0
    kept: Count = 0
    starved: Count = 0
    """Violated responses that began before the end of the warm-up and never ended."""

    @property
    def open(self) -> int:
        """Undecided responses."""
        return self.judged - self.violated - self.kept

    @property
    def share(self) -> float | None:
        """Share of the decided responses that are violated; None: none is decided."""
        decided = self.violated + self.kept
        return self.violated / decided if decided else None

    def verdict(self, epsilon: float) -> ClassVerdict:
        """See `class_verdict`; undecided also while open responses matter."""
        clear = keeps(self, epsilon)
        return "undecided" if clear is None else class_verdict(self.violated, self.judged, epsilon)


class CapacityRun(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a run.

    Raises:
        BadInput: parts that are more than the whole.
    """

    system: str
    ues: Count
    seed: int
    classes: dict[str, ClassCount]
    """Counts by token speed."""
    complete: bool
    """Whether every judged response was decided; otherwise the run ended as soon as it was clear whether ε is kept."""
    goodput_tps: Quantity
    """Committed tokens a second within the horizon, of all UEs."""
    drafted: Count
    """Tokens, within the horizon."""
    accepted: Count
    rounds: Count
    empty: Count
    """Rounds with an empty window."""
    batch_size: Quantity
    """Mean over rounds."""
    busy_share: Share
    """Share of the run during which the BS was verifying."""
    evicted_tokens: Count
    memory_bound: Share
    """Share of the plans in which the memory limit excluded a waiting request."""
    virtual_s: Quantity
    cpu_s: Quantity
    uplink_share: Quantity | None = None
    """Mean share of a shared radio's uplink in use; None: UEs had links of their own."""
    events: list[RoundEvent] | None = None
    """Each round in the horizon."""
    passes: list[tuple[list[tuple[int, int]], float]] | None = None
    """Each pass: new and cached tokens of its requests, and its seconds."""

    def __post_init__(self) -> None:
        if self.accepted > self.drafted or self.empty > self.rounds:
            raise BadInput("more tokens were accepted than drafted, or more rounds empty than there were")
        if any(count.open < 0 or count.starved > count.violated for count in self.classes.values()):
            raise BadInput("more responses were kept and violated than judged, or more starved than violated")

    def holds(self, epsilon: float, classes: Collection[str] | None = None) -> bool:
        """Whether every class, or those given, keeps ε, by enough judged responses.

        Raises:
            BadInput: that is not decided, since too few responses were judged.
        """
        counts = {speed: count for speed, count in self.classes.items() if classes is None or speed in classes}
        if not counts or any(keeps(count, epsilon) is False for count in counts.values()):
            return False
        for speed, count in counts.items():
            if count.verdict(epsilon) == "undecided":
                raise BadInput(
                    f"{self.system}, {self.ues} UEs: {count.judged} responses of {speed} tokens/s were judged, of "
                    f"{LEAST_JUDGED} that decide: give a longer horizon (--horizon-s), or a larger judged_class"
                )
        return True


def keeps(count: ClassCount, epsilon: float) -> bool | None:
    """Whether at most ε of a class's judged responses are violated; None: undecided, and always if none is judged."""
    if count.violated > epsilon * count.judged:
        return False
    return True if count.judged and count.violated + count.open <= epsilon * count.judged else None


class Tally:
    """Counts responses as they begin, end and miss their deadlines; `done` is set once the run may end.

    A response is judged if it begins within the horizon. One that began before and has not ended when the run ends is
    judged, too, as violated, if its deadline has passed: a class that is never served begins no others.

    Args:
        classes: token speed of each UE.
    """

    def __init__(self, config: CapacityConfig, clock: VirtualClock, classes: Sequence[float], until: str) -> None:
        ues = Counter(classes)
        self._clock, self._config, self._until = clock, config, until
        self.from_s, self.to_s = config.warmup_s, config.warmup_s + config.horizon_s
        self.classes = {speed: ClassCount() for speed in sorted(ues)}
        self.done = asyncio.Event()
        self.tokens = self.drafted = self.accepted = self.rounds = self.batches = self.empty = 0
        self.events: list[RoundEvent] = []
        self.closed = False
        self._early: dict[int, tuple[ClassCount, float]] = {}
        """Class and deadline of each response in progress that began before the horizon, by number."""
        self._numbers = itertools.count()
        each_s = max((statistics.fmean(config.response) / speed + config.think_s) / n for speed, n in ues.items())
        self._longest_s = max(LONGEST * config.horizon_s, SPARE * config.judged_class * each_s)
        asyncio.get_running_loop().call_at(self.to_s, self._look)
        asyncio.get_running_loop().call_at(self.to_s + self._longest_s, self._look)

    def begun(self, speed_tps: float, tokens: int, whole: bool = True) -> Callable[[], None]:
        """Record the start of a response, or with `whole` unset of the rest of one; returns a function to call at its
        end.
        """
        now_s, count = self._clock.time(), self.classes[speed_tps]
        due_s = now_s + tokens / speed_tps + SLACK_S
        if now_s < self.from_s or not whole:
            return self._begun_early(count, due_s)
        if self.closed:
            return lambda: None
        if self._enough():
            self._look()
            return lambda: None
        count.judged += 1
        return self._judged(count, due_s)

    def _judged(self, count: ClassCount, due_s: float) -> Callable[[], None]:
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

    def _begun_early(self, count: ClassCount, due_s: float) -> Callable[[], None]:
        number = next(self._numbers)
        self._early[number] = count, due_s

        def ended() -> None:
            self._early.pop(number, None)
            if self.closed:
                self._look()

        return ended

    def finish(self) -> None:
        """Count the responses that began before the horizon, have not ended, and are overdue."""
        now_s = self._clock.time()
        for count, due_s in self._early.values():
            if due_s <= now_s:
                count.judged, count.violated, count.starved = count.judged + 1, count.violated + 1, count.starved + 1

    def round(self, record: RoundRecord, speed_tps: float) -> None:
        """Record a finished round."""
        if not self.from_s <= self._clock.time() < self.to_s:
            return
        self.tokens += record.committed
        self.drafted += record.drafted
        self.accepted += record.accepted
        self.rounds += 1
        self.empty += record.drafted == 0
        self.batches += record.batch_size
        took_s = record.draft_s + record.link_s + record.queue_s + record.verify_s
        self.events.append((record.queue_s, record.verify_s, record.committed < speed_tps * took_s))

    def _enough(self) -> bool:
        """Whether enough responses have begun, in all and of each class."""
        past_s, counts = self._clock.time() - self.to_s, self.classes.values()
        begun = sum(count.judged for count in counts)
        known = begun >= self._config.judged and all(c.judged >= self._config.judged_class for c in counts)
        return past_s >= 0 and (known or past_s >= self._longest_s)

    def _look(self) -> None:
        self.closed = self.closed or self._enough()
        if not self.closed:
            return
        early = Counter(id(count) for count, _ in self._early.values())
        clear = [self._clear(count, early[id(count)]) for count in self.classes.values()]
        if (
            not any(count.open for count in self.classes.values())
            or (self._until != ALL and None not in clear)
            or (self._until == CLEAR and False in clear)
        ):
            self.done.set()

    def _clear(self, count: ClassCount, early: int) -> bool | None:
        """The verdict of `keeps` if it no longer depends on the `early` responses of the class."""
        epsilon = self._config.epsilon
        worst = ClassCount(judged=count.judged + early, violated=count.violated + early, kept=count.kept)
        found = keeps(count, epsilon)
        return found if found is False or not early else (keeps(worst, epsilon) or None)
