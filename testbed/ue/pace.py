"""Drafting time of a UE: real drafting takes its own time; emulated or virtual drafting waits for a given time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from testbed.clock import Clock


class Pace(Protocol):
    """Awaited after each step of the drafter."""

    async def opened(self, prompt_len: int) -> None:
        """Wait after the prefill of a prompt."""

    async def drafted(self, count: int, base_len: int, before: int = 0) -> None:
        """Wait after drafting `count` tokens on a prefix of `base_len`, of a window with `before` tokens already."""


class RealTime:
    """No waiting: the drafter's own computation takes the time."""

    async def opened(self, prompt_len: int) -> None:
        """Return at once."""

    async def drafted(self, count: int, base_len: int, before: int = 0) -> None:
        """Return at once."""


REAL_TIME = RealTime()


@dataclass(frozen=True)
class ConstantPace:
    """A constant time per drafted token, to emulate another device."""

    clock: Clock
    per_token_s: float

    async def opened(self, prompt_len: int) -> None:
        """Return at once: prefill takes no time."""

    async def drafted(self, count: int, base_len: int, before: int = 0) -> None:
        """Sleep for `count` times the time per token."""
        await self.clock.sleep(count * self.per_token_s)
