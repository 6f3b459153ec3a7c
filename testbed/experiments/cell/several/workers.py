"""Groups of base stations in this process, in processes of this machine, or on Ray."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple

from testbed.errors import BadInput
from testbed.experiments.cell.several.group import Group
from testbed.experiments.runs.workers import EXECUTORS, LOCAL, RAY, connected, pool_of, ray_errors

KILLED = "the process of a group of base stations was killed; begin the run again"


class Workers(abc.ABC):
    """Places of a number of groups."""

    count = 1

    @abc.abstractmethod
    def begin(self, arguments: Sequence[tuple[Any, ...]]) -> None:
        """Make the groups, of these arguments of `Group`."""

    @abc.abstractmethod
    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of every group, each with its arguments, at the same time; returns their results."""


class InProcess(Workers):
    """Groups in this process, one after the other."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.groups: list[Group] = []

    def begin(self, arguments: Sequence[tuple[Any, ...]]) -> None:
        """See `Workers.begin`."""
        self.groups = [Group(*own) for own in arguments]

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """See `Workers.each`."""
        return [getattr(group, method)(*own) for group, own in zip(self.groups, arguments, strict=True)]


class Processes(Workers):
    """Groups in processes of this machine, one in each."""

    def __init__(self, pools: Sequence[futures.Executor]) -> None:
        self.count, self._pools = len(pools), pools

    def begin(self, arguments: Sequence[tuple[Any, ...]]) -> None:
        """See `Workers.begin`."""
        self._all(_make, arguments)

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """See `Workers.each`."""
        return self._all(_call, [(method, *own) for own in arguments])

    def _all(self, function: Any, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        running = [pool.submit(function, *own) for pool, own in zip(self._pools, arguments, strict=True)]
        return [one.result() for one in running]


class GroupActor:
    """A group for others to call. Ray would take `Group` itself for an actor that lives in an event loop."""

    def __init__(self, *arguments: Any) -> None:
        self._group = Group(*arguments)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the group."""
        return getattr(self._group, method)(*arguments)


_here: list[GroupActor] = []
"""The group of this process."""


def _make(*arguments: Any) -> None:
    _here[:] = [GroupActor(*arguments)]


def _call(method: str, *arguments: Any) -> Any:
    return _here[0].call(method, *arguments)


class OnRay(Workers):
    """Groups in actors of a Ray cluster, one in each.

    Raises:
        BadInput: the cluster has fewer cores than there are groups, which wait for each other.
    """

    def __init__(self, ray: Any, count: int) -> None:
        cores = int(ray.cluster_resources().get("CPU", count))
        if cores < count:
            raise BadInput(f"{count} workers need as many cores; the Ray cluster has {cores}")
        self._ray, self.count, self._actors = ray, count, list[Any]()

    def begin(self, arguments: Sequence[tuple[Any, ...]]) -> None:
        """See `Workers.begin`."""
        actor = self._ray.remote(GroupActor).options(num_cpus=1)
        self._actors = [actor.remote(*own) for own in arguments]

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """See `Workers.each`."""
        calls = [actor.call.remote(method, *own) for actor, own in zip(self._actors, arguments, strict=True)]
        found: list[Any] = self._ray.get(calls)
        return found


class Spread(NamedTuple):
    """Where a run of several cells is computed: in `workers` processes of this machine, or of a Ray cluster."""

    kind: str = LOCAL
    workers: int = 1

    @contextlib.contextmanager
    def begun(self) -> Iterator[Workers]:
        """The places, until the end of the block.

        Raises:
            BadInput: an unknown kind, no workers, or no Ray.
            EngineError: a process was killed, or a node of the cluster died.
        """
        if self.kind not in EXECUTORS:
            raise BadInput(f"unknown executor {self.kind!r}; known: {', '.join(EXECUTORS)}")
        if self.workers < 1:
            raise BadInput(f"workers must be at least 1, not {self.workers}")
        if self.kind == RAY:
            with connected(self.workers) as ray, ray_errors(ray, "begin the run again"):
                yield OnRay(ray, self.workers)
        elif self.workers == 1:
            yield InProcess()
        else:
            with contextlib.ExitStack() as stack:
                yield Processes([stack.enter_context(pool_of(1, KILLED)) for _ in range(self.workers)])
