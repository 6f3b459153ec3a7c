"""`testbed optim fit`: c1 and c2 of both models on this machine."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from testbed.cli.options import AsJson, Given, offering
from testbed.cli.output import claim_stdout, note, print_json, progress
from testbed.cli.tables import print_table
from testbed.errors import BadInput
from testbed.experiments.edge.config import QUICK, FitConfig
from testbed.files import held

READ_WITH_CSV = {"engine", "model", "drafter", "seed"}
"""Options that a fit of measured steps reads: the models have the FLOPs of the steps."""
WRITTEN = ("steps.csv", "fit.json", "fit.png", "fit.svg")


@offering(FitConfig, leave=["warmups"])
def fit(
    given: Given,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write steps.csv, fit.json, fit.png and fit.svg there.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Fit measured steps again instead of measuring.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small grid: about a minute.")] = False,
    cost_of: Annotated[
        Literal["decode", "prompt", "all"], typer.Option(help="Steps that the document's `cost` is fitted to.")
    ] = "decode",
    as_json: AsJson = False,
) -> None:
    """Measure step times of drafter and target over batch sizes, prefixes and windows, and fit T = c1·F·b + c2.

    F are the FLOPs of edge SD batching's eqs. 13 and 14, T is the time of a pass (eq. 17, Fig. 5). The document's
    `cost` is the input of `optim plan` and `optim run`; it is fitted to decoding steps, which are all but a task's
    first. Leave the machine otherwise idle.

    Examples:

        testbed optim fit --out runs/fit --json > fit.json

        testbed optim fit --csv runs/fit/steps.csv
    """
    stdout = claim_stdout() if as_json and csv is None else None
    from testbed.experiments.edge.fit import dimensions, read_steps, report

    config = given.config(FitConfig, QUICK if quick else {})
    if csv is not None:
        _refuse_measuring(given, quick)
    with contextlib.nullcontext() if out is None else _claimed(out):
        models = dimensions(config)
        steps = read_steps(csv) if csv is not None else _measure(config)
        document = report(steps, models, config.seed, None if cost_of == "all" else cost_of)
        _write(out, steps, models, document)
    if as_json:
        print_json(document, stdout)
        return
    _show(document)


def _refuse_measuring(given: Given, quick: bool) -> None:
    """Refuse options of measurements; a file of options may have them.

    Raises:
        BadInput: there is one.
    """
    when = "with --csv, where nothing is measured"
    if quick:
        raise BadInput(f"--quick has no effect {when}; leave it out")
    Given(given.values).config(FitConfig).refuse_unused(set(FitConfig.__struct_fields__) - READ_WITH_CSV, when)


@contextlib.contextmanager
def _claimed(out: Path) -> Iterator[None]:
    """Lock a directory, made unless it holds another fit, or files of its names."""
    _check(out)
    with held(out, f"another process writes its results into {out}; choose another --out"):
        _check(out)
        yield


def _check(out: Path) -> None:
    if (out / "steps.csv").exists():
        raise BadInput(f"{out} holds a fit already; choose another --out, or --csv {out / 'steps.csv'} to fit it again")
    if there := [name for name in WRITTEN if os.path.lexists(out / name)]:
        raise BadInput(f"{out / there[0]} is there already; choose another --out")


def _measure(config: Any) -> Any:
    """Measure the steps of both nodes; a terminal gets a progress bar."""
    from testbed.experiments.edge.fit import measure

    with progress() as told:
        return measure(config, told)


def _write(out: Path | None, steps: Any, models: Any, document: Mapping[str, Any]) -> None:
    if out is None:
        return
    import msgspec

    from testbed.experiments.edge.fit import write_steps
    from testbed.experiments.plots.optim import fit_plot
    from testbed.experiments.results.directory import write_text
    from testbed.optim.cost_fit import NODES, NodeFit

    write_steps(out / "steps.csv", steps)
    write_text(out / "fit.json", json.dumps(document, indent=1) + "\n")
    fit_plot(out, steps, models, {node: msgspec.convert(document[node], NodeFit) for node in NODES})
    note(f"wrote {out}: {', '.join(WRITTEN)}")


def _show(document: Mapping[str, Any]) -> None:
    table = Table()
    for header in ("", "c1 s/FLOP", "95 %", "c2 ms/pass", "95 %", "R²", "MAPE", "steps"):
        table.add_column(header, justify="left" if not header else "right", no_wrap=True)
    for node in ("draft", "verify"):
        fit = document[node]
        (a, b), (c, d) = fit["intervals"]["c1"], fit["intervals"]["c2"]
        table.add_row(
            node, f"{fit['c1']:.3g}", f"{a:.3g} … {b:.3g}", f"{1e3 * fit['c2']:.3g}", f"{1e3 * c:.3g} … {1e3 * d:.3g}",
            f"{fit['r2']:.4f}", f"{fit['mape']:.1%}", str(fit["steps"]),
        )  # fmt: skip
        for phase, alone in fit["phases"].items():
            table.add_row(
                f"  {phase} alone", f"{alone['c1']:.3g}", "", f"{1e3 * alone['c2']:.3g}", "", f"{alone['r2']:.4f}",
                f"{alone['mape']:.1%}", str(alone["steps"]),
            )  # fmt: skip
    print_table(table)
    for node in ("draft", "verify"):
        terms = ", ".join(f"{name} {r2:.4f}" for name, r2 in document[node]["terms"].items())
        print(f"{node}: R² with one term more: {terms}")
