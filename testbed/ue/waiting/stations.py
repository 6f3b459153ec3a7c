"""What a UE knows of the base stations among which it chooses."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from testbed.channel.link import Link
from testbed.clock import Clock
from testbed.protocols.messages import Fault, NeedHidden, Verdict, Welcome

PROGRESS = (Verdict, NeedHidden, Fault)
"""Messages by which a station goes on with a request, or says that it does not. One whose pass never ends confirms
sessions (`Opened`), and may ask others to wait (`Busy`).
"""
MOST_AVOIDED = 6
"""Times that the time for which a station is avoided doubles."""
SLOWEST_BPS = 1e6
"""Uplink rate assumed for the time that sent data takes, before a station counts as silent."""


class WaitingTime:
    """Time in which requests have waited for a station; where several wait at once, it counts once."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._waiting = clock, 0
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._before_s, self._since_s = 0.0, self._clock.time()

    @property
    def seconds(self) -> float:
        """What has passed."""
        return self._before_s + (self._clock.time() - self._since_s if self._waiting else 0.0)

    @property
    def goes_on(self) -> bool:
        """Whether a request waits now."""
        return self._waiting > 0

    @contextlib.contextmanager
    def of_one(self) -> Iterator[None]:
        """A request waits while the block runs."""
        if not self._waiting:
            self._since_s = self._clock.time()
        self._waiting += 1
        try:
            yield
        finally:
            self._before_s, self._waiting = self.seconds, self._waiting - 1
            self._since_s = self._clock.time()


class HandshakeTime(WaitingTime):
    """Time in which handshakes have waited since the last answer, which need not have come in time for its reader."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._unanswered = range(0)
        """Tokens that may still be answered, each once."""

    def sent(self, token: int) -> None:
        """Note that a handshake was sent; tokens count up."""
        self._unanswered = range(self._unanswered.start, token + 1)

    def answered(self, token: int) -> None:
        """Begin anew if this answers a handshake that was sent."""
        if token in self._unanswered:
            self._unanswered = range(token + 1, self._unanswered.stop)
            self.reset()


def common(welcomes: Sequence[Welcome]) -> Welcome:
    """The first of several stations' welcomes, with the windows, tokens and protocols that all of them take."""
    first = welcomes[0]
    return replace(
        first,
        max_window=min(one.max_window for one in welcomes),
        max_positions=min(one.max_positions for one in welcomes),
        protocols=tuple(kind for kind in first.protocols if all(kind in one.protocols for one in welcomes)),
    )


class StationLink(NamedTuple):
    """A station's address and the link to it."""

    address: str
    link: Link


def successor(stations: Sequence[StationState], at: int, now_s: float, steady_s: float, gap_s: float) -> int | None:
    """Place of the station that takes over: if the serving one is silent, any that answers, those last that are
    avoided; else an earlier one that is stable again. None: none does.

    Args:
        at: place of the serving one.
        steady_s: time for which an earlier one must have answered.
        gap_s: time to wait for a moment between requests before one that was avoided takes over.
    """
    ready = {i: one for i, one in enumerate(stations) if i != at and one.welcome is not None}
    if stations[at].welcome is not None:
        ready = {
            i: one for i, one in ready.items()
            if i < at and now_s - one.since_s >= steady_s and now_s >= one.avoided_s + (gap_s if one.avoided else 0.0)
        }  # fmt: skip
    return min(ready, key=lambda i: (max(now_s, ready[i].avoided_s), ready[i].avoided, i), default=None)


@dataclass
class StationState:
    """State of one station."""

    address: str
    link: Link
    welcome: Welcome | None = None
    """None: not greeted yet, or silent since."""
    refused: str = ""
    """Why it cannot serve."""
    heard_s: float = -math.inf
    since_s: float = math.inf
    """Time since which it has answered without interruption."""
    serving_s: float = -math.inf
    """When it took over from another one; -inf: it never did."""
    avoided_s: float = -math.inf
    """Until then it takes over from no other one that answers, since it failed soon after it had taken over, or went on
    with no request."""
    avoided: int = 0
    """How often in a row that was so."""
    sent_bytes: int = 0
    """Bytes sent since its last message."""

    def hear(self, now_s: float) -> None:
        """Note that a message arrived."""
        self.heard_s, self.sent_bytes = now_s, 0
        self.since_s = min(self.since_s, now_s)

    def lose(self) -> None:
        """Note that it cannot serve before it has answered a greeting again."""
        self.welcome, self.since_s = None, math.inf

    def go_on(self, now_s: float, seconds: float) -> None:
        """Note that it went on with a request: after `seconds` of service, earlier failures count no longer."""
        if now_s - self.serving_s >= seconds:
            self.avoided = 0

    def avoid(self, now_s: float, seconds: float) -> None:
        """Note that it failed as the serving one: it takes over from no other one that answers for `seconds`, and each
        further time for twice as long, since requests that another one serves would stand still again and again.
        """
        self.avoided_s = now_s + seconds * 2**self.avoided
        self.avoided = min(MOST_AVOIDED, self.avoided + 1)
        self.lose()

    def silent(self, now_s: float, silence_s: float) -> bool:
        """Whether it has been silent for `silence_s` plus the time that sent data takes."""
        return now_s - self.heard_s > silence_s + 8 * self.sent_bytes / SLOWEST_BPS
