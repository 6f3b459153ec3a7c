"""`testbed ue`: the user equipment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from testbed.cli.output import ENERGY_COLUMNS, note, note_power, print_json, print_rows
from testbed.config import RunConfig
from testbed.errors import BadInput, GateError
from testbed.ue.windows.rules import RULES

app = typer.Typer(no_args_is_help=True, help="The user equipment: drafts with a small model.")
DEFAULT = RunConfig()


@app.callback()
def group() -> None:
    """The user equipment: drafts with a small model."""


@app.command()
def run(
    bs: Annotated[
        list[str] | None,
        typer.Option(help=f"Address of the base station; given again: of one that takes over. Default: {DEFAULT.bs}."),
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR", help="Keys that `testbed keys new --ue` made; given again: for the next --bs."),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Talk beyond loopback without keys.")] = False,
    failover_s: Annotated[
        float, typer.Option(help="Silence of a base station after which the next takes over.")
    ] = DEFAULT.failover_s,
    local_bs: Annotated[str | None, typer.Option(help="Address that `colocated` uses beside the link.")] = None,
    drafter: Annotated[str | None, typer.Option(help="GGUF file; default: the bundled drafter.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Directory with tokenizer.json.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Decode this question.")] = None,
    prompt_ids: Annotated[str | None, typer.Option(help="Decode this prompt of token ids: 1,2,3.")] = None,
    dataset: Annotated[str, typer.Option(help="bundled:test, FILE.jsonl, or hf:NAME.")] = DEFAULT.dataset,
    limit: Annotated[int | None, typer.Option(help="Prompts to take from the data set.")] = None,
    protocol: Annotated[
        str, typer.Option(help="greedy, rejection, split, fh, sh, auto, target-only or colocated; several: commas.")
    ] = ",".join(DEFAULT.methods),
    window: Annotated[int, typer.Option(help="Draft window K, tokens a round.")] = DEFAULT.window,
    max_tokens: Annotated[int, typer.Option(help="Output tokens at most.")] = DEFAULT.max_tokens,
    threshold: Annotated[float, typer.Option(help="Decision threshold; 0 is strict.")] = DEFAULT.threshold,
    prompt_format: Annotated[str, typer.Option(help="auto, plain, chat, or a template with {question}.")] = "auto",
    shots: Annotated[int, typer.Option(help="Worked examples before every question.")] = DEFAULT.shots,
    seed: Annotated[int, typer.Option(help="Shuffles the order of methods.")] = DEFAULT.seed,
    warmup: Annotated[int, typer.Option(help="Prompts decoded before anything is measured.")] = DEFAULT.warmup,
    gate: Annotated[bool, typer.Option(help="Hold outputs against the target's own.")] = DEFAULT.gate,
    tie_tolerance: Annotated[
        float, typer.Option(help="Largest logit gap that counts as a tie (outside float32).")
    ] = DEFAULT.tie_tolerance,
    concurrency: Annotated[int, typer.Option(help="Requests under way at once.")] = DEFAULT.concurrency,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the drafter.")] = None,
    gpu_layers: Annotated[int, typer.Option(help="Layers of the drafter on a GPU; -1: all.")] = DEFAULT.gpu_layers,
    kv_type: Annotated[Literal["f16", "f32"], typer.Option(help="The drafter's KV cache.")] = DEFAULT.kv_type,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds to wait for the BS.")] = DEFAULT.timeout_s,
    csi: Annotated[
        str,
        typer.Option(
            help="Channel state: none, passive (from the rounds), FILE.json of `channel measure`, trace=NAME, "
            "or uplink_mbps=20,downlink_mbps=20,rtt_ms=50."
        ),
    ] = DEFAULT.csi,
    auto_rule: Annotated[str, typer.Option(help="How `auto` chooses: rtt or latency.")] = DEFAULT.auto_rule,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Of rejection, split and target-only; 0: greedy; default: 1 where one of the first two runs."
        ),
    ] = None,
    top_k: Annotated[int, typer.Option(help="Most likely tokens that these draw from; 0: all.")] = DEFAULT.top_k,
    top_p: Annotated[float, typer.Option(help="Probability that those must reach.")] = DEFAULT.top_p,
    hidden_bits: Annotated[
        int, typer.Option(help="Bits of an element at which fh and sh upload hidden states: 16, 8 or 4.")
    ] = DEFAULT.hidden_bits,
    speed_tps: Annotated[
        float | None, typer.Option(help="Tokens a second that the BS is to promise; default: no promise.")
    ] = None,
    accept_slower: Annotated[
        bool, typer.Option("--accept-slower", help="Take the speed that it offers where it cannot promise that.")
    ] = False,
    window_rule: Annotated[
        str, typer.Option(help=f"When to stop drafting, K tokens at most: {', '.join(RULES)}.")
    ] = DEFAULT.window_rule,
    predictor: Annotated[
        str | None, typer.Option(metavar="DIR", help="Rejection predictor; default: the bundled one, if needed.")
    ] = None,
    pad: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="Send messages as large as those of this profile's models.")
    ] = None,
    power: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="Sample power: auto, none, jetson, tegrastats, pi, rapl, or FILE of samples to replay.",
        ),
    ] = "none",
    power_period_s: Annotated[
        float | None, typer.Option(help="Seconds between two samples; default: what suits the sensor.")
    ] = None,
    power_idle_s: Annotated[
        float, typer.Option(help="Seconds for which the idle device is measured first.")
    ] = DEFAULT.power_idle_s,
    out: Annotated[Path | None, typer.Option(help="Write a run directory here.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the unfinished run in --out, under the same options.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Decode a prompt or a data set with a BS.

    Examples:

        testbed ue run --prompt "Ada has 12 apples. Ben gives Ada 30 apples. How many?"

        testbed ue run --bs tcp://192.0.2.7:5555 --keys orin-1 --limit 50 --protocol greedy,fh,sh --window 16

        testbed ue run --bs tcp://192.0.2.7:5555 --bs tcp://192.0.2.8:5555 --keys orin-1 --out runs/far

        testbed ue run --bs tcp://192.0.2.7:5555 --bs tcp://192.0.2.8:5555 --keys orin-1 --out runs/far --resume

        testbed ue run --bs tcp://192.0.2.7:5555 --keys orin-1 --power auto --out runs/energy
    """
    from testbed.experiments.runs.uerun import run_ue

    config = RunConfig(
        bs=",".join(bs) if bs else DEFAULT.bs,
        keys=",".join(keys) if keys else None,
        insecure=insecure,
        failover_s=failover_s,
        local_bs=local_bs,
        drafter=drafter,
        tokenizer=tokenizer,
        methods=tuple(dict.fromkeys(m.strip() for m in protocol.split(","))),
        window=window,
        max_tokens=max_tokens,
        threshold=threshold,
        dataset=dataset,
        limit=limit,
        prompt_format=prompt_format,
        shots=shots,
        seed=seed,
        warmup=warmup,
        gate=gate,
        tie_tolerance=tie_tolerance,
        concurrency=concurrency,
        threads=threads,
        gpu_layers=gpu_layers,
        kv_type=kv_type,
        timeout_s=timeout_s,
        csi=csi,
        auto_rule=auto_rule,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        hidden_bits=hidden_bits,
        speed_tps=speed_tps,
        accept_slower=accept_slower,
        window_rule=window_rule,
        predictor=predictor,
        pad=pad,
        power=None if power == "none" else power,
        power_period_s=power_period_s,
        power_idle_s=power_idle_s,
    )
    result = run_ue(config, _given(prompt, prompt_ids), out, resume)
    if as_json:
        print_json(result.document())
    else:
        if prompt is not None or prompt_ids is not None:
            for output in result.outputs:
                print(output["text"] or ",".join(map(str, output["token_ids"])))
        print_rows(result.rows)
        if result.power is not None:
            print_rows(result.rows, columns=ENERGY_COLUMNS)
            note_power(result.power)
        if out:
            note(f"wrote {out}")
    if result.losses:
        raise GateError(result.losses[0])


def _given(prompt: str | None, prompt_ids: str | None) -> list[int] | list[str] | None:
    """The one prompt that was given, as ids or as text."""
    if prompt is not None and prompt_ids is not None:
        raise BadInput("give --prompt or --prompt-ids, not both")
    if prompt_ids is not None:
        try:
            return [int(i) for i in prompt_ids.split(",") if i.strip()]
        except ValueError as exc:
            raise BadInput(f"--prompt-ids takes integers separated by commas, not {prompt_ids!r}") from exc
    return None if prompt is None else [prompt]
