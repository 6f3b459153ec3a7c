"""`testbed field run`: runs every method at every place, in balanced order.

After an interruption the same command resumes: finished cells are skipped, and an interrupted one continues with its
remaining prompts.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from testbed.config import RunConfig
from testbed.experiments.field.devices.base import Device, Probe, Reach, Say, Skipped, check_answered
from testbed.experiments.field.link import differences
from testbed.experiments.field.log import CELL, NOTE, VISIT, FieldLog
from testbed.experiments.field.operator import SKIP, STOP, Operator
from testbed.experiments.field.order import FieldCell, cells_of, steps_together
from testbed.experiments.field.plan import FieldPlan, Place, run_config
from testbed.experiments.field.stage import Stage
from testbed.experiments.results.directory import SUMMARY

LEAD_S = 3.0
"""Time until UEs that run together start: orders arrive, and processes begin."""
DeviceOf = Callable[[Place], contextlib.AbstractContextManager[Device]]


class FieldSetup(NamedTuple):
    """Stage, operator and devices of a field run."""

    stage: Stage
    operator: Operator
    device_of: DeviceOf
    say: Say


def visit_all(log: FieldLog, setup: FieldSetup) -> bool:
    """Visit every place with unfinished cells; returns whether all cells are done. Places whose agent does not answer,
    or fails, are skipped.

    Raises:
        BadInput: an invalid configuration, or a place whose link differs and no operator to decide.
        LinkError: the base station is unreachable; after all places, if any agent did not answer.
        AgentError: after all places, if any agent failed.
    """
    skipped = Skipped(setup.say)
    for place in log.plan.places:
        left = log.left(place.name)
        if not left or place.ue in skipped:
            continue
        answer = setup.operator.arrive(place, len(left), log.last_visit(place.name))
        if answer.word == STOP:
            break
        word = answer.word
        with skipped.at_fault(place, "; its runs are postponed"):
            word = word if word == SKIP else _visit(log, place, setup, answer.note)
        if word == STOP:
            break
    found = skipped.addresses()
    check_answered(found["silent"], found["failed"], "run the same command again to continue")
    if any(log.left(place.name) for place in log.plan.places):
        return False
    if steps := log.left_together():
        _run_together(log, steps, setup)
    return True


def _measured(log: FieldLog, place: Place, reach: Reach, device: Device) -> dict[str, Any]:
    plan = log.plan
    probe = Probe(plan.handshakes, max(1, plan.iperf3_s), plan.timeout_s)
    return device.measure(reach, probe, log.place(place.name))


def _run_together(log: FieldLog, steps: Sequence[Sequence[FieldCell]], setup: FieldSetup) -> None:
    """Run the same method at all places at the same time, step by step; a step that broke off begins anew.

    Raises:
        LinkError: an agent or the base station does not answer.
    """
    with contextlib.ExitStack() as held:
        reached = [held.enter_context(setup.stage.at(place)) for place in log.plan.places]
        devices = [held.enter_context(setup.device_of(place)) for place in log.plan.places]
        for place, reach, device in zip(log.plan.places, reached, devices, strict=True):
            _measured(log, place, reach, device)
        for number, step in enumerate(steps, 1):
            setup.say(f"all places: {step[0].method}, repeat {step[0].repeat + 1} ({number} of {len(steps)})")
            for cell in step:
                shutil.rmtree(log.cell(cell), ignore_errors=True)
            start_s = time.perf_counter() + LEAD_S
            for cell, reach, device in zip(step, reached, devices, strict=True):
                config = cell_config(log, cell, reach.bs)
                device.begin(config, log.place(cell.place), log.cell(cell), start_s)
            for cell, reach, device in zip(step, reached, devices, strict=True):
                device.run(cell_config(log, cell, reach.bs), log.place(cell.place), log.cell(cell))
            for cell, reach, device in zip(step, reached, devices, strict=True):
                log.add(CELL, cell=cell.key, origin_s=reach.origin_s, offset_s=device.offset_s)


def _visit(log: FieldLog, place: Place, setup: FieldSetup, note: str) -> str:
    """Measure the link and run the unfinished cells of a place; returns the operator's answer."""
    with setup.stage.at(place) as reach, setup.device_of(place) as device:
        setup.say(f"{place.name}: measuring the link")
        measured = _measured(log, place, reach, device)
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
    if (log.cell(cell) / SUMMARY).exists():  # a run without a line in the log
        shutil.rmtree(log.cell(cell))
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
    steps = steps_together(log.plan)
    left = sum(p["cells"] - p["done"] for p in places) + len(places) * len(log.left_together())
    return {"out": str(log.out), "places": places, "together": len(steps), "left": left}


def default_out(plan: FieldPlan, emulated: bool) -> Path:
    """Default directory of a field run."""
    return Path("runs") / (f"{plan.name}-emulated" if emulated else plan.name)
