"""`testbed ue serve`: a local OpenAI-compatible endpoint."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

import typer

from testbed.cli.output import claim_stdout, note, print_json
from testbed.config import EndpointConfig

DEFAULT = EndpointConfig()


def serve(
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
    drafter: Annotated[str | None, typer.Option(help="GGUF file; default: the bundled drafter.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Directory with tokenizer.json.")] = None,
    protocol: Annotated[
        str,
        typer.Option(
            help="At temperature 0 (greedy, fh, sh, auto) and above (rejection, split), separated by a comma."
        ),
    ] = ",".join(DEFAULT.protocols),
    window: Annotated[int, typer.Option(help="Draft window K, tokens a round.")] = DEFAULT.window,
    threshold: Annotated[float, typer.Option(help="Decision threshold; 0 is strict.")] = DEFAULT.threshold,
    host: Annotated[str, typer.Option(help="Address to listen on; beyond loopback, with a key.")] = DEFAULT.host,
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any that is free.")] = DEFAULT.port,
    token_file: Annotated[str | None, typer.Option(help="File with the API key that clients must give.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model; default: what the BS calls it.")] = None,
    max_tokens: Annotated[
        int, typer.Option(help="Output tokens of a request that gives no number.")
    ] = DEFAULT.max_tokens,
    temperature: Annotated[float, typer.Option(help="Of a request that gives none.")] = DEFAULT.temperature,
    context: Annotated[
        int | None, typer.Option(help="Positions of prompt and output; default: the drafter's, at most 2048.")
    ] = None,
    sequences: Annotated[int, typer.Option(help="Requests decoded at once.")] = DEFAULT.sequences,
    queue: Annotated[int, typer.Option(help="Requests that may wait beside them.")] = DEFAULT.queue,
    prompt_format: Annotated[
        str, typer.Option(help="Of conversations: auto, plain, chat, or a template with {question}.")
    ] = DEFAULT.prompt_format,
    csi: Annotated[str, typer.Option(help="Channel state, as in `ue run`.")] = DEFAULT.csi,
    auto_rule: Annotated[str, typer.Option(help="How `auto` chooses: rtt or latency.")] = DEFAULT.auto_rule,
    hidden_bits: Annotated[
        int, typer.Option(help="Bits of an element at which fh and sh upload hidden states: 16, 8 or 4.")
    ] = DEFAULT.hidden_bits,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the drafter.")] = None,
    gpu_layers: Annotated[int, typer.Option(help="Layers of the drafter on a GPU; -1: all.")] = DEFAULT.gpu_layers,
    kv_type: Annotated[Literal["f16", "f32"], typer.Option(help="The drafter's KV cache.")] = DEFAULT.kv_type,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds to wait for the BS.")] = DEFAULT.timeout_s,
    as_json: Annotated[bool, typer.Option("--json", help="Say that it is ready as one JSON line.")] = False,
) -> None:
    """Serve the OpenAI API (/v1/models, /v1/completions, /v1/chat/completions) with a BS until Ctrl-C.

    Examples:

        testbed ue serve --bs tcp://192.0.2.7:5555 --keys orin-1

        testbed ue serve --drafter small.gguf --tokenizer ./large --protocol sh,split

        testbed ue serve --host 0.0.0.0 --token-file key.txt
    """
    from testbed.experiments.inputs.state import channel_state, check_csi
    from testbed.models.bundle import bundled
    from testbed.ue.api.serve import serve as run

    config = EndpointConfig(
        bs=",".join(bs) if bs else DEFAULT.bs,
        keys=",".join(keys) if keys else None,
        insecure=insecure,
        failover_s=failover_s,
        drafter=drafter,
        tokenizer=tokenizer,
        protocols=tuple(dict.fromkeys(p.strip() for p in protocol.split(","))),
        window=window,
        threshold=threshold,
        host=host,
        port=port,
        token_file=token_file,
        name=name,
        max_tokens=max_tokens,
        temperature=temperature,
        context=context,
        sequences=sequences,
        queue=queue,
        prompt_format=prompt_format,
        csi=csi,
        auto_rule=auto_rule,
        hidden_bits=hidden_bits,
        threads=threads,
        gpu_layers=gpu_layers,
        kv_type=kv_type,
        timeout_s=timeout_s,
    )
    check_csi(config.csi)
    bundle = bundled()
    stdout = claim_stdout() if as_json else sys.stdout

    def ready(url: str, model: str) -> None:
        if as_json:
            print_json({"ready": True, "url": url, "pid": os.getpid(), "model": model}, stdout)
        note(f"serving {model} at {url}/v1 (pid {os.getpid()}); Ctrl-C stops it")

    run(
        config,
        (bundle.drafter, bundle.tokenizer),
        lambda client, clock: channel_state(config.csi, client, clock),
        ready,
    )
