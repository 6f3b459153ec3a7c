"""`testbed predictor`: the rejection predictor, from traces to tables."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from testbed.cli.output import claim_stdout, console, note, print_json
from testbed.cli.screens import CommandGroup
from testbed.experiments.predictor.collect import TraceCollectConfig, collect
from testbed.experiments.predictor.train import TrainConfig

app = CommandGroup(no_args_is_help=True, help="The rejection predictor, which tells a UE when to stop drafting.")
DEFAULT = TraceCollectConfig()
TRAIN = TrainConfig()
EVAL_PROMPTS = 100

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
SCORES = {
    "accuracy": ("accuracy", "{:.4f}"), "auc": ("AUC", "{:.4f}"), "rec1": ("Rec1", "{:.4f}"),
    "specificity": ("spec.", "{:.4f}"), "fpr": ("FPR", "{:.4f}"), "balanced_accuracy": ("BalAcc", "{:.4f}"),
    "fpr_at_recall_80": ("FPR at Rec1 0.8", "{:.4f}"), "brier": ("Brier", "{:.4f}"),
    "calibration_error": ("ECE", "{:.4f}"),
}  # fmt: skip
CONFUSION = {
    "tn": ("rejected: pred 0", "{:d}"), "fp": ("pred 1", "{:d}"), "fn": ("accepted: pred 0", "{:d}"),
    "tp": ("pred 1", "{:d}"), "rejected": ("#rejected", "{:d}"), "accepted": ("#accepted", "{:d}"),
}  # fmt: skip
LATENCY = {f"latency_us_{name}": (name, "{:.1f}") for name in ("mean", "p50", "std", "min", "max", "p95", "p99")}


@app.command("collect")
def collect_command(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the traces; one that is begun is gone on with.")
    ],
    dataset: Annotated[str, typer.Option(help="bundled:calibration, FILE.jsonl, or hf:NAME.")] = DEFAULT.dataset,
    prompts: Annotated[int, typer.Option(help="Prompts to decode.")] = DEFAULT.prompts,
    first: Annotated[int, typer.Option(help="Prompts of the data set to pass over.")] = DEFAULT.first,
    window: Annotated[int, typer.Option(help="Draft window K, tokens a round.")] = DEFAULT.window,
    max_tokens: Annotated[int, typer.Option(help="Output tokens at most.")] = DEFAULT.max_tokens,
    engine: Annotated[str, typer.Option(help="vllm or transformers.")] = DEFAULT.engine,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = DEFAULT.dtype,
    model: Annotated[str | None, typer.Option(help="Target; default: the bundled one.")] = None,
    drafter: Annotated[str | None, typer.Option(help="GGUF drafter; default: the bundled one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Decode prompts by fixed windows and write down what the drafter thought of each token, and what became of it.

    Tokens after the first rejection of a round are kept apart and get no label. Interrupted, it goes on where it was.

    Examples:

        testbed predictor collect --prompts 600 --out runs/traces

        testbed predictor collect --dataset bundled:test --prompts 100 --window 16 --out runs/test-traces --json
    """
    config = TraceCollectConfig(
        dataset=dataset,
        prompts=prompts,
        first=first,
        window=window,
        max_tokens=max_tokens,
        engine=engine,
        dtype=dtype,
        model=model,
        drafter=drafter,
    )
    stdout = claim_stdout() if as_json else None
    with _bar("collecting") as told:
        traces = collect(config, out, told).load()
    accepted = int(traces.accepted.sum())
    document = {
        "out": str(out),
        "prompts": prompts,
        "samples": len(traces),
        "accepted": accepted,
        "rejected": len(traces) - accepted,
        "left_out": len(traces.later_prompt),
    }
    if as_json:
        print_json(document, stdout)
        return
    share = accepted / len(traces)
    print(f"{out}: {len(traces)} tokens of {prompts} prompts, {share:.2%} accepted; {document['left_out']} left out")


@app.command("train")
def train_command(
    data: Annotated[Path, typer.Option(metavar="DIR", help="Traces, as collect writes them.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The best predictor, and DIR/MODEL/ for each of them.")],
    recall: Annotated[
        float, typer.Option(help="Share of accepted tokens that must be predicted accepted.")
    ] = TRAIN.recall,
    trials: Annotated[int, typer.Option(help="Combinations of hyper-parameters tried of each model.")] = TRAIN.trials,
    validation: Annotated[float, typer.Option(help="Share of the prompts kept for validation.")] = TRAIN.validation,
    seed: Annotated[int, typer.Option(help="Of the split, the search and the models.")] = TRAIN.seed,
    models: Annotated[str, typer.Option(help="mlp, lightgbm, xgboost, forest; separated by commas.")] = ",".join(
        TRAIN.models
    ),
    as_json: AsJson = False,
) -> None:
    """Train MLP, LightGBM, XGBoost and random forest, and choose by FPR on rejected tokens at the recall.

    Examples:

        testbed predictor train --data runs/traces --out runs/predictor

        testbed predictor train --data runs/traces --out runs/predictor --recall 0.95 --trials 12 --models mlp,xgboost
    """
    from testbed.experiments.predictor.train import train
    from testbed.ue.windows.predictor import load_predictor

    names = tuple(dict.fromkeys(m.strip() for m in models.split(",") if m.strip()))
    config = TrainConfig(recall=recall, trials=trials, validation=validation, seed=seed, models=names)
    with _bar("training") as told:
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
    _table(f"on validation data, at Rec1 {recall:g}", rows, shown)
    print(f"{out}: {best.model}, threshold {best.threshold:.4f}")


@app.command("eval")
def eval_command(
    predictor: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What train wrote; default: the bundled predictors.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Traces; default: collected first, of --dataset.")
    ] = None,
    dataset: Annotated[str, typer.Option(help="Prompts of traces that are collected first.")] = "bundled:test",
    prompts: Annotated[int, typer.Option(help="Number of those prompts.")] = EVAL_PROMPTS,
    window: Annotated[int, typer.Option(help="Draft window of those traces.")] = DEFAULT.window,
    engine: Annotated[str, typer.Option(help="Engine of those traces: vllm or transformers.")] = DEFAULT.engine,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write Figs. 1-3 as CSV and PNG here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Hold predictors against traces that they never saw: WISP's Tables 4, 10 and 11, and its Theorem 1.

    Latency is of one call on this machine as it is now.

    Examples:

        testbed predictor eval

        testbed predictor eval --predictor runs/predictor --data runs/test-traces --out runs/figures --json
    """
    from testbed.experiments.predictor.eval import check_traces, evaluate, theorem
    from testbed.experiments.predictor.traces import TraceStore
    from testbed.experiments.predictor.train import load_families
    from testbed.models.bundle import bundled

    found = load_families(predictor or bundled().require("predictor"))
    stdout = claim_stdout() if as_json and data is None else None
    with contextlib.ExitStack() as held:
        if data is None:
            scratch = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="testbed-")))
            config = TraceCollectConfig(dataset=dataset, prompts=prompts, window=window, engine=engine)
            with _bar("collecting") as told:
                store = collect(config, scratch, told)
        else:
            store = TraceStore(data)
        meta, traces = store.meta(), store.load()
    for one in found.values():
        check_traces(one, meta)
    rows = evaluate(found, traces)
    document = {"dataset": meta.dataset, "prompts": meta.prompts, "window": meta.window, "rows": rows}
    document["theorem1"] = theorem(found, traces)
    if out is not None:
        from testbed.experiments.predictor.figures import write_figures

        for path in write_figures(traces, out):
            note(f"wrote {path}")
    if as_json:
        print_json(document, stdout)
    else:
        _show(document)


def _show(document: Mapping[str, Any]) -> None:
    rows, said = document["rows"], document["theorem1"]
    _table(f"{document['dataset']}, {document['prompts']} prompts, window {document['window']}", rows, SCORES)
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
        table.add_row(row["model"], *(form.format(row[key]) for key, (_, form) in columns.items()))
    console().print(table)


@contextlib.contextmanager
def _bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal."""
    from rich.progress import Progress

    err = console(stderr=True)
    with Progress(console=err, disable=not err.is_terminal, transient=True) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
