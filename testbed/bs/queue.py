"""Requests that wait for the engine, and what is taken from them for a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from testbed.bs.pending import Pending
from testbed.bs.sessions import Load, Session


class Taken(NamedTuple):
    """A request's share of a pass."""

    session: Session
    pending: Pending
    whole: bool
    """Whether its round is verified; else a piece of its prefix is computed for the cache."""


class Queue:
    """One waiting request a session at most."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Session, Pending]] = {}
        self._sizes: dict[str, int] = {}
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def load(self) -> Load:
        """What waits, for who bounds it."""
        return Load(len(self._waiting), self._size_bytes)

    def pending(self) -> list[Pending]:
        """All that wait, in order of arrival."""
        return [item for _, item in self._waiting.values()]

    def put(self, session: Session, item: Pending) -> None:
        """Let a request wait."""
        self.drop(session)
        self._waiting[session.name] = (session, item)
        self._sizes[session.name] = size = session.current.window.size_bytes if session.current else 0
        self._size_bytes += size

    def drop(self, session: Session) -> None:
        """Forget what a session waits for, if anything."""
        if self._waiting.pop(session.name, None):
            self._size_bytes -= self._sizes.pop(session.name)

    def take(self, planned: Sequence[Pending]) -> list[Taken]:
        """Take what a scheduler chose; a request of which only a piece goes stays in its place."""
        batch = []
        for item in planned:
            name = item.request.session
            session, waiting = self._waiting[name]
            whole = item.request is waiting.request
            if whole:
                self.drop(session)
            batch.append(Taken(session, item, whole))
        return batch

    def learn(self, session: Session) -> None:
        """Tell a waiting request how much of its prefix has been computed by now."""
        found = self._waiting.get(session.name)
        if found is not None:
            self._waiting[session.name] = (session, replace(found[1], computed=session.computed))
