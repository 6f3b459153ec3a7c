"""`testbed capacity`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.cli.options import AsJson, Given, offering
from testbed.cli.output import note, print_json, progress
from testbed.cli.tables import print_rows
from testbed.config import load, resolved
from testbed.errors import BadInput
from testbed.experiments.capacity.config import MOST_UES, CapacityConfig
from testbed.files import yaml_values
from testbed.options import C, replaced

COLUMNS = {
    "system": ("system", "{}"),
    "varied": ("varied", "{}"),
    "class_tps": ("class tok/s", "{:g}"),
    "ues": ("UEs", "{:d}"),
    "capacity": ("capacity", "{:d}"),
    "capacity_mean": ("mean", "{:.1f}"),
    "capacity_low": ("from", "{:.1f}"),
    "capacity_high": ("to", "{:.1f}"),
    "difference": ("minus fcfs-cache", "{:+.1f}"),
    "difference_low": ("from ", "{:+.1f}"),
    "difference_high": ("to ", "{:+.1f}"),
    "verdict": ("verdict", "{}"),
    "all": ("all keep ε", "{:d}"),
    "all_difference": ("minus fcfs-cache ", "{:+.1f}"),
    "all_verdict": ("verdict ", "{}"),
    "paper": ("paper", "{:d}"),
    "ratio": ("ratio", "{:.3f}"),
    "violation": ("violated", "{:.3f}"),
    "violation_low": ("from  ", "{:.3f}"),
    "violation_high": ("to  ", "{:.3f}"),
    "violation_difference": ("difference", "{:+.3f}"),
    "violation_verdict": ("violations", "{}"),
    "goodput_tps": ("goodput tok/s", "{:.1f}"),
    "goodput_tps_verdict": ("goodput", "{}"),
    "acceptance": ("accepted", "{:.3f}"),
    "batch_size": ("batch", "{:.1f}"),
    "busy_share": ("busy", "{:.2f}"),
    "evicted_tokens": ("evicted", "{:.0f}"),
    "memory_bound": ("memory binds", "{:.3f}"),
}

VIOLATED = "violated at"
"""Begins the header of a class's share."""


ASKED = (
    "systems", "classes", "mix", "profile", "verify_scale", "epsilon", "horizon_s", "ues", "repeats", "seed",
)  # fmt: skip
"""Fields with an option; `--set` takes the others."""


Set = Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE of any other assumption.")]
Switches = Annotated[
    bool, typer.Option("--switches", help="Algorithm 1 as printed, with each repair alone, and without each.")
]
Estimates = Annotated[
    bool,
    typer.Option(
        "--estimates",
        help="Vary errors of the pass times that schedulers plan by, and of the predictor's probabilities.",
    ),
]
Tables = Annotated[
    bool, typer.Option("--tables", help="Also write the paper's Tables 1, 5, 6 and Figs. 7, 8; needs --out.")
]
Real = Annotated[
    bool, typer.Option("--real", help="In real time: BS and UE processes here, the bundled pair; needs --out.")
]
Out = Annotated[Path | None, typer.Option(help="Directory for tables and plots; give it again to resume.")]


@offering(CapacityConfig, only=ASKED)
def capacity(
    given: Given,
    set_: Set = None,
    sensitivity: Annotated[bool, typer.Option("--sensitivity", help="Vary every assumption by itself.")] = False,
    switches: Switches = False,
    estimates: Estimates = False,
    sweep: Annotated[str | None, typer.Option(help="Violations over the number of UEs: FROM:TO:STEP.")] = None,
    tables: Tables = False,
    real: Real = False,
    jobs: Annotated[int | None, typer.Option(help="Concurrent runs. Default: one per core.")] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Find how many UEs a BS sustains at a token speed, in virtual time with the code of real runs.

    The capacity is the largest N at which at most ε of the responses are slower than their class. Everything that
    WISP's Table 2 leaves open is a field of the configuration (docs/guides/capacity.md); the resolved one is written
    out.

    Examples:

        testbed capacity --systems wisp,sled --classes 8

        testbed capacity --config sweeps/capacity/table2.yaml --out runs/table2

        testbed capacity --systems wisp,centralized --classes 8 --sensitivity --json

        testbed capacity --systems wisp --classes 8 --switches --ues 75 --repeats 5

        testbed capacity --real --mix 10:1,20:1 --ues 8 --set max_batch=2 --out runs/real
    """
    vary, loads = _varied(sensitivity=sensitivity, switches=switches, estimates=estimates), _range(sweep)
    if real:
        if out is None or vary or tables or jobs:
            raise BadInput("--real runs one load after another: give --out, and no --sensitivity or --tables")
        document = _real(given, loads, set_ or [], out)
    else:
        document = _study(given, vary, loads, set_ or [], tables, jobs, out)
    _show(document, "processes of this machine" if real else _title(document), as_json, out)


def _varied(**flags: bool) -> str | None:
    """What the runs vary: the one flag that is set."""
    varied = [name for name, on in flags.items() if on]
    if len(varied) > 1:
        raise BadInput(f"--{varied[0]} and --{varied[1]} exclude each other")
    return varied[0] if varied else None


def _study(
    given: Given,
    vary: str | None,
    loads: tuple[int, ...],
    more: list[str],
    tables: bool,
    jobs: int | None,
    out: Path | None,
) -> dict[str, Any]:
    """Runs in virtual time."""
    from testbed.experiments.capacity.report import Study, study

    if (jobs is not None and jobs < 1) or (tables and out is None):
        raise BadInput("--jobs must be at least 1, and --tables needs --out DIR")
    config = combined(CapacityConfig(), given.file, given.values, more)
    with progress("capacity") as told:
        return study(Study(config, vary, loads, tables, jobs or os.cpu_count() or 1), out, told)


def _real(given: Given, loads: tuple[int, ...], more: list[str], out: Path) -> dict[str, Any]:
    """Runs of processes."""
    from testbed.experiments.capacity.real import study
    from testbed.experiments.capacity.real_config import RealConfig

    values = given.values
    if unknown := [name for name in values if name not in RealConfig.__struct_fields__]:
        raise BadInput(f"--real takes no --{unknown[0].replace('_', '-')}; its load is a --mix")
    if loads and "ues" in values:
        raise BadInput("--ues and --sweep exclude each other")
    if loads or "ues" in values:
        values = {**values, "ues": list(loads) or [values["ues"]]}
    return study(combined(RealConfig(), given.file, values, more), out, note)


def combined(default: C, file: Path | None, given: Mapping[str, Any], more: Sequence[str] = ()) -> C:
    """A configuration from a file, options on top of it, and on top of them FIELD=VALUE pairs, values as in YAML.

    Raises:
        BadInput: a file that cannot be read, an unknown field, or a value that cannot be.
    """
    values = resolved(load(type(default), file, pipes=True)) if file is not None else {}
    if "classes" in given and "mix" in given:
        raise BadInput("give --classes, each class by itself, or --mix, all in one load")
    if "classes" in given:
        values["mix"] = None
    values |= given
    if isinstance(mix := given.get("mix"), str):
        values["mix"] = _mix(mix)
    for text in more:
        name, equals, value = text.partition("=")
        if not equals or name not in default.__struct_fields__:
            known = ", ".join(default.__struct_fields__)
            raise BadInput(f"--set takes FIELD=VALUE, not {text!r}; fields: {known}")
        try:
            values[name] = yaml_values(value.encode())
        except BadInput as exc:
            raise BadInput(f"--set {name}: {value!r} is no value ({exc})") from exc
    return replaced(default, values, strict=False)


def _show(document: dict[str, Any], title: str, as_json: bool, out: Path | None) -> None:
    if as_json:
        print_json(document)
        return
    rows = document.get("pooled") or [_flat(row) for row in document["rows"]]
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


def _mix(text: str) -> dict[str, str]:
    pairs = [part.partition(":") for part in text.split(",")]
    if len({speed.strip() for speed, _, _ in pairs}) < len(pairs):
        raise BadInput("a mix names each speed once")
    return {speed.strip(): share.strip() or "1" for speed, _, share in pairs}


def _range(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        first, last, step = (int(part) for part in text.split(":"))
        found = range(first, last + 1, step)
    except ValueError as exc:
        raise BadInput(f"--sweep takes FROM:TO:STEP, such as 20:200:20, not {text!r}") from exc
    if not found or first < 1 or step < 1 or last > MOST_UES:
        raise BadInput(f"--sweep takes FROM:TO:STEP with 1 ≤ FROM ≤ TO ≤ {MOST_UES} and STEP ≥ 1, not {text!r}")
    return tuple(found)
