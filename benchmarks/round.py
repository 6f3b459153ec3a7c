"""Software overhead of a round, and speedup of speculation over loopback, as ratios within one run.

1. Overhead of a round (all but drafting, engine pass and emulated link) for 1, 4 and 16 UEs on loopback, relative to a
   bare ZeroMQ echo of the same payload between the same number of peers; for SH, whose rounds exchange messages twice,
   relative to two echoes of half the payload.
2. Tokens/s of greedy speculation over loopback, relative to target-only on the same base station and to transformers'
   co-located assisted generation (`assistant_model`), with the same pair and prompts.

Run: python benchmarks/round.py [--prompts N] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import zmq
import zmq.asyncio

from testbed.channel.link import ZmqLink, new_identity
from testbed.clock import WallClock
from testbed.config import RunConfig, ServeConfig
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.results import directory as results
from testbed.experiments.runs.processes import base_station, user_equipment
from testbed.models.bundle import bundled
from testbed.protocols import protocol
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.records import RoundRecord
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow

WINDOW = 8
TOKENS = 1600
"""Tokens of all UEs together, but at least 400 per UE."""
EXCHANGES = {"greedy": 1, "fh": 1, "sh": 2}
"""Round trips per round."""
ALPHA = 0.8
VOCAB = 512


def main() -> None:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=20, help="prompts of the second part")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report = {
        "host": results.host(),
        "overhead": [overhead(ues, kind) for kind in ("greedy", "fh", "sh") for ues in (1, 4, 16)],
        "tokens_per_s": throughput(arguments.prompts),
    }
    if arguments.json:
        print(json.dumps(report))
        return
    print(f"{report['host']['cpu']}, {report['host']['cores']} cores; window {WINDOW}")
    print("protocol  UEs  rounds  round overhead ms (p50)  bare echo ms (p50)  ratio")
    for row in report["overhead"]:
        print(
            f"{row['protocol']:8}  {row['ues']:3d}  {row['rounds']:6d}  {row['overhead_ms']:23.3f}  "
            f"{row['echo_ms']:18.3f}  {row['ratio']:5.2f}"
        )
    print()
    for name, row in report["tokens_per_s"].items():
        print(f"{name:24} {row['tokens_per_s']:8.1f} tokens/s   {row['ratio']:.2f} x target-only")


# ---------------------------------------------------------------- 1: overhead of a round


def overhead(ues: int, kind: str) -> dict[str, Any]:
    """Median overhead of a round, and its ratio to the echo's round-trip time."""
    with base_station(ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*")) as ready:
        rounds = asyncio.run(_decode(ready["bind"], ues, kind))
    seconds = [r.link_s + r.queue_s + r.judge_s + r.overhead_s for r in rounds]
    up, down = (int(statistics.median(getattr(r, f"{way}_bytes") for r in rounds)) for way in ("uplink", "downlink"))
    trips = EXCHANGES[kind]
    single_s = echo(ues, up // trips, down // trips, len(rounds) // ues * trips)
    echo_s = [sum(single_s[i : i + trips]) for i in range(0, len(single_s) - trips + 1, trips)]
    overhead_ms, echo_ms = statistics.median(seconds) * 1e3, statistics.median(echo_s) * 1e3
    return {
        "protocol": kind,
        "ues": ues,
        "rounds": len(rounds),
        "overhead_ms": overhead_ms,
        "echo_ms": echo_ms,
        "ratio": overhead_ms / echo_ms,
    }


async def _decode(address: str, ues: int, kind: str) -> list[RoundRecord]:
    async def one(number: int) -> list[RoundRecord]:
        drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=ALPHA)
        client = Client(ZmqLink(address, new_identity()), WallClock(), 1)
        try:
            await client.connect("", VOCAB)
            session = DecodingSession(client, drafter, protocol(kind), FixedWindow(WINDOW))
            record = await session.decode([number + 1] * 50, max(400, TOKENS // ues), ())
        finally:
            await client.close()
        return record.rounds[5:]

    return [r for rounds in await asyncio.gather(*(one(i) for i in range(ues))) for r in rounds]


def echo(ues: int, up_bytes: int, down_bytes: int, count: int) -> list[float]:
    """Round-trip times of a bare echo with the same number of peers and bytes."""
    context = multiprocessing.get_context("spawn")
    port: Any = context.SimpleQueue()
    server = context.Process(target=_echo_server, args=(port, down_bytes, ues * count), daemon=True)
    server.start()
    try:
        return asyncio.run(_echo_clients(port.get(), ues, up_bytes, count))
    finally:
        server.join(10)
        server.kill()


def _echo_server(port: Any, down_bytes: int, count: int) -> None:
    socket = zmq.Context().socket(zmq.ROUTER)
    port.put(socket.bind_to_random_port("tcp://127.0.0.1"))
    for _ in range(count):
        peer, _payload = socket.recv_multipart()
        socket.send_multipart([peer, b"\0" * down_bytes])
    time.sleep(0.2)


async def _echo_clients(port: int, ues: int, up_bytes: int, count: int) -> list[float]:
    context = zmq.asyncio.Context()

    async def one() -> list[float]:
        socket = context.socket(zmq.DEALER)
        socket.connect(f"tcp://127.0.0.1:{port}")
        times = []
        for _ in range(count):
            start_s = time.perf_counter()
            await socket.send(b"\0" * up_bytes)
            await socket.recv()
            times.append(time.perf_counter() - start_s)
        socket.close(0)
        return times

    gathered = await asyncio.gather(*(one() for _ in range(ues)))
    context.term()
    return [t for times in gathered for t in times[5:]]


# ---------------------------------------------------------------- 2: tokens per second


def throughput(prompts: int) -> dict[str, dict[str, float]]:
    """Tokens/s of greedy speculation over loopback, target-only and assisted generation."""
    methods = ("target-only", "greedy")
    with (
        tempfile.TemporaryDirectory() as out,
        base_station(ServeConfig(engine="vllm", bind="tcp://127.0.0.1:*")) as ready,
    ):
        config = RunConfig(bs=ready["bind"], methods=methods, window=WINDOW, limit=prompts)
        document, _ = user_equipment(config, Path(out))
    speeds = {row["method"]: row["throughput_tps"] for row in document["rows"]}
    speeds["transformers assisted"] = assisted(prompts)
    base = speeds["target-only"]
    return {name: {"tokens_per_s": speed, "ratio": speed / base} for name, speed in speeds.items()}


def assisted(prompts: int) -> float:
    """Tokens/s of transformers' assisted generation with the same pair, both models in one process."""
    import torch
    from transformers import AutoModelForCausalLM

    from testbed.ue.prompts import Prompter

    bundle = bundled()
    target_dir = bundle.require("target")
    target, drafter = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        for path in (target_dir, Path(bundle.require("drafter_hf")))
    )
    drafter.generation_config.num_assistant_tokens = WINDOW
    drafter.generation_config.num_assistant_tokens_schedule = "constant"
    prompter = Prompter(target_dir)
    ids = [torch.tensor([prompter.ids(e.question)]) for e in load_dataset("bundled:test", prompts + 1)]
    tokens, seconds = [], []
    for prompt in [ids[-1], *ids[:-1]]:
        start_s = time.perf_counter()
        output = target.generate(prompt, assistant_model=drafter, do_sample=False, max_new_tokens=256)
        seconds.append(time.perf_counter() - start_s)
        tokens.append(output.shape[1] - prompt.shape[1])
    return float(np.sum(tokens[1:]) / np.sum(seconds[1:]))


if __name__ == "__main__":
    main()
