"""`testbed field`: a guided run at several distances, in the field or rehearsed at the desk."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.assets.hub import no_downloads
from testbed.cli.options import AsJson, completion
from testbed.cli.output import note, print_json, progress, visible
from testbed.cli.screens import CommandGroup
from testbed.cli.tables import TableCommand, print_rows
from testbed.errors import BadInput
from testbed.experiments.results.field_columns import CONTENTION_COLUMNS, FIELD_COLUMNS

if TYPE_CHECKING:
    from testbed.experiments.field.log import FieldLog
    from testbed.experiments.field.plan import FieldPlan, Place
    from testbed.experiments.field.run import DeviceOf, FieldSetup

app = CommandGroup(
    no_args_is_help=True, help="A guided run at several distances, in the field or rehearsed at the desk."
)
AsConfigured = Annotated[
    bool,
    typer.Option("--as-configured", help="Let models and data sets of the hub that DIR names be downloaded."),
]
PlanFile = Annotated[
    str,
    typer.Argument(
        metavar="PLAN", help="YAML: places, methods, prompts; or rehearsal.", autocompletion=completion("plans")
    ),
]
AgentsPlan = Annotated[str, typer.Argument(metavar="PLAN", help="YAML: places with agents (ue: tcp://...).")]


@app.callback()
def group() -> None:
    """A guided run at several distances, in the field or rehearsed at the desk."""


@app.command(cls=TableCommand)
def run(
    plan: PlanFile,
    out: Annotated[Path | None, typer.Option(help="Directory; default: runs/NAME. The same one again goes on.")] = None,
    emulated: Annotated[
        bool, typer.Option("--emulated", help="Rehearse on this machine: distances become links of the plan's model.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nobody; a place that is not what it was is refused.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check the plan, print what is left and what is missing here; run nothing.")
    ] = False,
    replay: Annotated[bool, typer.Option(help="Run all of it again in virtual time, for the report.")] = True,
    as_json: AsJson = False,
) -> None:
    """Visit every place of a plan, measure its link, run every method, and report.

    Stopped in any way (Ctrl-C, a flat battery), the same command goes on where it was. Questions are asked on the
    terminal: whether the UE is there, what to note, and what to do where a link is not what it was; --emulated asks
    them too, for rehearsal, unless --yes is given or there is no terminal.

    Examples:

        testbed field run plans/rehearsal.yaml --emulated

        testbed field run plans/field-example.yaml --check

        testbed field run hall.yaml --out runs/hall
    """
    from testbed.experiments.field.run import default_out, on_this_machine

    found = _load(plan)
    if emulated:
        found = on_this_machine(found)
    where = out or default_out(found, emulated)
    if check:
        _plan(found, where, emulated, as_json)
        return
    if not (emulated or yes or sys.stdin.isatty()):
        raise BadInput("somebody must say where the UE is: run it on a terminal, or give --yes or --emulated")
    _visit(found, where, emulated, yes or not sys.stdin.isatty(), replay, as_json)


def _load(plan: str) -> FieldPlan:
    """A plan by its name or file."""
    from testbed.assets.bundled_files import find
    from testbed.experiments.field.plan import load_plan

    return load_plan(find("plans", plan), pipes=True)


def _visit(plan: FieldPlan, where: Path, emulated: bool, unattended: bool, replay: bool, as_json: bool) -> None:
    """Run what is left of a plan, and report once it is complete."""
    from testbed.experiments.field.log import FieldLog, open_log
    from testbed.experiments.field.ready import check_here
    from testbed.experiments.field.run import progress_of, visit_all

    if progress_of(FieldLog(where, plan))["left"]:
        check_here(plan, emulated)
    with open_log(where, plan, emulated) as log:
        if progress_of(log)["left"]:
            with _setup(log, emulated, unattended) as setup:
                visit_all(log, setup)
        left = progress_of(log)
        if left["left"]:
            note(f"{left['left']} runs are left; the same command goes on with them")
            if as_json:
                print_json(left)
            return
        _report(log, emulated, replay, as_json)


@app.command(cls=TableCommand)
def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a field run, finished or not.")],
    replay: Annotated[bool, typer.Option(help="Run all of it again in virtual time.")] = True,
    as_configured: AsConfigured = False,
    as_json: AsJson = False,
) -> None:
    """Summarize a field run from its directory: samples, recorded links as traces, virtual runs, report.html.

    Examples:

        testbed field report runs/hall

        testbed field report runs/hall --no-replay --json
    """
    from testbed.experiments.field.log import read_field

    with no_downloads(not as_configured):
        _, log, emulated = read_field(directory)
        _report(log, emulated, replay, as_json)


@app.command()
def deploy(
    plan: AgentsPlan,
    as_json: AsJson = False,
) -> None:
    """Copy the plan's drafter, tokenizer and predictors to the agents of its places, and print the state of each.

    Files that are there already stay; one that broke off goes on where it was. Prompts go with the orders.

    Examples:

        testbed field deploy hall.yaml
    """
    from testbed.experiments.field.fleet import deploy as carry
    from testbed.experiments.field.fleet import with_agents
    from testbed.experiments.field.ready import check_here

    found = _load(plan)
    with_agents(found)
    check_here(found)
    rows = carry(found, note)
    if as_json:
        print_json({"agents": rows})
    else:
        for row in rows:
            print(visible(f"{', '.join(row['places'])}: {row['error'] or _stands(row)}"))
    silent = [row["ue"] for row in rows if row["error"] and not row["failed"]]
    _check_answered(silent, [row["ue"] for row in rows if row["failed"]])


@app.command()
def collect(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a field run.")],
    as_configured: AsConfigured = False,
    as_json: AsJson = False,
) -> None:
    """Fetch the results that agents produced while this machine was disconnected; give no new orders.

    Examples:

        testbed field collect runs/hall
    """
    from testbed.experiments.field.fleet import collect as bring
    from testbed.experiments.field.log import open_log, read_field

    plan, _, emulated = read_field(directory)
    with no_downloads(not as_configured), open_log(directory, plan, emulated) as log:
        found = bring(log, note)
    if as_json:
        print_json(found)
    else:
        note(f"{found['collected']} runs collected; {found['left']} are left")
    _check_answered(found["silent"], found["failed"])


@app.command()
def cancel(
    plan: AgentsPlan,
    place: Annotated[list[str] | None, typer.Option(help="Only this place; repeat for more.")] = None,
    as_json: AsJson = False,
) -> None:
    """Cancel the plan's waiting and running orders at its agents; what a run has finished is kept.

    A cancelled order starts again if `field run` gives it again.

    Examples:

        testbed field cancel hall.yaml --place far
    """
    from testbed.experiments.field.fleet import cancel as withdraw

    found = withdraw(_load(plan), place or [], note)
    if as_json:
        print_json(found)
    else:
        note(f"{found['cancelled']} orders are cancelled")
    _check_answered(found["silent"], found["failed"])


def _stands(row: dict[str, Any]) -> str:
    """State of an agent, in words."""
    put = f"{len(row['files'])} files are there" if row["files"] else "nothing to carry: the bundled pair is there"
    return f"{row['host']}, testbed {row['testbed']}, {row['waiting']} orders waiting; {put}"


def _check_answered(silent: list[str], failed: list[str]) -> None:
    from testbed.experiments.field.devices.base import check_answered

    check_answered(silent, failed, "run it again when they do")


def _report(log: FieldLog, emulated: bool, replay: bool, as_json: bool) -> None:
    from testbed.experiments.field.report import report_field

    with progress("in virtual time") as told:
        document = report_field(log, emulated, note, told, replay)
    if as_json:
        print_json(document)
        return
    print_rows(document["rows"], log.plan.name, FIELD_COLUMNS)
    if document.get("together"):
        print_rows(document["together"], "all places at the same time", CONTENTION_COLUMNS)
    for way, worst in document["agreement"].items():
        note(f"{way}: latencies within {worst:.1%} of those that were measured")
    if document["left"]:
        note(f"not finished: {document['left']} runs are left")
    note(f"wrote {log.out}/report.html")


def _plan(plan: FieldPlan, where: Path, emulated: bool, as_json: bool) -> None:
    """Print the steps of the plan and what this machine lacks for them, without changing anything."""
    from testbed.experiments.field.log import FieldLog
    from testbed.experiments.field.ready import check_here
    from testbed.experiments.field.run import progress_of

    found = {**progress_of(FieldLog(where, plan)), "missing": None}
    try:
        check_here(plan, emulated)
    except BadInput as exc:
        found["missing"] = str(exc)
    if as_json:
        print_json(found)
        return
    for place in found["places"]:
        print(f"{place['place']}: {place['distance_m']:g} m, {place['done']} of {place['cells']} runs done")
        for number, order in enumerate(place["order"], 1):
            print(f"    repeat {number}: {', '.join(order)}")
    if found["together"]:
        print(f"all places at the same time: {found['together']} steps")
    print(f"{found['out']}: {found['left']} runs to do, {plan.prompts} prompts each")
    if found["missing"]:
        note(f"it cannot be run from here yet: {found['missing']}")


@contextlib.contextmanager
def _setup(log: FieldLog, emulated: bool, yes: bool) -> Iterator[FieldSetup]:
    """Stage, operator and devices of the run."""
    from testbed.experiments.field.operator import Operator, Terminal, Unattended
    from testbed.experiments.field.run import FieldSetup
    from testbed.experiments.field.stage import Field, Stage, emulation

    with contextlib.ExitStack() as held:
        stage: Stage = held.enter_context(emulation(log, note)) if emulated else Field(log.plan)
        operator: Operator = Unattended(trusting=emulated) if yes else Terminal()
        yield FieldSetup(stage, operator, _devices(log), note)


def _devices(log: FieldLog) -> DeviceOf:
    from testbed.experiments.field.devices.base import LocalDevice
    from testbed.experiments.field.fleet import agent_device

    def device_of(place: Place) -> Any:
        if place.ue is not None:
            return contextlib.closing(agent_device(log.plan, place, note, log.run))
        return contextlib.closing(LocalDevice(log.plan.keys, log.plan.settle_s, note))

    return device_of
