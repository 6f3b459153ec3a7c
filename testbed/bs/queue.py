"""Requests that wait for the engine, and those that it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from testbed.bs.engines.base import VerifyRequest
from testbed.bs.pending import Pending
from testbed.bs.room import Load
from testbed.bs.sessions import Session


class Taken(NamedTuple):
    """A request, or a piece of one, taken for a pass."""

    session: Session
    pending: Pending
    whole: bool
    """Whether the round is verified; otherwise a piece of its prefix is computed for the cache."""


class Queue:
    """Waiting requests, at most one per session, and at most one in the engine."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Session, Pending]] = {}
        self._running: dict[str, Taken] = {}
        self._seen: dict[str, int] = {}
        """What the engine has cached of the prefixes of `running`, where it knows."""
        self._sizes: dict[str, int] = {}
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def load(self) -> Load:
        """Number and size of the waiting windows; rounds that the BS begins itself have none."""
        return Load(len(self._sizes), self._size_bytes)

    @property
    def running(self) -> list[Taken]:
        """Requests, and pieces of requests, that the engine has."""
        return list(self._running.values())

    @property
    def unfinished(self) -> list[Pending]:
        """Requests of `running`, with what is computed of them by now."""
        found = self._running.items()
        return [replace(item, computed=self._seen.get(name, session.computed)) for name, (session, item, _) in found]

    def pending(self) -> list[Pending]:
        """Waiting requests in order of arrival, without those of which the engine has a piece."""
        running = Counter[bytes]()
        for item in self.unfinished:
            running[item.ue] += item.weight
        found = [item for name, (_, item) in self._waiting.items() if name not in self._running]
        return [replace(one, running_tokens=running[one.ue]) if one.ue in running else one for one in found]

    def session(self, item: Pending) -> Session:
        """The session of a waiting request."""
        return self._waiting[item.request.session][0]

    def put(self, session: Session, item: Pending) -> None:
        """Add a request, in place of the session's earlier one."""
        self.drop(session)
        self._waiting[session.name] = (session, item)
        if (size := session.waiting_bytes) is not None:
            self._sizes[session.name] = size
            self._size_bytes += size

    def drop(self, session: Session) -> None:
        """Remove a session's request, if there is one."""
        self._running.pop(session.name, None)
        if self._waiting.pop(session.name, None):
            self._size_bytes -= self._sizes.pop(session.name, 0)

    def take(self, planned: Sequence[Pending]) -> list[Taken]:
        """Take the batch that a scheduler chose; a request of which only a piece is taken keeps its place."""
        batch = []
        for item in planned:
            name = item.request.session
            session, waiting = self._waiting[name]
            whole = item.request is waiting.request
            if whole:
                self.drop(session)
            batch.append(Taken(session, item, whole))
        return batch

    def see(self, cached: Callable[[VerifyRequest], int | None]) -> None:
        """Update what is cached of the prefixes of all requests, where the engine knows; evictions are seen by it."""
        running = [(name, cached(taken.pending.request)) for name, taken in self._running.items()]
        self._seen = {name: known for name, known in running if known is not None}
        for name, (session, item) in self._waiting.items():
            known = cached(item.request)
            if known is not None and known != item.computed:
                self._waiting[name] = (session, replace(item, computed=known))

    def start(self, taken: Taken) -> None:
        """Record that the engine has a request."""
        self._running[taken.session.name] = taken

    def stop(self) -> None:
        """Record that the engine has no requests any more."""
        self._running.clear()

    def taken(self, request: VerifyRequest, finished: bool) -> Taken | None:
        """The round of this request, which leaves the engine if it is finished; None: it was dropped meanwhile."""
        taken = self._running.get(request.session)
        if taken is None or taken.pending.request is not request:
            return None
        if finished:
            del self._running[request.session]
        return taken

    def learn(self, session: Session) -> None:
        """Update how much of a waiting request's prefix has been computed."""
        found = self._waiting.get(session.name)
        if found is not None:
            self._waiting[session.name] = (session, replace(found[1], computed=session.computed))
