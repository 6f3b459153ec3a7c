"""`testbed field run`: runs every method at every place, in balanced order.

After an interruption the same command resumes: finished cells are skipped, and an interrupted one continues with its
remaining prompts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
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


class FieldSetup(NamedTuple):
    """Stage, operator and devices of a field run."""

    stage: Stage
    operator: Operator
    device_of: DeviceOf
    say: Say


def visit_all(log: FieldLog, setup: FieldSetup) -> bool:
    """Visit every place with unfinished cells; returns whether all cells are done. Places whose agent does not answer
    are skipped.

    Raises:
        BadInput: an invalid configuration, or a place whose link differs and no operator to decide.
        LinkError: the base station is unreachable; after all places, if any agent did not answer.
    """
    silent: list[str] = []
    for place in log.plan.places:
        left = log.left(place.name)
        if not left or place.ue in silent:
            continue
        answer = setup.operator.arrive(place, len(left), log.last_visit(place.name))
        if answer.word == STOP:
            break
        try:
            if answer.word != SKIP and _visit(log, place, setup, answer.note) == STOP:
                break
        except LinkError as exc:
            if place.ue is None:
                raise
            silent.append(place.ue)
            setup.say(f"{place.name}: {exc}; its runs are postponed")
    if silent:
        raise LinkError(f"{', '.join(silent)} did not answer; run the same command again to continue")
    return not any(log.left(place.name) for place in log.plan.places)


def _visit(log: FieldLog, place: Place, setup: FieldSetup, note: str) -> str:
    """Measure the link and run the unfinished cells of a place; returns the operator's answer."""
    with setup.stage.at(place) as reach, setup.device_of(place) as device:
        setup.say(f"{place.name}: measuring the link")
        plan = log.plan
        folder = log.place(place.name)
        measured = device.measure(reach, Probe(plan.handshakes, max(1, plan.iperf3_s), plan.timeout_s), folder)
        before = log.last_visit(place.name)
        reasons = differences(before["measured"], measured) if before else []
        if reasons:
            answer = setup.operator.accept(place, reasons)
            if answer.word:
                return answer.word
        log.add(
            VISIT, place=place.name, distance_m=place.distance_m, measured=measured, note=note, differs=reasons,
            origin_s=reach.origin_s,
        )  # fmt: skip
        left = log.left(place.name)
        device.expect([(cell_config(log, cell, reach.bs), log.cell(cell)) for cell in left])
        for cell in left:
            _run(log, cell, reach, device, setup.say)
    answer = setup.operator.leave(place)
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
    """Run configuration of the UE for a cell, except for the measurement that its channel state starts from."""
    return run_config(log.plan, cell.method, bs, "passive", str(log.prompts(cell.repeat)))


def on_this_machine(plan: FieldPlan) -> FieldPlan:
    """The plan without keys, agents and delays, for an emulated run."""
    places = tuple(msgspec.structs.replace(place, ue=None, trace=None) for place in plan.places)
    return msgspec.structs.replace(plan, keys=None, insecure=False, settle_s=0.0, places=places)


def progress_of(log: FieldLog) -> dict[str, Any]:
    """Numbers of finished and remaining cells, by place."""
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


def default_out(plan: FieldPlan, emulated: bool) -> Path:
    """Default directory of a field run."""
    return Path("runs") / (f"{plan.name}-emulated" if emulated else plan.name)
