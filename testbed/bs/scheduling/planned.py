"""Scheduler that carries out a plan: batches of UEs in a fixed order (edge SD batching, Sections II-B and II-D)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from testbed.bs.pending import Pending
from testbed.bs.scheduling.base import Scheduler

Batches = tuple[tuple[bytes, ...], ...]
"""The UEs of each batch, in order."""


@dataclass(frozen=True)
class Planned(Scheduler):
    """Takes requests in waves: one of every UE, from the arrival of the last one on (eq. 16).

    Within a wave the batches take turns in the plan's order, a round of each (eqs. 20–22). A UE whose session has ended
    has left its batch. Its next request belongs to the next wave, which begins when all sessions of this one have
    ended.
    """

    batches: Batches
    wave: Mapping[bytes, str] = field(default_factory=dict)
    """Sessions of the wave that have not ended, by UE; empty: the next wave has not begun."""
    turn: int = 0
    """The batch whose turn it is."""

    def plan(self, pending: Sequence[Pending], now_s: float) -> list[Pending]:
        """The batch whose turn it is, once all its rounds have arrived; UEs outside of the plan are never served."""
        wave, turn = self._now(pending)
        waiting = {item.request.session: item for item in pending}
        members = _members(self.batches[turn], wave)
        if not all(session in waiting for session in members):
            return []
        return [waiting[session] for session in members]

    def after(self, pending: Sequence[Pending], batch: Sequence[Pending]) -> Scheduler:
        """See `Scheduler.after`."""
        if not batch:
            return self
        wave, turn = self._now(pending)
        return replace(self, wave=wave, turn=(turn + 1) % len(self.batches))

    def ended(self, session: str) -> Scheduler:
        """See `Scheduler.ended`."""
        if session not in self.wave.values():
            return self
        wave = {ue: name for ue, name in self.wave.items() if name != session}
        return replace(self, wave=wave, turn=self.turn if wave else 0)

    def _now(self, pending: Sequence[Pending]) -> tuple[Mapping[bytes, str], int]:
        """The wave, empty until the last request has arrived, and the next batch with members."""
        wave, planned = self.wave, {ue for batch in self.batches for ue in batch}
        if not wave:
            first = {item.ue: item.request.session for item in pending if item.ue in planned}
            wave = first if len(first) == len(planned) else {}
        turns = [(self.turn + later) % len(self.batches) for later in range(len(self.batches))]
        return wave, next((turn for turn in turns if _members(self.batches[turn], wave)), self.turn)


def _members(batch: Sequence[bytes], wave: Mapping[bytes, str]) -> list[str]:
    """Sessions of a batch that have not ended."""
    return [wave[ue] for ue in batch if ue in wave]
