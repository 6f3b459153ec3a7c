"""A relay for UEs that share one radio cell in front of a base station: a process with an address for each UE."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple

from testbed.channel.emulate import endpoint
from testbed.channel.link_model import Carrier
from testbed.channel.proxy import Proxy, precise_loop
from testbed.channel.radio.config import RadioConfig
from testbed.channel.radio.mac import RadioCell
from testbed.channel.radio.model import RadioUe
from testbed.errors import EngineError
from testbed.experiments.deployment.distortions import standstill_told
from testbed.experiments.runs.forked import stop_all
from testbed.experiments.runs.processes import watched
from testbed.process.interrupts import as_child

HOST = "127.0.0.1"
READY_S, STOP_S = 120.0, 5.0


class SharedRadio(NamedTuple):
    """A running relay."""

    listens: tuple[str, ...]
    """Address for each UE."""
    origin_s: float
    """Start of the UEs' channels on the host's monotonic clock."""
    pid: int
    """The process."""


@contextlib.contextmanager
def shared_radio(
    radio: RadioConfig, ues: int, target: str, weights: Sequence[float] | None = None, *, watch: bool = True
) -> Iterator[SharedRadio]:
    """Relay between `ues` UEs and a base station at `target` over one cell.

    Args:
        weights: of the UEs, for the radio's scheduler `weights`; None: equal.
        watch: see `base_station`.

    Raises:
        BadInput: channels that cannot be computed, or an invalid address.
        EngineError: the process did not start.
    """
    radio.air(_members(ues))  # raises here, rather than in the process
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_relay, args=(radio, list(weights or [1.0] * ues)[:ues], endpoint(target), theirs), daemon=True
    )
    process.start()
    theirs.close()  # so that its end is noticed
    try:
        try:
            found = ours.recv() if ours.poll(READY_S) else None
        except EOFError:
            found = None
        if found is None:
            raise EngineError("the relay of the shared radio did not start")
        with contextlib.ExitStack() as held:
            held.enter_context(watched("relay of the shared radio", process))
            if watch:
                held.enter_context(standstill_told("the relay of the shared radio", found[-1]))
            yield SharedRadio(*found)
    finally:
        ours.close()  # which ends it
        process.join(STOP_S)
        stop_all([process])


def _members(ues: int) -> list[RadioUe]:
    return [RadioUe(0)] * ues


def _relay(radio: RadioConfig, weights: Sequence[float], target: tuple[str, int], line: Connection) -> None:
    """Tell addresses and origin, and relay until the other end of the line is closed."""
    as_child()
    precise_loop().run_until_complete(_serve(radio, weights, target, line))


async def _serve(radio: RadioConfig, weights: Sequence[float], target: tuple[str, int], line: Connection) -> None:
    loop = asyncio.get_running_loop()
    cell = RadioCell(radio, radio.air(_members(len(weights))))
    origin_s = loop.time()
    cell.granted(True)  # its first slot begins now

    def ports(ue: int, connection: int) -> tuple[Carrier, Carrier]:
        return cell.port(ue, True, weights[ue]), cell.port(ue, False, weights[ue])

    proxies = [Proxy(target, partial(ports, ue)) for ue in range(len(weights))]
    listens = [f"tcp://{HOST}:{await proxy.start(HOST, 0)}" for proxy in proxies]
    with contextlib.suppress(EOFError, OSError):  # the parent process waits no longer
        line.send((tuple(listens), origin_s, os.getpid()))
        await loop.run_in_executor(None, line.recv)
    for proxy in proxies:
        await proxy.close()
