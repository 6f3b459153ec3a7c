"""Tokens/s of the testbed over loopback beside other libraries, with the same models and prompts, greedily, in one run.

    python benchmarks/libraries.py [--json] [--model NAME] [--prompts 10] [--tokens 64] [--only NAME,NAME] [--seconds S]
        [--llama-server PROGRAM] [--threads N] [--bs-threads N] [--ue-threads N] [--out FILE.json]

Every system is a process of its own; they take turns, prompt by prompt, in an order that is drawn anew for each.
`--model smollm2` takes the fetched model, whose own GGUF file drafts for it; the default is the bundled pair. vLLM and
transformers compute in float32, llama.cpp with the GGUF file. transformers and vLLM cannot read that file: they draft
with the same weights in float32, and so does `testbed vllm float32-drafter`, whose ratios compare equal drafters (those
of the bundled pair are equal anyway). llama.cpp's server keeps keys and values in f16, and so does `testbed llama f16`;
`testbed llama` keeps those of a float32 target in f32. `tokens_per_pass` is the output's length over the passes of the
target.

A system that is missing or fails to load is left out with a line. After `--seconds` no further prompt is begun.
Tokens/s and their ratios are medians over the prompts with 95 % bootstrap intervals. `--out` keeps the document, and
every output's tokens, passes and seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.commands import command_line, measure
from support.decoders import Pair, load, pair_of
from support.workers import Worker, median

METHODS = ("target-only", "greedy")
"""Methods of the testbed."""
FLOAT32 = "testbed vllm float32-drafter"
RATIOS = (
    (f"{FLOAT32} greedy", "transformers assisted", 1.5),
    (f"{FLOAT32} greedy", "vllm draft model", 1.0),
    ("testbed vllm greedy", "transformers assisted", 1.5),
    ("testbed vllm greedy", "vllm draft model", 1.0),
    ("testbed vllm target-only", "vllm eager", 0.9),
    ("testbed vllm compiled target-only", "vllm compiled", 0.9),
    ("testbed llama target-only", "llama-server", 0.8),
    ("testbed llama greedy", "llama-server draft model", 0.8),
    ("testbed llama f16 target-only", "llama-server", 0.8),
    ("testbed llama f16 greedy", "llama-server draft model", 0.8),
)
"""Pairs of systems, and the goal of the ratio of their tokens/s."""


def main() -> int:
    """Measure all systems in turn and print the rows."""
    return measure(load, parse, run_all, show)


def run_all(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all systems, and keep the document and all outputs where `--out` says so."""
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        document, outputs = run(options, Path(folder))
    if options.out:
        options.out.write_text(json.dumps(document | {"outputs": outputs}, indent=1) + "\n")
    return document


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--model", help="name of a fetched model; default: the bundled pair")
    parser.add_argument("--out", type=Path, help="file for the document and all outputs")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time for decoding")
    parser.add_argument("--only", help="names of systems, separated by commas")
    parser.add_argument("--llama-server", help="llama.cpp's server; default: llama-server on the PATH")
    parser.add_argument("--threads", type=int, help="CPU threads of every system; default: each library's own choice")
    parser.add_argument("--bs-threads", type=int, help="CPU threads of the base station; default: that of bs serve")
    parser.add_argument("--ue-threads", type=int, help="CPU threads of the UE; default: that of ue run")
    return parser.parse_args(arguments)


def systems(options: argparse.Namespace, pair: Pair, folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """Kind and options of each system, by name; files that they need are made in `folder`."""
    found: dict[str, tuple[str, dict[str, Any]]] = {
        "transformers": ("transformers", {"assisted": False}),
        "transformers assisted": ("transformers", {"assisted": True}),
        "vllm eager": ("vllm", {"compiled": False, "drafted": False}),
        "vllm compiled": ("vllm", {"compiled": True, "drafted": False}),
        "vllm draft model": ("vllm", {"compiled": True, "drafted": True}),
        "llama.cpp": ("llama", {}),
    }
    program = shutil.which(options.llama_server or "llama-server")
    if program:
        own = {"program": program, "threads": options.threads}
        found["llama-server"] = ("server", {**own, "drafted": False})
        found["llama-server draft model"] = ("server", {**own, "drafted": True})
    else:
        print("llama-server is left out: not on the PATH; give --llama-server", file=sys.stderr)
    threads = {"bs_threads": options.bs_threads, "ue_threads": options.ue_threads}
    for engine, compiled in (("vllm", False), ("vllm", True), ("llama", False)):
        found[f"testbed {engine}{' compiled' if compiled else ''}"] = (
            "testbed", {"engine": engine, "compiled": compiled, **threads},
        )  # fmt: skip
    found["testbed llama f16"] = ("testbed", {"engine": "llama", "kv_type": "f16", **threads})
    if options.model:
        file = folder / "drafter.gguf"
        found[FLOAT32] = ("testbed", {"engine": "vllm", "drafter_gguf": str(file), **threads})
    wanted = options.only.split(",") if options.only else list(found)
    if unknown := set(wanted) - set(found):
        raise SystemExit(f"unknown systems {', '.join(unknown)}; known: {', '.join(found)}")
    if FLOAT32 in wanted:
        from testbed.models.export import export_gguf

        export_gguf(Path(pair.drafter), file)
    return {name: found[name] for name in wanted}


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load all systems, and let each decode every prompt; returns rows and ratios, and every output's figures."""
    from testbed.bs.engines.target import describe
    from testbed.experiments.inputs.datasets import load_dataset
    from testbed.experiments.results.directory import host
    from testbed.models.bundle import bundled
    from testbed.ue.prompts import Prompter

    pair = pair_of(options.model)
    ends = list(describe(pair.target).end_ids)
    prompter = Prompter(bundled().require("tokenizer") if options.model is None else describe(pair.target).path)
    prompts = [prompter.ids(e.question) for e in load_dataset("bundled:test", options.prompts + 1)]
    workers: dict[str, Worker] = {}
    try:
        for name, (kind, what) in systems(options, pair, folder).items():
            try:
                workers[name] = Worker(__file__, {"system": kind, "pair": list(pair), "options": what})
            except RuntimeError as exc:  # noqa: PERF203
                print(f"{name} is left out: {exc}", file=sys.stderr)
        if not workers:
            raise SystemExit("no system could be loaded")
        loading = {name: worker.about for name, worker in workers.items()}
        found = decode_all(workers, prompts, options, ends)
    finally:
        for worker in workers.values():
            worker.close()
    count = len(next(iter(found.values())))
    about = {"model": options.model or "bundled", "prompts": count, "tokens": options.tokens}
    document = {"host": host(), **about, "rows": rows_of(found, loading), "ratios": ratios_of(found)}
    figures = {
        name: [{"s": one["s"], "tokens": len(one["ids"]), "passes": one["passes"]} for one in outputs]
        for name, outputs in found.items()
    }
    return document, figures


def decode_all(
    workers: dict[str, Worker], prompts: list[list[int]], options: argparse.Namespace, ends: list[int]
) -> dict[str, list[dict[str, Any]]]:
    """Outputs and seconds by system, in the order of prompts; the last prompt warms up."""
    rng = random.Random(0)
    ways: dict[str, tuple[Worker, dict[str, Any]]] = {}
    for name, worker in workers.items():
        if name.startswith("testbed"):
            methods = METHODS[1:] if name == FLOAT32 else METHODS
            ways |= {f"{name} {method}": (worker, {"method": method}) for method in methods}
        else:
            ways[name] = (worker, {})
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    start_s = time.monotonic()
    for number, ids in enumerate([prompts[-1], *prompts[:-1]]):
        if number > 1 and time.monotonic() - start_s > options.seconds:
            break
        for name in rng.sample(list(ways), len(ways)):
            worker, how = ways[name]
            found[name].append(worker.ask(ids=ids, tokens=options.tokens, ends=ends, **how))
    return {name: outputs[1:] for name, outputs in found.items()}


def rows_of(found: dict[str, list[dict[str, Any]]], loading: dict[str, float]) -> list[dict[str, Any]]:
    """A row per system; `same` is the share of its outputs that equal those of the first system."""
    reference = next(iter(found.values()))
    rows = []
    for name, outputs in found.items():
        value, low, high = median([speed(one) for one in outputs])
        same = [one["ids"] == other["ids"] for one, other in zip(outputs, reference, strict=True)]
        tokens = sum(len(one["ids"]) for one in outputs)
        rows.append({
            "system": name, "tokens_per_s": value, "interval": [low, high],
            "tokens_per_pass": tokens / sum(one["passes"] for one in outputs), "same": sum(same) / len(same),
            "load_s": loading.get(name) or loading[name.rpartition(" ")[0]],
        })  # fmt: skip
    return rows


def ratios_of(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Ratios of tokens/s, prompt by prompt, with their goals."""
    rows = []
    for above, below, goal in RATIOS:
        if above in found and below in found:
            pairs = zip(found[above], found[below], strict=True)
            value, low, high = median([speed(one) / speed(other) for one, other in pairs])
            rows.append({"above": above, "below": below, "ratio": value, "interval": [low, high], "goal": goal})
    return rows


def speed(one: dict[str, Any]) -> float:
    """Tokens/s of an output."""
    return float(len(one["ids"]) / one["s"])


def show(document: dict[str, Any]) -> None:
    """Print the rows as tables."""
    about = document["host"]
    print(f"{document['model']}: {about['cpu']}, {about['cores']} cores; {document['prompts']} prompts")
    print(f"{'system':34} {'tokens/s':>9} {'95 %':>19} {'per pass':>8} {'same output':>12} {'loaded':>8}")
    for row in document["rows"]:
        low, high = row["interval"]
        print(
            f"{row['system']:34} {row['tokens_per_s']:9.1f} {f'{low:.1f} to {high:.1f}':>19} "
            f"{row['tokens_per_pass']:8.2f} {row['same']:12.0%} {row['load_s']:6.1f} s"
        )
    for row in document["ratios"]:
        low, high = row["interval"]
        print(f"{row['above']} / {row['below']}: {row['ratio']:.2f} ({low:.2f} to {high:.2f}), goal {row['goal']:g}")


if __name__ == "__main__":
    sys.exit(main())
