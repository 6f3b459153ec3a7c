"""How long a UE computes: real drafting takes its own time, a virtual run is told how long it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from testbed.clock import Clock


class Pace(Protocol):
    """Awaited right after the drafter has worked."""

    async def opened(self, prompt_len: int) -> None:
        """The prompt was prefilled."""

    async def drafted(self, count: int, base_len: int) -> None:
        """`count` tokens were drafted after a prefix of `base_len`."""


class RealTime:
    """The work itself has taken its time."""

    async def opened(self, prompt_len: int) -> None:
        """Nothing to wait for."""

    async def drafted(self, count: int, base_len: int) -> None:
        """Nothing to wait for."""


@dataclass(frozen=True)
class Steady:
    """The same time for every drafted token, whatever drafts them: a device that is not there."""

    clock: Clock
    per_token_s: float

    async def opened(self, prompt_len: int) -> None:
        """Prompts cost nothing."""

    async def drafted(self, count: int, base_len: int) -> None:
        """`count` tokens at that pace."""
        await self.clock.sleep(count * self.per_token_s)
