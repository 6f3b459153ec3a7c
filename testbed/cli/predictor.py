"""`testbed predictor`: the rejection predictor, from traces to tables."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.table import Table

from testbed import fields
from testbed.cli.options import AsJson, configured
from testbed.cli.output import claim_stdout, note, print_json, progress
from testbed.cli.screens import CommandGroup
from testbed.cli.tables import TableCommand, print_table
from testbed.config import Config, resolved
from testbed.experiments.predictor.collect import TraceCollectConfig, collect
from testbed.experiments.predictor.train import TrainConfig

if TYPE_CHECKING:
    from testbed.experiments.predictor.traces import TraceMeta, Traces
    from testbed.ue.windows.predictor import AcceptanceLabels

app = CommandGroup(no_args_is_help=True, help="The rejection predictor, which tells a UE when to stop drafting.")
SCORES = {
    "accuracy": ("accuracy", "{:.4f}"), "auc": ("AUC", "{:.4f}"), "rec1": ("Rec1", "{:.4f}"),
    "specificity": ("spec.", "{:.4f}"), "fpr": ("FPR", "{:.4f}"), "balanced_accuracy": ("BalAcc", "{:.4f}"),
    "fpr_at_recall_80": ("FPR at Rec1 0.8", "{:.4f}"), "brier": ("Brier", "{:.4f}"),
    "calibration_error": ("ECE", "{:.4f}"),
}  # fmt: skip
INTERVALS = {
    f"{name}_{end}": (f"{header} {word}", "{:.4f}")
    for name, header in (("auc", "AUC"), ("rec1", "Rec1"), ("fpr", "FPR"))
    for end, word in (("low", "from"), ("high", "to"))
}
CONFUSION = {
    "tn": ("rejected: pred 0", "{:d}"), "fp": ("pred 1", "{:d}"), "fn": ("accepted: pred 0", "{:d}"),
    "tp": ("pred 1", "{:d}"), "rejected": ("#rejected", "{:d}"), "accepted": ("#accepted", "{:d}"),
}  # fmt: skip
LATENCY = {f"latency_us_{name}": (name, "{:.1f}") for name in ("mean", "p50", "std", "min", "max", "p95", "p99")}


class EvalTraces(Config, frozen=True):
    """Traces that `testbed predictor eval` collects where none are given."""

    dataset: fields.Dataset = "bundled:test"
    prompts: fields.Prompts = 100
    window: fields.Window = TraceCollectConfig().window
    engine: fields.Engine = TraceCollectConfig().engine


@app.command("collect")
@configured(TraceCollectConfig)
def collect_command(
    config: TraceCollectConfig,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the traces; an unfinished one is resumed.")],
    as_json: AsJson = False,
) -> None:
    """Decode prompts with fixed windows and record statistics and outcome of every drafted token.

    Tokens are accepted as in a run with the same options: greedily, by rejection sampling with --temperature, or by a
    judge with --threshold. Tokens after the first rejection of a round are stored separately, without a label. Run it
    again to resume.

    Examples:

        testbed predictor collect --prompts 600 --out runs/traces

        testbed predictor collect --prompts 600 --temperature 1 --out runs/sampled-traces

        testbed predictor collect --dataset bundled:test --prompts 100 --window 16 --out runs/test-traces --json
    """
    stdout = claim_stdout() if as_json else None
    with progress("collecting") as told:
        traces = collect(config, out, told).load()
    accepted = int(traces.accepted.sum())
    document = {
        "out": str(out),
        "prompts": config.prompts,
        "samples": len(traces),
        "accepted": accepted,
        "rejected": len(traces) - accepted,
        "left_out": len(traces.later_prompt),
    }
    if as_json:
        print_json(document, stdout)
        return
    share = accepted / len(traces)
    found = f"{len(traces)} tokens of {config.prompts} prompts, {share:.2%} accepted"
    print(f"{out}: {found}; {document['left_out']} left out")


@app.command("train", cls=TableCommand)
@configured(TrainConfig)
def train_command(
    config: TrainConfig,
    data: Annotated[Path, typer.Option(metavar="DIR", help="Traces that collect wrote.")],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="New or empty; the best predictor, and DIR/MODEL/ for each of them.")
    ],
    as_json: AsJson = False,
) -> None:
    """Train MLP, LightGBM, XGBoost and random forest, and choose by FPR on rejected tokens at the recall.

    Examples:

        testbed predictor train --data runs/traces --out runs/predictor

        testbed predictor train --data runs/traces --out runs/predictor --recall 0.95 --trials 12 --models mlp,xgboost
    """
    from testbed.experiments.predictor.train import train
    from testbed.ue.windows.predictor import load_predictor

    with progress("training") as told:
        found = train(config, data, out, lambda done, total, text: told(done, total))
    rows = [
        {"model": name, "threshold": one.info.threshold, **one.info.metrics, **one.info.trained["hyper_parameters"]}
        for name, one in found.items()
    ]
    best = load_predictor(out).info
    if as_json:
        print_json({"out": str(out), "best": best.model, "rows": rows})
        return
    shown = {key: spec for key, spec in SCORES.items() if key != "fpr_at_recall_80"}
    _table(f"on validation data, at Rec1 {config.recall:g}", rows, shown)
    print(f"{out}: {best.model}, threshold {best.threshold:.4f}")


@app.command("eval", cls=TableCommand)
@configured(EvalTraces)
def eval_command(
    config: EvalTraces,
    predictor: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Predictors that train wrote. Default: the bundled ones.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Traces. Default: collected first, from --dataset.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write Figs. 1-3 as CSV and PNG here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate predictors on unseen traces: WISP's Tables 4, 10 and 11, and its Theorem 1.

    Latency is that of one call on this machine.

    Examples:

        testbed predictor eval

        testbed predictor eval --predictor runs/predictor --data runs/test-traces --out runs/figures --json
    """
    from testbed.experiments.predictor.eval import check_traces, evaluate, theorem
    from testbed.experiments.predictor.train import load_families
    from testbed.models.bundle import bundled

    found = load_families(predictor or bundled().require("predictor"))
    stdout = claim_stdout() if as_json and data is None else None
    meta, traces = _traces(config, data, next(iter(found.values())).info.labels)
    for name, one in found.items():
        check_traces(name, one, meta)
    document = {
        "dataset": meta.dataset, "prompts": traces.prompts, "window": meta.window, "labels": str(meta.labels),
        "rows": evaluate(found, traces), "theorem1": theorem(found, traces),
    }  # fmt: skip
    _write_figures(traces, out)
    if as_json:
        print_json(document, stdout)
    else:
        _show(document)


def _traces(config: EvalTraces, data: Path | None, labels: AcceptanceLabels) -> tuple[TraceMeta, Traces]:
    """Traces of a directory, or collected now with these labels."""
    from testbed.experiments.predictor.traces import TraceStore

    if data is not None:
        return TraceStore(data).meta(), TraceStore(data).load()
    with tempfile.TemporaryDirectory(prefix="testbed-") as scratch, progress("collecting") as told:
        asked = TraceCollectConfig(**resolved(config), **msgspec.structs.asdict(labels))
        store = collect(asked, Path(scratch), told)
        return store.meta(), store.load()


def _write_figures(traces: Traces, out: Path | None) -> None:
    from testbed.experiments.predictor.figures import write_figures

    for path in [] if out is None else write_figures(traces, out):
        note(f"wrote {path}")


def _show(document: Mapping[str, Any]) -> None:
    rows, said = document["rows"], document["theorem1"]
    where = f"{document['dataset']}, {document['prompts']} prompts, window {document['window']}"
    _table(f"{where}, accepted {document['labels']}", rows, SCORES)
    _table("95 % intervals over prompts", rows, INTERVALS)
    _table("counts", rows, CONFUSION)
    _table("latency of one call [µs]", rows, LATENCY)
    print(
        f"Theorem 1: of {said['pairs']} pairs of operating points, the one with the lower false-alarm rate wastes no "
        f"more in {said['ordered']}; of {said['dominated']} that meet eq. 32, in {said['dominated_ordered']}"
    )


def _table(title: str, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, tuple[str, str]]) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("model", no_wrap=True)
    for header, _ in columns.values():
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        cells = ("–" if row[key] is None else form.format(row[key]) for key, (_, form) in columns.items())
        table.add_row(row["model"], *cells)
    print_table(table)
