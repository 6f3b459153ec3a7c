"""`testbed estimator`: how long verification passes take, fitted and judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from testbed import fields
from testbed.cli.options import AsJson, Force, configured, refuse_to_overwrite
from testbed.cli.output import claim_stdout, note, print_json, progress
from testbed.cli.screens import CommandGroup
from testbed.cli.tables import TableCommand, print_table
from testbed.config import Config
from testbed.errors import BadInput
from testbed.options import option

app = CommandGroup(no_args_is_help=True, help="Verification-pass times: measure, fit and evaluate.")

FitCsv = Annotated[
    Path,
    typer.Option("--csv", metavar="FILE", help="Columns batch,new_tokens,cached_tokens,latency_s; a row a request."),
]
HeldOut = Annotated[
    bool | None,
    typer.Option("--held-out/--no-held-out", help="Only passes that `profile` held out, or only the others."),
]
UNITS = {"a": "s/new token", "b_compute": "s/interaction", "b_read": "s/cached token", "c": "s"}
SCORES = {
    "r2": ("R²", "{:.4f}"), "adjusted_r2": ("adjusted R²", "{:.4f}"), "rmse_s": ("RMSE s", "{:.3g}"),
    "mae_s": ("MAE s", "{:.3g}"), "mape": ("MAPE", "{:.2%}"), "bias": ("bias", "{:+.2%}"),
    "max_error_s": ("max error s", "{:.3g}"), "batches": ("batches", "{:d}"),
}  # fmt: skip


@app.command("fit", cls=TableCommand)
def fit(
    csv: FitCsv,
    seed: Annotated[int, typer.Option(help="Seed of the resamples.", min=0)] = 0,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples for the intervals.")] = 1000,
    held_out: HeldOut = None,
    as_json: AsJson = False,
) -> None:
    """Fit T = a·new + b_compute·Σ(cached + new)·new + b_read·cached + c to measured passes, with 95 % intervals.

    Examples:

        testbed estimator fit --csv passes.csv

        testbed estimator fit --csv passes.csv --no-held-out --json > coefficients.json
    """
    from testbed.bs.scheduling.estimator_csv import read_samples
    from testbed.bs.scheduling.estimator_fit import fit as run

    found = run(read_samples(csv, held_out), seed, resamples)
    if found.clamped:
        below = [f"{name} {value:.3g}" for name, value in found.ols.items() if value < 0]
        note(f"least squares alone gives {', '.join(below)}; no coefficient may be below 0: {_are_zero(found.clamped)}")
    document = found.document()
    if as_json:
        print_json(document)
    else:
        _show_fit(document)


@app.command("eval", cls=TableCommand)
def evaluate(
    csv: FitCsv,
    coefficients: Annotated[Path, typer.Option(metavar="FILE", help="JSON, as fit --json writes it.")],
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Residuals, as .png, .svg or .pdf.")] = None,
    held_out: HeldOut = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate coefficients on passes that they were not fitted to: overall, by regime, and which terms their times
    consist of (WISP, Figs. 9 and 11).

    Examples:

        testbed estimator eval --csv unseen.csv --coefficients coefficients.json

        testbed estimator eval --csv passes.csv --held-out --coefficients coefficients.json --plot fig11.png --json
    """
    from testbed.bs.scheduling.estimator_csv import read_samples
    from testbed.bs.scheduling.estimator_fit import by_regime, score
    from testbed.experiments.inputs.coefficients import read

    samples, held = read_samples(csv, held_out), read(coefficients)
    document = {**vars(score(held, samples)), "regimes": by_regime(held, samples)}
    if plot is not None:
        from testbed.experiments.plots.estimator import residuals

        residuals(held, samples, plot)
        note(f"wrote {plot}")
    if as_json:
        print_json(document)
    else:
        _show_regimes(document)


class BenchOptions(Config, frozen=True):
    """Engine whose passes are measured."""

    engine: fields.Engine = "vllm"
    model: fields.Target = None
    dtype: fields.Dtype = "float32"


class ProfileOptions(BenchOptions, frozen=True):
    """Configuration of `testbed estimator profile`."""

    largest: Annotated[
        int, option("Tokens of the largest batches and longest sequences.", unit="tokens", panel="Measurement")
    ] = 2000
    repeats: Annotated[int, option("Measured passes per configuration, of which the median is used.")] = 3
    warmups: Annotated[int, option("Discarded passes before them.")] = 2
    thin: Annotated[int, option("Use every n-th configuration of a category.")] = 1
    seed: Annotated[int, option("Seed of prompts, order and random configurations.", least=0)] = 0


class InterferenceOptions(BenchOptions, frozen=True):
    """Configuration of `testbed estimator interference`."""

    lengths: Annotated[
        tuple[int, ...], option("New tokens of A, separated by commas.", unit="tokens", panel="Measurement")
    ] = (32, 64, 128, 256, 512, 1024)
    prefix: Annotated[int, option("Cached tokens of B.", unit="tokens")] = 500
    drafted: Annotated[int, option("New tokens of B.", unit="tokens")] = 5
    repeats: Annotated[int, option("Measured passes of each kind, of which the median is used.")] = 5
    seed: Annotated[int, option("Seed of the prompts.", least=0)] = 0


@app.command("profile")
@configured(ProfileOptions)
def profile(
    config: ProfileOptions,
    out: Annotated[Path, typer.Option(metavar="FILE", help="CSV to write, for fit and eval, with further columns.")],
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Measure an engine by the plan of WISP's Appendix C: 123 configurations for the fit, 50 for its evaluation.

    The bundled target on two CPU cores takes minutes. The document has the fit, its errors on the unseen
    configurations, and the effect of some further terms on them.

    Examples:

        testbed estimator profile --engine transformers --out passes.csv

        testbed estimator profile --engine vllm --model ./target --largest 1000 --out passes.csv --json > fit.json
    """
    stdout = claim_stdout() if as_json else None
    if not out.parent.is_dir():
        raise BadInput(f"cannot write {out}: {out.parent} is no directory")
    refuse_to_overwrite([out], force)
    from testbed.channel.trace import write_lines
    from testbed.experiments.estimator.profile import csv_lines, plan, report

    planned = plan(config.largest, config.seed, config.thin)
    measured: list[Any] = []
    try:
        measured = _measure(config, planned, measured.append)
    finally:  # an interrupted plan keeps what was measured
        if measured:
            write_lines(out, csv_lines(measured))
            note(f"wrote {out}: {len(measured)} of {len(planned)} configurations")
    document = report(measured, config.seed)
    if as_json:
        print_json(document, stdout)
    else:
        _show_profile(document)


def _show_profile(document: Mapping[str, Any]) -> None:
    _show_fit(document)
    _show_scores({"unseen": document["unseen"], **document["unseen"]["regimes"]})
    for row in document["missing_terms"]:
        r2 = "–" if row["r2"] is None else f"{row['r2']:.4f}"
        print(f"unseen, with a term for {row['term']}: R² {r2}, MAPE {row['mape']:.2%}")


@app.command("interference", cls=TableCommand)
@configured(InterferenceOptions)
def interference(
    config: InterferenceOptions,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Plot to write, as .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how much longer a short follow-up B takes in one pass with a long request A (WISP, Fig. 4).

    Examples:

        testbed estimator interference

        testbed estimator interference --lengths 64,256,1024 --out fig4.png --json > fig4.json
    """
    stdout = claim_stdout() if as_json else None
    from testbed.experiments.estimator.interference import interference as run
    from testbed.experiments.estimator.interference import plot
    from testbed.optim.pass_time import RequestWork

    short = RequestWork(config.drafted, config.prefix)
    options = {"repeats": config.repeats, "seed": config.seed}
    rows = _benched(config, lambda engine, told: run(engine, list(config.lengths), short, **options, progress=told))
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
    print_table(table)


def _measure(config: ProfileOptions, planned: Any, keep: Callable[[Any], None]) -> Any:
    """Run the plan."""
    from testbed.experiments.estimator.profile import measure

    options: dict[str, Any] = {"repeats": config.repeats, "warmups": config.warmups, "seed": config.seed}

    def run(loaded: Any, progress: Any) -> Any:
        note(f"measuring {len(planned)} configurations")
        return measure(loaded, planned, progress=progress, keep=keep, **options)

    return _benched(config, run)


def _benched(config: BenchOptions, run: Callable[[Any, Any], Any]) -> Any:
    """Load the engine, and run with a progress bar on a terminal."""
    from testbed.bs.engines.registry import ENGINES, load_engine
    from testbed.bs.engines.target import describe
    from testbed.experiments.inputs.pair import target_for

    if ENGINES.choose(config.engine).needs_model:
        target = describe(target_for(config.engine, config.model))
        loaded = load_engine(config.engine, target.path, dtype=config.dtype, vocab_size=target.vocab_size)
    else:
        loaded = load_engine(config.engine, None)
    try:
        with progress(config.engine) as told:
            return run(loaded, told)
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
    print_table(table)
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
    print_table(table)


def _show_regimes(document: Mapping[str, Any]) -> None:
    named = {kind if kind == "mixed" else f"{kind}-bound": row for kind, row in document["regimes"].items()}
    _show_scores({"all": document, **named})
    for kind, row in named.items():
        shares = ", ".join(f"{name} {one['share']:.0%} ({one['largest']})" for name, one in row["terms"].items())
        print(f"{kind}, mean share of each term (passes of which it is the largest): {shares}")
