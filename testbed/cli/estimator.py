"""`testbed estimator`: how long verification passes take, fitted and judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from testbed.cli.options import numbers
from testbed.cli.output import claim_stdout, console, note, print_json
from testbed.cli.screens import CommandGroup
from testbed.config import ServeConfig
from testbed.errors import BadInput

app = CommandGroup(no_args_is_help=True, help="How long verification passes take.")

FitCsv = Annotated[
    Path,
    typer.Option("--csv", metavar="FILE", help="Columns batch,new_tokens,cached_tokens,latency_s; a row a request."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
UNITS = {"a": "s/new token", "b_compute": "s/interaction", "b_read": "s/cached token", "c": "s"}
SCORES = {
    "r2": ("R²", "{:.4f}"), "adjusted_r2": ("adjusted R²", "{:.4f}"), "rmse_s": ("RMSE s", "{:.3g}"),
    "mae_s": ("MAE s", "{:.3g}"), "mape": ("MAPE", "{:.2%}"), "bias": ("bias", "{:+.2%}"),
    "max_error_s": ("max error s", "{:.3g}"), "batches": ("batches", "{:d}"),
}  # fmt: skip


@app.command("fit")
def fit(
    csv: FitCsv,
    seed: Annotated[int, typer.Option(help="Of the resamples; the same seed gives the same intervals.")] = 0,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples for the intervals.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Fit T = a·new + b_compute·Σ(cached + new)·new + b_read·cached + c to measured passes, with 95 % intervals.

    Examples:

        testbed estimator fit --csv passes.csv

        testbed estimator fit --csv passes.csv --json > coefficients.json
    """
    from testbed.bs.scheduling.estimator_csv import read_samples
    from testbed.bs.scheduling.estimator_fit import fit as run

    found = run(read_samples(csv), seed, resamples)
    if found.clamped:
        below = [f"{name} {value:.3g}" for name, value in found.ols.items() if value < 0]
        note(f"least squares alone gives {', '.join(below)}; no coefficient may be below 0: {_are_zero(found.clamped)}")
    document = found.document()
    if as_json:
        print_json(document)
    else:
        _show_fit(document)


@app.command("eval")
def evaluate(
    csv: FitCsv,
    coefficients: Annotated[Path, typer.Option(metavar="FILE", help="JSON, as fit --json writes it.")],
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Residuals, as .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
) -> None:
    """Hold coefficients against passes that they were not fitted to: all of them, and by regime.

    Examples:

        testbed estimator eval --csv unseen.csv --coefficients coefficients.json

        testbed estimator eval --csv unseen.csv --coefficients coefficients.json --plot residuals.png --json
    """
    from testbed.bs.scheduling.estimator_csv import read_samples
    from testbed.bs.scheduling.estimator_fit import regime, score
    from testbed.experiments.inputs.coefficients import read

    samples, held = read_samples(csv), read(coefficients)
    kinds = [kind for kind in ("compute", "memory", "mixed") if any(regime(sample) == kind for sample in samples)]
    document = {
        **vars(score(held, samples)),
        "regimes": {kind: vars(score(held, [s for s in samples if regime(s) == kind])) for kind in kinds},
    }
    if plot is not None:
        from testbed.experiments.plots.estimator import residuals

        residuals(held, samples, plot)
        note(f"wrote {plot}")
    if as_json:
        print_json(document)
    else:
        _show_scores(
            {
                "all": document,
                **{f"{kind}-bound" if kind != "mixed" else kind: document["regimes"][kind] for kind in kinds},
            }
        )


@app.command("profile")
def profile(
    out: Annotated[Path, typer.Option(metavar="FILE", help="CSV to write: what fit and eval read, and more columns.")],
    engine: Annotated[str, typer.Option(help="vllm, transformers or synthetic.")] = ServeConfig().engine,
    model: Annotated[
        str | None, typer.Option(help="Directory or Hugging Face id; default: the bundled target.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = ServeConfig().dtype,
    largest: Annotated[int, typer.Option(help="Tokens of the largest batches and longest sequences.")] = 2000,
    repeats: Annotated[int, typer.Option(help="Measured passes of a configuration; their median counts.")] = 3,
    warmups: Annotated[int, typer.Option(help="Passes before them that are dropped.")] = 2,
    thin: Annotated[int, typer.Option(help="Take every so-manieth configuration of a category.")] = 1,
    seed: Annotated[int, typer.Option(help="Of prompts, order and random configurations.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure an engine by the plan of WISP's Appendix C: 123 configurations to fit, 50 unseen ones to judge by.

    The bundled target on two CPU cores takes minutes. The document has the fit, how it does on unseen configurations,
    and what each of a few further terms would bring there.

    Examples:

        testbed estimator profile --engine transformers --out passes.csv

        testbed estimator profile --engine vllm --model ./target --largest 1000 --out passes.csv --json > fit.json
    """
    stdout = claim_stdout() if as_json else None
    if not out.parent.is_dir():
        raise BadInput(f"cannot write {out}: {out.parent} is no directory")
    from testbed.channel.trace import write_lines
    from testbed.experiments.estimator.profile import csv_lines, plan, report

    planned = plan(largest, seed, thin)
    options = {"repeats": repeats, "warmups": warmups, "seed": seed}
    measured: list[Any] = []
    try:
        measured = _measure(engine, model, dtype, planned, **options, keep=measured.append)
    finally:  # of a plan that is broken off, what was measured
        if measured:
            write_lines(out, csv_lines(measured))
            note(f"wrote {out}: {len(measured)} of {len(planned)} configurations")
    document = report(measured, seed)
    if as_json:
        print_json(document, stdout)
        return
    _show_fit(document)
    _show_scores({"unseen": document["unseen"], **document["unseen"]["regimes"]})
    for row in document["missing_terms"]:
        r2 = "–" if row["r2"] is None else f"{row['r2']:.4f}"
        print(f"unseen, with a term for {row['term']}: R² {r2}, MAPE {row['mape']:.2%}")


@app.command("interference")
def interference(
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The plot, as .png, .svg or .pdf.")] = None,
    engine: Annotated[str, typer.Option(help="vllm, transformers or synthetic.")] = ServeConfig().engine,
    model: Annotated[
        str | None, typer.Option(help="Directory or Hugging Face id; default: the bundled target.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = ServeConfig().dtype,
    lengths: Annotated[str, typer.Option(help="New tokens of A, separated by commas.")] = "32,64,128,256,512,1024",
    prefix: Annotated[int, typer.Option(help="Cached tokens of B.")] = 500,
    drafted: Annotated[int, typer.Option(help="New tokens of B.")] = 5,
    repeats: Annotated[int, typer.Option(help="Measured passes of each kind; their median counts.")] = 5,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
    as_json: AsJson = False,
) -> None:
    """How much longer a short follow-up B takes in one pass with a long request A (WISP, Fig. 4).

    Examples:

        testbed estimator interference

        testbed estimator interference --lengths 64,256,1024 --out fig4.png --json > fig4.json
    """
    stdout = claim_stdout() if as_json else None
    from testbed.experiments.estimator.interference import interference as run
    from testbed.experiments.estimator.interference import plot
    from testbed.optim.pass_time import RequestWork

    asked, short = numbers(lengths, int, "--lengths"), RequestWork(drafted, prefix)
    rows = _benched(
        engine,
        model,
        dtype,
        lambda loaded, progress: run(loaded, asked, short, repeats=repeats, seed=seed, progress=progress),
    )
    if out is not None:
        plot(rows, out)
        note(f"wrote {out}")
    if as_json:
        print_json({"rows": [{**msgspec.structs.asdict(row), "inherited": row.inherited} for row in rows]}, stdout)
        return
    table = Table()
    for header in ("new tokens of A", "A alone ms", "B alone ms", "together ms", "B takes"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        times = (row.alone_a_s, row.alone_b_s, row.together_s)
        table.add_row(str(row.new_tokens), *(f"{1e3 * each:.2f}" for each in times), f"{row.inherited:.2f}×")
    console().print(table)


def _measure(engine: str, model: str | None, dtype: str, planned: Any, **options: Any) -> Any:
    """Run the plan."""
    from testbed.experiments.estimator.profile import measure

    def run(loaded: Any, progress: Any) -> Any:
        note(f"measuring {len(planned)} configurations")
        return measure(loaded, planned, progress=progress, **options)

    return _benched(engine, model, dtype, run)


def _benched(engine: str, model: str | None, dtype: str, run: Callable[[Any, Any], Any]) -> Any:
    """Load the engine, and run with a progress bar on a terminal."""
    from rich.progress import Progress

    from testbed.bs.engines.registry import ENGINES, load_engine
    from testbed.bs.engines.target import describe
    from testbed.models.bundle import bundled

    if ENGINES.choose(engine).needs_model:
        target = describe(model or str(bundled().require("target")))
        loaded = load_engine(engine, target.directory, dtype=dtype, vocab_size=target.vocab_size)
    else:
        loaded = load_engine(engine, None)
    err = console(stderr=True)
    try:
        with Progress(console=err, disable=not err.is_terminal, transient=True) as bar:
            task = bar.add_task(engine)
            return run(
                loaded,
                lambda done, total, text: bar.update(task, completed=done, total=total, description=text),
            )
    finally:
        loaded.close()


def _are_zero(names: tuple[str, ...]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} 0"


def _show_fit(document: Mapping[str, Any]) -> None:
    table = Table()
    for header in ("", "value", "95 % interval", "unit"):
        table.add_column(header, justify="left" if header in ("", "unit") else "right", no_wrap=True)
    for name, unit in UNITS.items():
        low, high = document["intervals"][name]
        table.add_row(name, f"{document[name]:.4g}", f"{low:.4g} … {high:.4g}", unit)
    console().print(table)
    if document["cv_r2"] is not None:
        print(f"5-fold cross-validation: R² {document['cv_r2']:.4f} ± {document['cv_r2_std']:.4f}")
    _show_scores({"these passes": document})


def _show_scores(rows: Mapping[str, Mapping[str, Any]]) -> None:
    table = Table()
    table.add_column("", no_wrap=True)
    for header, _ in SCORES.values():
        table.add_column(header, justify="right", no_wrap=True)
    for name, row in rows.items():
        table.add_row(name, *("–" if row[key] is None else form.format(row[key]) for key, (_, form) in SCORES.items()))
    console().print(table)
