"""`testbed latency ramp`: hinted windows against fixed ones under a load that climbs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.cli.latency.measure import combined
from testbed.cli.lists import numbers
from testbed.cli.output import note, print_json, print_rows
from testbed.config import load, resolved
from testbed.errors import TestbedError


def ramp(
    out: Annotated[Path, typer.Option(help="Directory of the ramp; give it again to go on.")],
    config: Annotated[Path | None, typer.Option(help="YAML file of options; options given beside it count.")] = None,
    real: Annotated[bool, typer.Option("--real", help="A BS process on this machine, in real time.")] = False,
    windows: Annotated[str | None, typer.Option(help="Fixed windows; 0: the target alone. [0,1,2,4,6,8]")] = None,
    controller: Annotated[str | None, typer.Option(help="As of `bs serve`. [max_window=8]")] = None,
    loads: Annotated[str | None, typer.Option(help="Requests a second, climbing; default: measured.")] = None,
    steps: Annotated[int | None, typer.Option(help="Measured loads. [6]")] = None,
    reach: Annotated[float | None, typer.Option(help="The last of them, as a share of the ceiling. [0.85]")] = None,
    requests: Annotated[int | None, typer.Option(help="Of each step, at least. [300]")] = None,
    step_s: Annotated[float | None, typer.Option(help="Seconds of each step, at least. [30]")] = None,
    seeds: Annotated[str | None, typer.Option(help="Of arrivals, prompts and acceptance. [0,1,2]")] = None,
    ues: Annotated[int | None, typer.Option(help="UEs, which take requests in turn. [16]")] = None,
    alpha: Annotated[float | None, typer.Option(help="Acceptance rate imposed on drafts. [0.758]")] = None,
    draft_ms: Annotated[float | None, typer.Option(help="Drafting a token; default: the profile's, real: 0.")] = None,
    network_ms: Annotated[float | None, typer.Option(help="Virtual: link of a round, both ways. [40]")] = None,
    profile: Annotated[str | None, typer.Option(help="Virtual: pass times. [a100-qwen3-32b-appendix]")] = None,
    engine: Annotated[str | None, typer.Option(help="Real: vllm or transformers. [vllm]")] = None,
    model: Annotated[str | None, typer.Option(help="Real: target; default: the bundled one.")] = None,
    pace: Annotated[str | None, typer.Option(help="Real: as of `bs serve`. [none]")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Real: tokens of an output at most. [64]")] = None,
    check: Annotated[bool, typer.Option(help="Fail unless hinted windows hold what is asked of them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Climb a load step by step, under each fixed window and under those that the BS hints.

    Writes points.csv (a row for each load and window), loads.csv (hinted against the best fixed window of each load),
    ramp.csv (hinted against each fixed one over the whole ramp) and ramp.png. Requests, arrivals and the luck of drafts
    are the same for all windows of a seed.

    Examples:

        testbed latency ramp --out runs/ramp

        testbed latency ramp --draft-ms 2 --network-ms 10 --out runs/ramp-near

        testbed latency ramp --real --windows 0,2,4,8 --steps 4 --out runs/ramp-real
    """
    from testbed.experiments.latency.ramp import RampConfig
    from testbed.experiments.latency.ramp_measure import measure
    from testbed.experiments.latency.ramp_rows import table, write

    given: dict[str, Any] = {
        "kind": "real" if real else None, "controller": controller, "steps": steps, "reach": reach,
        "requests": requests, "step_s": step_s, "ues": ues, "alpha": alpha, "draft_ms": draft_ms,
        "network_ms": network_ms, "profile": profile, "engine": engine, "model": model, "pace": pace,
        "max_tokens": max_tokens,
        "windows": windows and numbers(windows, int, "--windows"),
        "loads": loads and numbers(loads, float, "--loads"),
        "seeds": seeds and numbers(seeds, int, "--seeds"),
    }  # fmt: skip
    chosen = combined(RampConfig() if config is None else load(RampConfig, config), given)
    found = table(chosen, measure(chosen, out, note))
    for path in write(found, out):
        note(f"wrote {path}")
    document = {"config": resolved(chosen), **found._asdict()}
    if as_json:
        print_json(document)
    else:
        _print(document)
    if check and not found.holds:
        raise TestbedError("hinted windows fall short: see the rows above")


def _print(document: dict[str, Any]) -> None:
    each = {"rps": ("requests/s", "{:g}"), "policy": ("window", "{}"), "requests": ("n", "{:d}"),
            "latency_s": ("mean s", "{:.4f}"), "latency_p95_s": ("p95 s", "{:.4f}"),
            "latency_p99_s": ("p99 s", "{:.4f}"), "window": ("drafted a round", "{:.2f}"),
            "piled_up": ("piles up", "{}")}  # fmt: skip
    print_rows(document["points"], None, each)
    ratio = {"ratio": ("hinted / it", "{:.4f}"), "low": ("95 %: from", "{:.4f}"), "high": ("to", "{:.4f}")}
    best = {"rps": ("requests/s", "{:g}"), "best_window": ("best K", "{:d}"), "best_s": ("mean s", "{:.4f}"),
            "hinted_s": ("hinted s", "{:.4f}"), **ratio, "within": ("within 2 %", "{}")}  # fmt: skip
    print_rows(document["loads"], "Hinted windows against the best fixed one at each load", best)
    over = {"window": ("K", "{:d}"), "latency_s": ("mean s", "{:.4f}"), "hinted_s": ("hinted s", "{:.4f}"), **ratio,
            "better": ("hinted better", "{}")}  # fmt: skip
    print_rows(document["ramp"], "Over the whole ramp", over)
