"""`testbed head tune`: θ of a decision head, chosen on calibration problems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from testbed.cli.output import note, print_json, print_rows
from testbed.errors import BadInput

COLUMNS = {
    "rate_mbps": ("Mbit/s", "{:g}"), "rtt_ms": ("RTT ms", "{:g}"), "threshold": ("θ", "{:.4f}"),
    "accuracy": ("accuracy", "{:.3f}"), "lost": ("points lost", "{:+.2f}"), "error": ("±", "{:.2f}"),
    "limit": ("at most", "{:g}"), "aal": ("AAL", "{:.2f}"), "rounds": ("rounds", "{:.2f}"),
    "latency_s": ("latency s", "{:.3f}"),
}  # fmt: skip


def tune(
    head: Annotated[list[Path], typer.Argument(metavar="HEAD...", help="Directories of heads; each gets its θ.")],
    goal: Annotated[
        list[str], typer.Option(help="MBPS,RTT_MS,POINTS: accuracy that may be lost on a channel; several.")
    ] = ["20,50,2", "500,50,1"],  # noqa: B006 (typer copies it)
    dataset: Annotated[str, typer.Option(help="Calibration problems.")] = "bundled:calibration",
    first: Annotated[int, typer.Option(help="Problems to leave out from the front: those of the training.")] = 0,
    prompts: Annotated[int, typer.Option(help="Problems.")] = 1000,
    window: Annotated[int, typer.Option(help="K.")] = 32,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an output at most.")] = 256,
    errors: Annotated[float, typer.Option(help="Standard errors by which the loss must lie within the goal.")] = 1.0,
    profile: Annotated[str, typer.Option(help="Devices of the latency that is shown.")] = "wisv",
    engine: Annotated[str, typer.Option(help="vllm or transformers.")] = "vllm",
    model: Annotated[str | None, typer.Option(help="Target; default: the bundled one.")] = None,
    drafter: Annotated[str | None, typer.Option(help="GGUF file; default: the bundled drafter.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Directory of tokenizer.json.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Choose θ on calibration problems and write it into the head: the largest that loses no more than asked for.

    A head that sees the channel gets one θ, a blind one gets one for each channel. Problems should be others than
    those it was trained on: --first says how many to leave out.

    Examples:

        testbed head tune runs/head --first 3000

        testbed head tune runs/head runs/blind --goal 20,50,2 --goal 500,50,1 --prompts 500 --json
    """
    from testbed.decision_head.head import load_head, save_head
    from testbed.experiments.head.tune import TuneConfig, load_problems
    from testbed.experiments.head.tune import tune as tune_one

    config = TuneConfig(
        dataset=dataset, first=first, prompts=prompts, window=window, max_tokens=max_tokens, errors=errors,
        goals=tuple(_goal(text) for text in goal), profile=profile, engine=engine, model=model, drafter=drafter,
        tokenizer=tokenizer,
    )  # fmt: skip
    heads = [(directory, load_head(directory)) for directory in head]
    problems = load_problems(config, note)
    documents: list[dict[str, Any]] = []
    try:
        for directory, loaded in heads:
            tuned, trials = tune_one(loaded, config, problems, note)
            save_head(tuned, directory)
            rows = [msgspec.to_builtins(trial) for trial in trials]
            documents.append({"head": str(directory), "thresholds": tuned.info.thresholds, "rows": rows})
            if not as_json:
                chosen = ", ".join(f"θ {value:g} at quality {q:.3g}" for q, value in tuned.info.thresholds)
                print_rows(rows, f"{directory}: {chosen}", COLUMNS)
    finally:
        problems.models.close()
    if as_json:
        print_json({"rows": documents})


def _goal(text: str) -> Any:
    from testbed.experiments.head.tune import Goal

    try:
        rate_mbps, rtt_ms, points = (float(part) for part in text.split(","))
    except ValueError as exc:
        raise BadInput(f"--goal takes MBPS,RTT_MS,POINTS such as 20,50,2, not {text!r}") from exc
    found = Goal(rate_mbps, rtt_ms, points)
    _ = found.csi  # refuses rates and RTTs that no channel has
    return found
