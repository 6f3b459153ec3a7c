"""The time within which a BS must go on with a request, and why it does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from testbed.clock import Clock
from testbed.errors import LinkTimeout
from testbed.protocols.messages import Busy, Resync

LEAST_REST_S = 0.05
"""Least wait before a request is sent again that the BS has refused, or lost the session of, more than once."""


class Patience:
    """What is left of a timeout since the last progress.

    A BS that answers without going on is waited for no longer than a silent one, and not asked without a pause.

    Args:
        rest: waits this long at most; returns whether it was cut short, since another BS serves.
    """

    def __init__(self, clock: Clock, timeout_s: float, rest: Callable[[float], Awaitable[bool]]) -> None:
        self._clock, self._timeout_s, self._rest, self._admitted = clock, timeout_s, rest, False
        self.begin()

    def begin(self) -> None:
        """Note progress: the BS has the whole timeout again."""
        self._since_s, self._why, self._times = self._clock.time(), "", 0

    @property
    def left_s(self) -> float:
        """Seconds that are left; not above 0: none."""
        return self._timeout_s - (self._clock.time() - self._since_s)

    def heard(self) -> None:
        """Note an answer that is no progress."""
        self._why = self._why or "it answered, but not this request"

    def admitted(self) -> None:
        """Note that the BS admits the request, which is progress the first time."""
        if not self._admitted:
            self.begin()
        self._admitted = True
        self.heard()

    async def pause(self) -> None:
        """Wait for a moment before a request is sent again, but for the first time since the last progress."""
        if self._times:
            await self._rest(min(LEAST_REST_S, self.left_s))
        self._times += 1

    async def rest(self, message: Busy | Resync) -> None:
        """Wait before a request is sent again: as long as a BS asks, at most until another one serves.

        Raises:
            LinkTimeout: the BS refuses for longer than is left.
        """
        asked_s = message.retry_s if isinstance(message, Busy) and message.speed_tps is None else 0.0
        did = "refused" if isinstance(message, Busy) else "lost the session"
        self._why = f"it {did} ({message.reason})" if message.reason else f"it {did}"
        left_s, wait_s = self.left_s, max(asked_s, LEAST_REST_S if self._times else 0.0)
        self._times += 1
        if not await self._rest(min(wait_s, left_s)) and asked_s > left_s:
            if self._times > 1:  # what is left says nothing of the times before
                raise self.over(LinkTimeout(self._why))
            left = f"{max(0.0, left_s):.3g} of {self._timeout_s:g} s are left"
            raise LinkTimeout(f"the BS refuses for {asked_s:g} s: {message.reason}; {left}")

    def over(self, silence: LinkTimeout) -> LinkTimeout:
        """The error where nothing is left: why the BS did not go on; that of the silence if it never answered."""
        if not self._why:
            return silence
        return LinkTimeout(f"the BS did not go on within {self._timeout_s:g} s: {self._why}")
