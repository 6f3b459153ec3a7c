"""`testbed latency measure`: open-loop load on a real base station."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from testbed.cli.output import note, print_json, print_rows
from testbed.config import resolved
from testbed.errors import BadInput


def measure(
    out: Annotated[Path, typer.Option(help="Directory of the measurement; give it again to go on.")],
    engine: Annotated[str, typer.Option(help="vllm or transformers.")] = "vllm",
    model: Annotated[str | None, typer.Option(help="Target; default: the bundled one.")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    windows: Annotated[str, typer.Option(help="Drafted tokens a round; 0: the target alone.")] = "0,2,4,8",
    alphas: Annotated[str, typer.Option(help="Acceptance rates of replayed drafts; none: the real drafter.")] = "0.8",
    rates: Annotated[int, typer.Option(help="Loads between one request at a time and the ceiling.")] = 9,
    requests: Annotated[int, typer.Option(help="Requests of each load.")] = 60,
    at_once: Annotated[int, typer.Option(help="Requests under way where the ceiling is measured.")] = 32,
    draft_ms: Annotated[float, typer.Option(help="Time that a replayed token takes to draft.")] = 0.0,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an output at most.")] = 256,
    dataset: Annotated[
        str, typer.Option(help="As for `testbed demo`; prompts are used once a window.")
    ] = "bundled:test",
    drafter: Annotated[str | None, typer.Option(help="GGUF file; default: the bundled drafter.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Directory of tokenizer.json.")] = None,
    seed: Annotated[int, typer.Option(help="Of arrivals and of replayed drafts.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Measure mean and tail latency over load: Poisson arrivals at a BS that this command starts.

    Writes points.csv, which `testbed latency fit --csv` takes (loads at which requests pile up left out), and all.csv.

    Examples:

        testbed latency measure --out runs/load

        testbed latency measure --windows 4 --alphas none --out runs/load-pair

        testbed latency measure --windows 0,1,2,4,8 --alphas 0.6,0.75,0.9 --draft-ms 2 --out runs/load-alpha
    """
    from testbed.experiments.load import COLUMNS, LoadConfig
    from testbed.experiments.load import measure as run

    config = LoadConfig(
        engine=engine, model=model, dtype=dtype, windows=tuple(_numbers(windows, int, "--windows")),
        alphas=() if alphas == "none" else tuple(_numbers(alphas, float, "--alphas")), rates=rates, requests=requests,
        at_once=at_once, draft_ms=draft_ms, max_tokens=max_tokens, dataset=dataset, drafter=drafter,
        tokenizer=tokenizer, seed=seed,
    )  # fmt: skip
    found = run(config, out, note)
    rows: list[dict[str, Any]] = [msgspec.to_builtins(point) for series in found for point in series.points]
    if as_json:
        print_json({"config": resolved(config), "rows": rows})
        return
    shown = {name: (name, "{:g}") for name in COLUMNS if name not in ("alpha", "saturated")}
    print_rows(rows, None, {**shown, "alpha": ("alpha", "{:.3f}"), "saturated": ("piled up", "{}")})
    note(f"wrote {out / 'points.csv'}")


def _numbers(text: str, kind: Any, option: str) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError as exc:
        raise BadInput(f"{option} takes numbers separated by commas, not {text!r}") from exc
