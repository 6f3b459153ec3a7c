"""Base stations and UEs in one process and in virtual time: the code that serves, with links and compute times from
models.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from testbed.bs.engines.runner import EngineRunner
from testbed.bs.intake import Intake, Offer
from testbed.bs.judging.base import Judge, StrictJudge
from testbed.bs.scheduling.base import Fcfs, Scheduler
from testbed.bs.server import BaseStation
from testbed.bs.sessions import SessionTable
from testbed.channel.link_model import OneWay
from testbed.channel.virtual import Sizer, VirtualLink, VirtualServerLink, frame_bytes
from testbed.clock import Clock
from testbed.protocols.codec import encode
from testbed.protocols.messages import Close
from testbed.tasks import beside
from testbed.ue.client import Client
from testbed.virtual_time import VirtualClock

T = TypeVar("T")
TIMEOUT_S = 1e6
"""Virtual seconds that a UE waits for its base station: an overloaded one may take hours."""


class VirtualStation:
    """One base station of a deployment.

    Args:
        options: further arguments of `BaseStation`.
    """

    def __init__(
        self,
        clock: Clock,
        runner: EngineRunner,
        offer: Offer,
        scheduler: Scheduler = Fcfs(),  # noqa: B008
        judge: Judge | None = None,
        sessions: SessionTable | None = None,
        **options: Any,
    ) -> None:
        self._clock, self._link, self._peers = clock, VirtualServerLink(), 0
        intake = Intake(offer, SessionTable() if sessions is None else sessions)
        self._bs = BaseStation(self._link, runner, intake, scheduler, judge or StrictJudge(), clock, **options)

    def connect(
        self,
        ways: tuple[OneWay, OneWay],
        sizers: tuple[Sizer, Sizer] = (frame_bytes, frame_bytes),
        name: bytes | None = None,
    ) -> Client:
        """A new UE's connection over a link of its own.

        Args:
            ways: up and down.
            sizers: bytes of a message up and down.
            name: identity of the UE; None: a number.
        """
        self._peers += 1
        return Client(self.attach(ways, sizers, name or f"ue-{self._peers}".encode()), self._clock, 0, TIMEOUT_S)

    def attach(
        self,
        ways: tuple[OneWay, OneWay],
        sizers: tuple[Sizer, Sizer],
        name: bytes,
        deliver: Callable[[list[bytes], int], None] | None = None,
    ) -> VirtualLink:
        """A new UE's link; arguments as in `connect` and `VirtualServerLink.attach`."""
        return self._link.attach(name, *ways, sizers, patient=True, deliver=deliver)

    def release(self, name: bytes, sessions: Iterable[int]) -> None:
        """Forget a UE that has left, and close its sessions (UE context release, 3GPP TS 38.423)."""
        self._link.detach(name, [encode(Close(session=number)) for number in sessions])

    async def serve(self) -> None:
        """Serve until cancelled."""
        await self._bs.serve()

    @property
    def waiting(self) -> int:
        """Windows that wait for the engine."""
        return self._bs.load.windows

    def metrics(self) -> dict[str, Any]:
        """See `BaseStation.metrics`."""
        return self._bs.metrics()


class VirtualDeployment:
    """Base stations, and UEs on links of their own, under one virtual clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self._stations: list[VirtualStation] = []

    def base_station(self, runner: EngineRunner, offer: Offer, **options: Any) -> VirtualStation:
        """Add a base station; `options` as in `VirtualStation`."""
        self._stations.append(VirtualStation(self.clock, runner, offer, **options))
        return self._stations[-1]

    async def run(self, main: Coroutine[Any, Any, T], *ues: Coroutine[Any, Any, None]) -> T:
        """Return the result of `main`, with UEs and base stations running until then.

        The first failure of any of them ends the run and is raised.
        """
        return await beside([*ues, *(station.serve() for station in self._stations)], main)
