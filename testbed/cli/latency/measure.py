"""`testbed latency measure`: open-loop load on a real base station."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from testbed.cli.lists import numbers
from testbed.cli.output import note, print_json, print_rows
from testbed.config import Config, load, resolved
from testbed.errors import BadInput

C = TypeVar("C", bound=Config)


def measure(
    out: Annotated[Path, typer.Option(help="Directory of the measurement; give it again to go on.")],
    config: Annotated[Path | None, typer.Option(help="YAML file of options; options given beside it count.")] = None,
    engine: Annotated[str | None, typer.Option(help="vllm or transformers. [vllm]")] = None,
    model: Annotated[str | None, typer.Option(help="Target; default: the bundled one.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16. [float32]")] = None,
    pace: Annotated[str | None, typer.Option(help="As of `bs serve`: a machine whose pace passes keep. [none]")] = None,
    windows: Annotated[str | None, typer.Option(help="Drafted tokens a round; 0: the target alone. [0,2,4,8]")] = None,
    alphas: Annotated[
        str | None, typer.Option(help="Acceptance rates of replayed drafts; none: the real drafter. [0.8]")
    ] = None,
    rates: Annotated[int | None, typer.Option(help="Loads between one at a time and the ceiling. [9]")] = None,
    requests: Annotated[int | None, typer.Option(help="Requests of each load and repeat. [60]")] = None,
    repeats: Annotated[
        int | None, typer.Option(help="Repeats of all, in another order, pooled: evens out a machine's moods. [1]")
    ] = None,
    at_once: Annotated[int | None, typer.Option(help="Under way where the ceiling is measured. [32]")] = None,
    draft_ms: Annotated[float | None, typer.Option(help="Time that a replayed token takes to draft. [0]")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens of an output at most. [256]")] = None,
    prefills: Annotated[str | None, typer.Option(help="Tokens of prompts, drawn at random: 64,128,256.")] = None,
    decodes: Annotated[str | None, typer.Option(help="With --prefills: tokens of outputs, each in turn.")] = None,
    dataset: Annotated[str | None, typer.Option(help="As for `testbed demo`; used once a window.")] = None,
    drafter: Annotated[str | None, typer.Option(help="GGUF file; default: the bundled drafter.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Directory of tokenizer.json.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of arrivals and of replayed drafts. [0]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Measure mean and tail latency over load: Poisson arrivals at a BS that this command starts.

    Writes points.csv, which `testbed latency fit --csv` takes (loads at which requests pile up left out), and all.csv.

    Examples:

        testbed latency measure --out runs/load

        testbed latency measure --config sweeps/latency/alpha-k.yaml --out runs/load-alpha

        testbed latency measure --model random --windows 0,4 --prefills 64,128,256 --decodes 32,64 --out runs/lengths
    """
    from testbed.experiments.latency.load import COLUMNS
    from testbed.experiments.latency.load import measure as run
    from testbed.experiments.latency.load_config import LoadConfig
    from testbed.experiments.latency.load_lengths import measure_lengths

    given: dict[str, Any] = {
        "engine": engine, "model": model, "dtype": dtype, "pace": pace,
        "windows": windows and numbers(windows, int, "--windows"),
        "alphas": alphas and ([] if alphas == "none" else numbers(alphas, float, "--alphas")), "rates": rates,
        "requests": requests, "repeats": repeats, "at_once": at_once, "draft_ms": draft_ms, "max_tokens": max_tokens,
        "dataset": dataset, "drafter": drafter, "tokenizer": tokenizer, "seed": seed,
    }  # fmt: skip
    chosen = combined(LoadConfig() if config is None else load(LoadConfig, config), given)
    if (prefills is None) is not (decodes is None):
        raise BadInput("give --prefills and --decodes, or neither")
    if prefills is None or decodes is None:
        found = run(chosen, out, note)
    else:
        lengths = numbers(prefills, int, "--prefills"), numbers(decodes, int, "--decodes")
        found = measure_lengths(chosen, *lengths, out, note)
    rows: list[dict[str, Any]] = [msgspec.to_builtins(point) for series in found for point in series.points]
    if as_json:
        print_json({"config": resolved(chosen), "rows": rows})
        return
    shown = {name: (name, "{:g}") for name in COLUMNS if name not in ("alpha", "saturated")}
    print_rows(rows, None, {**shown, "alpha": ("alpha", "{:.3f}"), "saturated": ("piled up", "{}")})
    note(f"wrote {out / 'points.csv'}")


def combined(base: C, given: Mapping[str, Any]) -> C:
    """A configuration with the options that were given.

    Raises:
        BadInput: a value that cannot be.
    """
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items() if v is not None}
    return type(base)(**{**{name: getattr(base, name) for name in base.__struct_fields__}, **values})
