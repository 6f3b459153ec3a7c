"""Deploys files to the agents of a plan, collects results and cancels orders; skips an agent that does not answer, or
fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

from testbed.assets.model_names import named
from testbed.errors import AgentError, BadInput, LinkError
from testbed.experiments.field.devices.agents import AgentConnection
from testbed.experiments.field.devices.base import Say, Skipped
from testbed.experiments.field.devices.remote import AgentDevice
from testbed.experiments.field.log import CELL, FieldLog
from testbed.experiments.field.plan import FieldPlan, Place
from testbed.experiments.field.run import cell_config, progress_of


def agent_device(plan: FieldPlan, place: Place, say: Say, run: str = "") -> AgentDevice:
    """Connect to the agent of a place.

    Args:
        run: that of the field run's log; empty: no orders are given or asked for.

    Raises:
        BadInput: unusable keys.
        LinkError: the agent does not answer.
        AgentError: it answers wrongly.
    """
    assert place.ue is not None
    agent = AgentConnection(place.ue, place.ue_keys, plan.insecure)
    return AgentDevice(agent, plan.name, place.trace, plan.settle_s, say, run)


def deploy(plan: FieldPlan, say: Say) -> list[dict[str, Any]]:
    """Upload the plan's files to its agents; returns a row per agent: `ue`, `places`, uploaded `files`, its state, and,
    if it was skipped, `error`, and whether it `failed`: it answered, but wrongly.

    Raises:
        BadInput: no place has an agent, or a file is missing.
    """
    wanted = [
        plan.drafter and named(plan.drafter, "drafter"),
        plan.tokenizer and named(plan.tokenizer, "tokenizer"),
        *(method.predictor for method in plan.methods),
    ]
    rows: dict[str, dict[str, Any]] = {}
    for place in with_agents(plan):
        row = rows.setdefault(str(place.ue), {"ue": place.ue, "places": [], "error": None, "failed": False})
        row["places"].append(place.name)
        if len(row["places"]) > 1:
            continue
        try:
            with contextlib.closing(agent_device(plan, place, say)) as device:
                files = [device.put(path) for path in dict.fromkeys(wanted) if path]
                row.update(device.standing(), files=files)
        except (LinkError, AgentError) as exc:
            row.update(error=str(exc), failed=isinstance(exc, AgentError))
    return list(rows.values())


def collect(log: FieldLog, say: Say) -> dict[str, Any]:
    """Collect finished runs from the agents; returns `collected`, `silent` (agents that did not answer), `failed`
    (those that answered wrongly, or whose orders failed) and progress.

    Raises:
        BadInput: no place has an agent.
    """
    brought, skipped = 0, Skipped(say)
    for place in with_agents(log.plan):
        left = log.left(place.name)
        if not left or place.ue in skipped:
            continue
        with skipped.at_fault(place), contextlib.closing(agent_device(log.plan, place, say, log.run)) as device:
            for cell in left:
                with skipped.at_fault(place):
                    if device.collect(cell_config(log, cell, log.plan.bs), log.cell(cell)):
                        log.add(CELL, cell=cell.key, origin_s=None)
                        brought += 1
                if place.ue in skipped:
                    break
    return {"collected": brought, **skipped.addresses(), **progress_of(log)}


def cancel(plan: FieldPlan, names: Collection[str], say: Say) -> dict[str, Any]:
    """Cancel the plan's unfinished orders at its agents; returns how many are `cancelled`, and `silent` and `failed`.

    Args:
        names: places; empty: all places with an agent.

    Raises:
        BadInput: a place that the plan does not have, or without an agent.
    """
    found = with_agents(plan)
    if unknown := sorted(set(names) - {place.name for place in found}):
        known = ", ".join(place.name for place in found)
        raise BadInput(f"{', '.join(unknown)}: no place with an agent has this name; known: {known}")
    cancelled, skipped = 0, Skipped(say)
    for place in found:
        if (names and place.name not in names) or place.ue in skipped:
            continue
        with skipped.at_fault(place), contextlib.closing(agent_device(plan, place, say)) as device:
            cancelled += device.cancel(place.name)
    return {"cancelled": cancelled, **skipped.addresses()}


def with_agents(plan: FieldPlan) -> list[Place]:
    """Places whose UE is an agent.

    Raises:
        BadInput: none.
    """
    found = [place for place in plan.places if place.ue is not None]
    if not found:
        raise BadInput("no place of this plan has an agent; set a place's ue: tcp://HOST:PORT")
    return found
