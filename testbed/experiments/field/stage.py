"""Places of a field run: in the field, or on this machine with an emulated link for every place."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from testbed.bs.engines.registry import ENGINES
from testbed.channel.radio.config import RadioConfig, TraceSource
from testbed.channel.spec import ChannelSpec
from testbed.config import ServeConfig
from testbed.experiments.field.devices.base import Reach, Say
from testbed.experiments.field.link import write_model
from testbed.experiments.field.log import FieldLog
from testbed.experiments.field.plan import FieldPlan, Place
from testbed.experiments.inputs.pair import target_for
from testbed.experiments.links.shared import SharedRadio, shared_radio
from testbed.experiments.links.validate import iperf3_server
from testbed.experiments.runs.processes import base_station, proxy
from testbed.models.bundle import head_directory

MODEL = "model.csv"
"""File of the modelled link in the directory of a place."""


class Stage(Protocol):
    """Connects the UE to the base station at each place."""

    def at(self, place: Place) -> contextlib.AbstractContextManager[Reach]:
        """Addresses of the base station while the UE is at this place."""


class Field:
    """Implements `Stage` with a running base station; the operator moves the UE."""

    def __init__(self, plan: FieldPlan) -> None:
        self._plan = plan

    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[Reach]:
        """The same addresses at every place."""
        yield Reach(self._plan.bs, self._plan.iperf3 if self._plan.iperf3_s else None)


class Emulation:
    """Implements `Stage` with relays between UE and base station on this machine that emulate each place's link.

    Args:
        bs: address of the base station.
        iperf3: port of the iperf3 server; None: none.
        shared: a relay with the UEs of all places on one radio; None: each place has a link of its own.
    """

    def __init__(self, log: FieldLog, bs: str, iperf3: int | None, shared: SharedRadio | None = None) -> None:
        self._log, self._bs, self._iperf3, self._shared = log, bs, iperf3, shared

    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[Reach]:
        """Start relays that replay the place's trace, repeating it when it ends, unless they are shared."""
        if self._shared is not None:
            listens = dict(zip((one.name for one in self._log.plan.places), self._shared.listens, strict=True))
            yield Reach(listens[place.name], None, self._shared.origin_s)
            return
        link = ChannelSpec(kind="trace", file=str(self._log.place(place.name) / MODEL))
        with contextlib.ExitStack() as held:
            relay = held.enter_context(proxy(link, self._bs))
            server = None
            if self._iperf3 is not None:
                transfers = held.enter_context(proxy(link, f"tcp://127.0.0.1:{self._iperf3}"))
                server = transfers["listen"].removeprefix("tcp://")
            yield Reach(relay["listen"], server, relay["origin_s"])


@contextlib.contextmanager
def emulation(log: FieldLog, say: Say) -> Iterator[Emulation]:
    """Start a base station on this machine, and an iperf3 server if iperf3 is installed.

    Raises:
        BadInput: an unusable model, head or engine, or a place without a link.
        TestbedError: a process did not start.
    """
    for index, place in enumerate(log.plan.places):
        path = log.place(place.name) / MODEL
        if not path.exists():
            write_model(path, log.plan.model, place.distance_m, index)
    with contextlib.ExitStack() as held:
        say(f"starting the base station ({log.plan.engine})")
        wanted = log.plan.iperf3_s > 0 and not log.plan.together and shutil.which("iperf3") is not None
        ready = held.enter_context(base_station(serve_config(log.plan)))
        port = held.enter_context(iperf3_server("127.0.0.1")) if wanted else None
        say(f"base station ready on {ready['bind']} (pid {ready['pid']})")
        shared = held.enter_context(_shared(log, ready["bind"])) if log.plan.together else None
        yield Emulation(log, ready["bind"], port, shared)


def _shared(log: FieldLog, bs: str) -> contextlib.AbstractContextManager[SharedRadio]:
    """The UEs of all places on one radio: a UE alone has the rates of its place's model, and all share the slots."""
    model, places = log.plan.model, log.plan.places
    traces = TraceSource(files=tuple(str(log.place(place.name) / MODEL) for place in places))
    radio = RadioConfig(bandwidth_hz=model.bandwidth_hz, wired_ms=model.rtt_ms / 2, source=traces)
    return shared_radio(radio, len(places), bs)


def target_of(plan: FieldPlan) -> Path:
    """Directory or GGUF file of the target."""
    return Path(target_for(plan.engine, plan.target))


def serve_config(plan: FieldPlan) -> ServeConfig:
    """Configuration of the base station of an emulated run."""
    return ServeConfig(
        bind="tcp://127.0.0.1:*",
        engine=plan.engine,
        model=str(target_of(plan)) if ENGINES.choose(plan.engine).needs_model else None,
        dtype=plan.dtype,
        judge=plan.judge,
        head=None if plan.head is None else str(head_directory(plan.head)),
    )
