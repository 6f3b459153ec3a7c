"""`testbed field run`: place by place, every method in its turn, until all is done or somebody stops it.

Stopped in any way, the same command goes on: finished cells are not run again, and one that was cut short goes on with
the prompts that it has left.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from testbed.config import RunConfig
from testbed.errors import LinkError
from testbed.experiments.field.devices.base import Device, Probe, Reach, Say
from testbed.experiments.field.link import differences
from testbed.experiments.field.log import CELL, NOTE, VISIT, FieldLog
from testbed.experiments.field.operator import SKIP, STOP, Operator
from testbed.experiments.field.order import FieldCell, cells_of
from testbed.experiments.field.plan import FieldPlan, Place, run_config
from testbed.experiments.field.stage import Stage

DeviceOf = Callable[[Place], contextlib.AbstractContextManager[Device]]


class Crew(NamedTuple):
    """Who does a field run."""

    stage: Stage
    operator: Operator
    device_of: DeviceOf
    say: Say


def visit_all(log: FieldLog, crew: Crew) -> bool:
    """Visit every place where something is left to do; returns whether nothing is any more. An agent that falls silent
    holds up no other place.

    Raises:
        BadInput: a configuration that cannot be used, or a place that is not what it was, and nobody to ask.
        LinkError: a base station that cannot be reached; after all places, agents that could not be.
    """
    silent: list[str] = []
    for place in log.plan.places:
        left = log.left(place.name)
        if not left or place.ue in silent:
            continue
        answer = crew.operator.arrive(place, len(left), log.last_visit(place.name))
        if answer.word == STOP:
            break
        try:
            if answer.word != SKIP and _visit(log, place, crew, answer.note) == STOP:
                break
        except LinkError as exc:
            if place.ue is None:
                raise
            silent.append(place.ue)
            crew.say(f"{place.name}: {exc}; its runs are left for later")
    if silent:
        raise LinkError(f"{', '.join(silent)} did not answer; the same command goes on with the runs that are left")
    return not any(log.left(place.name) for place in log.plan.places)


def _visit(log: FieldLog, place: Place, crew: Crew, note: str) -> str:
    """Measure the link and run what is left; returns what the operator said."""
    with crew.stage.at(place) as reach, crew.device_of(place) as device:
        crew.say(f"{place.name}: measuring the link")
        plan = log.plan
        folder = log.place(place.name)
        measured = device.measure(reach, Probe(plan.handshakes, max(1, plan.iperf3_s), plan.timeout_s), folder)
        before = log.last_visit(place.name)
        reasons = differences(before["measured"], measured) if before else []
        if reasons:
            answer = crew.operator.accept(place, reasons)
            if answer.word:
                return answer.word
        log.add(
            VISIT, place=place.name, distance_m=place.distance_m, measured=measured, note=note, differs=reasons,
            origin_s=reach.origin_s,
        )  # fmt: skip
        left = log.left(place.name)
        device.expect([(cell_config(log, cell, reach.bs), log.cell(cell)) for cell in left])
        for cell in left:
            _run(log, cell, reach, device, crew.say)
    answer = crew.operator.leave(place)
    if answer.note:
        log.add(NOTE, place=place.name, note=answer.note)
    return answer.word


def _run(log: FieldLog, cell: FieldCell, reach: Reach, device: Device, say: Say) -> None:
    order = cells_of(log.plan, cell.place)
    say(f"{cell.place}: {cell.method}, repeat {cell.repeat + 1} ({order.index(cell) + 1} of {len(order)})")
    began_s = time.perf_counter()
    device.run(cell_config(log, cell, reach.bs), log.place(cell.place), log.cell(cell))
    log.add(CELL, cell=cell.key, began_s=began_s, ended_s=time.perf_counter(), origin_s=reach.origin_s)


def cell_config(log: FieldLog, cell: FieldCell, bs: str) -> RunConfig:
    """What the UE of a cell does, up to where its channel state begins."""
    return run_config(log.plan, cell.method, bs, "passive", str(log.prompts(cell.repeat)))


def on_this_machine(plan: FieldPlan) -> FieldPlan:
    """The plan without what only the field has: keys, agents."""
    places = tuple(msgspec.structs.replace(place, ue=None, trace=None) for place in plan.places)
    return msgspec.structs.replace(plan, keys=None, insecure=False, settle_s=0.0, places=places)


def progress_of(log: FieldLog) -> dict[str, Any]:
    """What is done and what is left, by place."""
    places: list[dict[str, Any]] = [
        {
            "place": place.name,
            "distance_m": place.distance_m,
            "cells": len(order),
            "done": sum(map(log.done, order)),
            "order": [[cell.method for cell in order if cell.repeat == i] for i in range(log.plan.repeats)],
        }
        for place in log.plan.places
        for order in [cells_of(log.plan, place.name)]
    ]
    return {"out": str(log.out), "places": places, "left": sum(p["cells"] - p["done"] for p in places)}


@contextlib.contextmanager
def one_device(device: Device) -> Iterator[Device]:
    """A device, let go of in the end."""
    try:
        yield device
    finally:
        device.close()


def default_out(plan: FieldPlan, emulated: bool) -> Path:
    """Where a field run goes by default."""
    return Path("runs") / (f"{plan.name}-emulated" if emulated else plan.name)
