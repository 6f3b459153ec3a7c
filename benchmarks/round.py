"""Software overhead of a round, and speedup of speculation over loopback, as ratios within one run.

    python benchmarks/round.py [--prompts 20] [--ues 1,4,16] [--protocols greedy,fh,sh] [--json]

1. Overhead of a round (all but drafting, engine pass and emulated link) on loopback, relative to a bare ZeroMQ echo of
   the same payload between the same number of peers; for SH, whose rounds exchange messages twice, relative to two
   echoes of half the payload. UEs and peers of the echo are processes of their own; rounds and echoes take turns.
   `parts_ms` are the medians of its parts: link (messages and their handling on the UE's side), queue (waiting for the
   engine, other sessions' passes included), judge, and the rest of the BS.
2. Tokens/s of greedy speculation over loopback, relative to target-only on the same base station and to transformers'
   co-located assisted generation (`assistant_model`), with the same pair and prompts; left out with `--prompts 0`.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import contextlib
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import zmq
import zmq.asyncio
from support.workers import Worker, answer, median

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
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow

WINDOW = 8
TOKENS = 1600
"""Tokens of all UEs together in each turn, but at least 200 per UE."""
TURNS = 5
SKIPPED = 5
"""First rounds and echoes of each turn, which are not counted."""
EXCHANGES = {"greedy": 1, "fh": 1, "sh": 2}
"""Round trips per round."""
PARTS = ("link", "queue", "judge", "overhead")
"""Parts of the overhead, as in `RoundRecord`."""
ALPHA = 0.8
VOCAB = 512


def main() -> int:
    """Run the benchmark and print the results."""
    if sys.argv[1:] == ["--worker"]:
        answer(load)
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=20, help="prompts of the second part; 0: leave it out")
    parser.add_argument("--ues", default="1,4,16", help="numbers of UEs, separated by commas")
    parser.add_argument("--protocols", default=",".join(EXCHANGES), help="protocols, separated by commas")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    counts = [int(ues) for ues in arguments.ues.split(",")]
    report = {
        "host": results.host(),
        "overhead": [overhead(ues, kind) for kind in arguments.protocols.split(",") for ues in counts],
        "tokens_per_s": throughput(arguments.prompts) if arguments.prompts else {},
    }
    if arguments.json:
        print(json.dumps(report))
    else:
        show(report)
    return 0


def show(report: dict[str, Any]) -> None:
    """Print the rows as tables."""
    print(f"{report['host']['cpu']}, {report['host']['cores']} cores; window {WINDOW}; p50 in ms")
    names = "  ".join(f"{part:>8}" for part in PARTS)
    print(f"protocol  UEs  rounds  overhead   echo  ratio, 95 %            {names}")
    for row in report["overhead"]:
        low, high = row["interval"]
        parts = "  ".join(f"{row['parts_ms'][part]:8.3f}" for part in PARTS)
        print(
            f"{row['protocol']:8}  {row['ues']:3d}  {row['rounds']:6d}  {row['overhead_ms']:8.3f}  "
            f"{row['echo_ms']:5.3f}  {row['ratio']:5.2f} ({low:5.2f} to {high:5.2f})  {parts}"
        )
    for name, row in report["tokens_per_s"].items():
        print(f"{name:24} {row['tokens_per_s']:8.1f} tokens/s   {row['ratio']:.2f} x target-only")


# ---------------------------------------------------------------- 1: overhead of a round


def overhead(ues: int, kind: str) -> dict[str, Any]:
    """Overhead of a round, and its ratio to the echo's round-trip time: medians over turns of the turns' medians."""
    tokens, trips = max(200, TOKENS // ues), EXCHANGES[kind]
    with (
        base_station(ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*")) as ready,
        peers(ues, {"peer": "ue", "address": ready["bind"], "kind": kind}) as decode,
    ):
        rounds = decode(tokens=tokens)
        up, down = (int(statistics.median(one[way] for one in rounds) / trips) for way in ("up", "down"))
        with echo_server(down) as address, peers(ues, {"peer": "echo", "address": address}) as echo:
            count = trips * len(rounds) // ues
            turns = [turn(decode(tokens=tokens), echo(size=up, count=count), trips) for _ in range(TURNS)]
    column = {name: [one[name] for one in turns] for name in ("overhead_ms", "echo_ms", *PARTS)}
    ratio, low, high = median(np.divide(column["overhead_ms"], column["echo_ms"]))
    return {
        "protocol": kind,
        "ues": ues,
        "rounds": sum(one["rounds"] for one in turns),
        "overhead_ms": statistics.median(column["overhead_ms"]),
        "echo_ms": statistics.median(column["echo_ms"]),
        "ratio": ratio,
        "interval": [low, high],
        "parts_ms": {part: statistics.median(column[part]) for part in PARTS},
    }


def turn(rounds: list[dict[str, float]], echoes: list[float], trips: int) -> dict[str, Any]:
    """Medians of a turn: of rounds with their parts in ms, and of as many echoes' times in seconds as a round has."""
    pairs = [sum(echoes[i : i + trips]) for i in range(0, len(echoes) - trips + 1, trips)]
    parts = {part: statistics.median(one[part] for one in rounds) for part in PARTS}
    total = statistics.median(sum(one[part] for part in PARTS) for one in rounds)
    return {"rounds": len(rounds), "overhead_ms": total, "echo_ms": 1e3 * statistics.median(pairs), **parts}


@contextlib.contextmanager
def peers(count: int, what: dict[str, Any]) -> Iterator[Callable[..., list[Any]]]:
    """Processes that do the same at the same time; all their results in one list."""
    with contextlib.ExitStack() as held:
        workers = [Worker(__file__, {**what, "number": number}) for number in range(count)]
        for worker in workers:
            held.callback(worker.close)
        threads = held.enter_context(ThreadPoolExecutor(count))
        yield lambda **how: [one for found in threads.map(lambda worker: worker.ask(**how), workers) for one in found]


def load(peer: str, address: str, number: int, kind: str = "") -> tuple[None, Callable[..., list[Any]]]:
    """A UE's process, or that of a peer of the echo."""
    loop = asyncio.new_event_loop()
    if peer == "echo":
        socket = zmq.asyncio.Context().socket(zmq.DEALER)
        socket.connect(address)
        return None, lambda size, count: loop.run_until_complete(echoes(socket, size, count))
    client = Client(ZmqLink(address, new_identity()), WallClock(), 1)
    loop.run_until_complete(client.connect("", VOCAB))
    atexit.register(lambda: loop.run_until_complete(client.close()))
    return None, lambda tokens: loop.run_until_complete(rounds(client, kind, number, tokens))


async def rounds(client: Client, kind: str, number: int, tokens: int) -> list[dict[str, float]]:
    """The parts of a request's rounds in ms, and their bytes."""
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=ALPHA)
    session = DecodingSession(client, drafter, protocol(kind), FixedWindow(WINDOW))
    record = await session.decode([number + 1] * 50, tokens, ())
    return [
        {
            **{part: 1e3 * getattr(one, f"{part}_s") for part in PARTS},
            "up": one.uplink_bytes,
            "down": one.downlink_bytes,
        }
        for one in record.rounds[SKIPPED:]
    ]


async def echoes(socket: zmq.asyncio.Socket, size: int, count: int) -> list[float]:
    """Round-trip times of `size` bytes."""
    times = []
    for _ in range(count + SKIPPED):
        start_s = time.perf_counter()
        await socket.send(b"\0" * size)
        await socket.recv()
        times.append(time.perf_counter() - start_s)
    return times[SKIPPED:]


@contextlib.contextmanager
def echo_server(size: int) -> Iterator[str]:
    """Address of a process that answers every message with `size` bytes."""
    context = multiprocessing.get_context("spawn")
    port: Any = context.SimpleQueue()
    server = context.Process(target=_echo_server, args=(port, size), daemon=True)
    server.start()
    try:
        yield f"tcp://127.0.0.1:{port.get()}"
    finally:
        server.kill()
        server.join()


def _echo_server(port: Any, size: int) -> None:
    socket = zmq.Context().socket(zmq.ROUTER)
    port.put(socket.bind_to_random_port("tcp://127.0.0.1"))
    while True:
        peer, _payload = socket.recv_multipart()
        socket.send_multipart([peer, b"\0" * size])


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
    sys.exit(main())
