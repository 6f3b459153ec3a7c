"""Drafting time of a UE: real drafting takes its own time; emulated or virtual drafting waits for a given time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from testbed.clock import Clock


class Pace(Protocol):
    """Awaited after each step of the drafter.

    Times that are waited for include the drafter's own computation: they begin at `begun_s`, when the step began.
    """

    def begin(self) -> float:
        """The time at which a step begins [s]."""

    async def opened(self, prompt_len: int, begun_s: float) -> None:
        """Wait after the prefill of a prompt."""

    async def drafted(self, count: int, base_len: int, begun_s: float, before: int = 0) -> None:
        """Wait after drafting `count` tokens on a prefix of `base_len`, of a window with `before` tokens already."""


class RealTime:
    """No waiting: the drafter's own computation takes the time."""

    def begin(self) -> float:
        """No time."""
        return 0.0

    async def opened(self, prompt_len: int, begun_s: float) -> None:
        """Return at once."""

    async def drafted(self, count: int, base_len: int, begun_s: float, before: int = 0) -> None:
        """Return at once."""


REAL_TIME = RealTime()


async def lasted(clock: Clock, seconds: float, begun_s: float) -> None:
    """Return `seconds` after a step began, or at once if it took longer."""
    await clock.sleep(max(0.0, seconds - (clock.time() - begun_s)))


@dataclass(frozen=True)
class ConstantPace:
    """A constant time per drafted token, to emulate another device."""

    clock: Clock
    per_token_s: float

    def begin(self) -> float:
        """See `Pace.begin`."""
        return self.clock.time()

    async def opened(self, prompt_len: int, begun_s: float) -> None:
        """Return at once: prefill takes no time."""

    async def drafted(self, count: int, base_len: int, begun_s: float, before: int = 0) -> None:
        """Return when `count` times the time per token have passed since `begun_s`."""
        await lasted(self.clock, count * self.per_token_s, begun_s)
