"""`testbed capacity`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from testbed.cli.output import note, print_json, print_rows
from testbed.errors import BadInput

COLUMNS = {
    "system": ("system", "{}"),
    "varied": ("varied", "{}"),
    "class_tps": ("class tok/s", "{:g}"),
    "ues": ("UEs", "{:d}"),
    "capacity": ("capacity", "{:d}"),
    "paper": ("paper", "{:d}"),
    "ratio": ("ratio", "{:.3f}"),
    "violation": ("violated", "{:.3f}"),
    "goodput_tps": ("goodput tok/s", "{:.1f}"),
    "acceptance": ("accepted", "{:.3f}"),
    "batch_size": ("batch", "{:.1f}"),
    "busy_share": ("busy", "{:.2f}"),
    "evicted_tokens": ("evicted", "{:d}"),
}

VIOLATED = "violated at"
"""Begins the header of a class's share."""


def capacity(
    config: Annotated[Path | None, typer.Option(help="YAML of a configuration; options given here win.")] = None,
    systems: Annotated[
        str | None,
        typer.Option(
            help="Of wisp, fcfs-cache, sled, centralized; wisp-gain; and with parts of these changed wisp-carry, "
            "wisp-fixed, wisp-filled, fixed-filled, fcfs-predicted, fcfs-hinted."
        ),
    ] = None,
    classes: Annotated[str | None, typer.Option(help="Token speeds, each a load of its own.")] = None,
    mix: Annotated[str | None, typer.Option(help="One load instead: speed:share,..., such as 2:1,4:1,6:1,8:1.")] = None,
    profile: Annotated[str | None, typer.Option(help="Whose pass times: a name or a file.")] = None,
    verify_scale: Annotated[float | None, typer.Option(help="Factor on the profile's pass times.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Share of violated responses that is tolerated.")] = None,
    horizon_s: Annotated[float | None, typer.Option(help="Responses that begin within it are judged.")] = None,
    ues: Annotated[int | None, typer.Option(help="So many UEs, and no search.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Seeds; the capacity is the median.")] = None,
    seed: Annotated[int | None, typer.Option(help="The first of them.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE of any other assumption.")] = None,
    sensitivity: Annotated[bool, typer.Option("--sensitivity", help="Vary every assumption by itself.")] = False,
    sweep: Annotated[str | None, typer.Option(help="Violations over N: FROM:TO:STEP.")] = None,
    tables: Annotated[
        bool, typer.Option("--tables", help="With --out: the paper's Tables 1, 5, 6 and Figs. 7, 8, 11 too.")
    ] = False,
    real: Annotated[
        bool, typer.Option("--real", help="For real: a BS and UE processes here, the bundled pair; needs --out.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(help="Runs at once; default: one for each core.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory for tables and plots; the same one again resumes.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """How many UEs a BS sustains at a token speed, in virtual time through the code that serves for real.

    The capacity is the largest N at which at most ε of the responses come slower than their class. Everything that
    WISP's Table 2 leaves open is a field of the configuration (docs/guides/capacity.md); the resolved one is written
    out.

    Examples:

        testbed capacity --systems wisp,sled --classes 8

        testbed capacity --mix 2:1,4:1,6:1,8:1 --ues 110

        testbed capacity --config sweeps/capacity/table2.yaml --out runs/table2

        testbed capacity --classes 8 --set kv_tokens=104000 --set acceptance=0.6

        testbed capacity --systems wisp,centralized --classes 8 --sensitivity --json

        testbed capacity --real --mix 10:1,20:1 --ues 8 --set max_batch=2 --out runs/real
    """
    from testbed.experiments.capacity.report import Study, study
    from testbed.experiments.capacity.systems import CapacityConfig, configured

    asked: dict[str, Any] = {
        "systems": _list(systems), "classes": _list(classes), "mix": _mix(mix), "profile": profile,
        "verify_scale": verify_scale, "epsilon": epsilon, "horizon_s": horizon_s, "ues": ues, "repeats": repeats,
        "seed": seed,
    }  # fmt: skip
    given = {k: v for k, v in asked.items() if v is not None}
    if real:
        if out is None or sensitivity or tables or jobs:
            raise BadInput(
                "--real writes its runs down, one after another: give --out, and no --sensitivity or --tables"
            )
        document = _real(config, given, _range(sweep), set_ or [], out)
        _show(document, "processes of this machine", as_json, out)
        return
    resolved = configured(CapacityConfig(), config, given, set_ or [])
    if jobs is not None and jobs < 1:
        raise BadInput(f"--jobs must be at least 1, not {jobs}")
    if tables and out is None:
        raise BadInput("--tables writes files: give --out DIR")
    plan = Study(resolved, sensitivity, _range(sweep), tables, jobs or os.cpu_count() or 1)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("capacity", total=None)

        def told(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total, description=text or "capacity")

        document = study(plan, out, told)
    _show(document, _title(document), as_json, out)


def _real(
    config: Path | None, given: dict[str, Any], loads: tuple[int, ...], more: list[str], out: Path
) -> dict[str, Any]:
    """Runs of processes."""
    from testbed.experiments.capacity.real import RealConfig, study
    from testbed.experiments.capacity.systems import configured

    if unknown := [name for name in given if name not in RealConfig.__struct_fields__]:
        raise BadInput(f"--real takes no --{unknown[0].replace('_', '-')}; its load is a --mix")
    if loads and "ues" in given:
        raise BadInput("--ues and --sweep exclude each other")
    if loads or "ues" in given:
        given = {**given, "ues": list(loads) or [given["ues"]]}
    return study(configured(RealConfig(), config, given, more), out, note)


def _show(document: dict[str, Any], title: str, as_json: bool, out: Path | None) -> None:
    if as_json:
        print_json(document)
        return
    rows = [_flat(row) for row in document["rows"]]
    shares = {name: (name, "{:.3f}") for row in rows for name in row if name.startswith(VIOLATED)}
    print_rows(rows, title, COLUMNS | shares)
    if out is not None:
        note(f"wrote {out}")


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row with a column for each class's violations."""
    shares = {f"{VIOLATED} {speed}": share for speed, share in row.get("violations", {}).items()}
    return {**row, **shares} if len(shares) > 1 else row


def _title(document: dict[str, Any]) -> str:
    config = document["config"]
    return f"ε {config['epsilon']:g}, profile {config['profile']} × {config['verify_scale']:g}, seed {config['seed']}"


def _list(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",")]


def _mix(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    pairs = [part.partition(":") for part in text.split(",")]
    if len({speed.strip() for speed, _, _ in pairs}) < len(pairs):
        raise BadInput("a mix names each speed once")
    return {speed.strip(): share.strip() or "1" for speed, _, share in pairs}


def _range(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        first, last, step = (int(part) for part in text.split(":"))
        found = tuple(range(first, last + 1, step))
    except ValueError as exc:
        raise BadInput(f"--sweep takes FROM:TO:STEP, such as 20:200:20, not {text!r}") from exc
    if not found or first < 1 or step < 1:
        raise BadInput(f"--sweep takes FROM:TO:STEP with 1 ≤ FROM ≤ TO and STEP ≥ 1, not {text!r}")
    return found
