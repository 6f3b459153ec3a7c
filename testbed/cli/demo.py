"""`testbed demo`."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.output import note, print_json, print_rows
from testbed.config import DemoConfig
from testbed.ue.windows.rules import RULES

DEFAULT = DemoConfig()


def demo(
    prompts: Annotated[int, typer.Option(help="Prompts to decode.")] = DEFAULT.prompts,
    window: Annotated[int, typer.Option(help="Draft window K, tokens a round.")] = DEFAULT.window,
    methods: Annotated[
        str, typer.Option(help="target-only, colocated, greedy, rejection, split, fh, sh, auto; separated by commas.")
    ] = ",".join(DEFAULT.methods),
    threshold: Annotated[float, typer.Option(help="Decision threshold; 0 is strict.")] = DEFAULT.threshold,
    channel: Annotated[
        str,
        typer.Option(
            help="kind=none; kind=proxy|virtual|tc,uplink_mbps=20,downlink_mbps=20,rtt_ms=50,per=0[,profile=NAME]; "
            "or kind=trace,file=NAME,via=proxy|virtual."
        ),
    ] = DEFAULT.channel,
    dataset: Annotated[str, typer.Option(help="bundled:test, FILE.jsonl, or hf:NAME.")] = DEFAULT.dataset,
    max_tokens: Annotated[int, typer.Option(help="Output tokens at most.")] = DEFAULT.max_tokens,
    seed: Annotated[int, typer.Option(help="Shuffles the order of methods.")] = DEFAULT.seed,
    engine: Annotated[str, typer.Option(help="vllm or transformers.")] = DEFAULT.engine,
    model: Annotated[str | None, typer.Option(help="Target; default: the bundled one.")] = None,
    drafter: Annotated[str | None, typer.Option(help="GGUF drafter; default: the bundled one.")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = DEFAULT.dtype,
    auto_rule: Annotated[str, typer.Option(help="How `auto` chooses: rtt or latency.")] = DEFAULT.auto_rule,
    tie_tolerance: Annotated[
        float | None, typer.Option(help="Largest logit gap that counts as a tie; default: 0 in float32.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Of rejection, split and target-only; 0: greedy; default: 1 where one of the first two runs."
        ),
    ] = None,
    top_k: Annotated[int, typer.Option(help="Most likely tokens that these draw from; 0: all.")] = DEFAULT.top_k,
    top_p: Annotated[float, typer.Option(help="Probability that those must reach.")] = DEFAULT.top_p,
    head: Annotated[
        str | None, typer.Option(help="Decision head: its directory, or bundled; default: the bundled one, if needed.")
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(help="strict, digits, head, table or budget; default: head at a threshold above 0, else strict."),
    ] = None,
    quality_budget: Annotated[
        float | None, typer.Option(help="Share of answers that judge `budget` may let change: 0.01.")
    ] = None,
    hidden_bits: Annotated[
        int, typer.Option(help="Bits of an element at which fh and sh upload hidden states: 16, 8 or 4.")
    ] = DEFAULT.hidden_bits,
    window_rule: Annotated[
        str, typer.Option(help=f"When to stop drafting, K tokens at most: {', '.join(RULES)}.")
    ] = DEFAULT.window_rule,
    predictor: Annotated[
        str | None, typer.Option(metavar="DIR", help="Rejection predictor; default: the bundled one, if needed.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; default: runs/demo-TIME.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Start a BS (vLLM) and a UE (llama.cpp) as processes on loopback and decode bundled problems by every method.

    Examples:

        testbed demo

        testbed demo --prompts 50 --window 16 --methods target-only,greedy,sh --out runs/mine

        testbed demo --channel kind=proxy,uplink_mbps=20,downlink_mbps=20,rtt_ms=50

        testbed demo --channel kind=virtual,uplink_mbps=20,downlink_mbps=20,rtt_ms=50,profile=wisv

        testbed demo --methods target-only,greedy,fh,sh --threshold 0.75 --head runs/head
    """
    from testbed.experiments.runs.demo import run_demo

    config = DemoConfig(
        prompts=prompts,
        window=window,
        methods=tuple(dict.fromkeys(m.strip() for m in methods.split(","))),
        threshold=threshold,
        channel=channel,
        dataset=dataset,
        max_tokens=max_tokens,
        seed=seed,
        engine=engine,
        model=model,
        drafter=drafter,
        dtype=dtype,
        auto_rule=auto_rule,
        tie_tolerance=tie_tolerance,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        judge=judge,
        head=head,
        quality_budget=quality_budget,
        hidden_bits=hidden_bits,
        window_rule=window_rule,
        predictor=predictor,
    )
    directory = out or Path("runs") / f"demo-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    summary = run_demo(config, directory, note)
    if as_json:
        print_json(summary)
        return
    pids = summary["host"]["pids"]
    where = f"BS pid {pids['bs']}, UE pid {pids['ue']}" if "bs" in pids else "virtual time"
    print_rows(summary["rows"], f"{prompts} prompts, window {window}; {where}")
    note(f"wrote {directory}; open {directory}/report.html")
