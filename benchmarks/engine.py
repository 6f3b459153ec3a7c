"""Computed tokens and duration of verification passes, by sessions and draft window, at and off a block boundary.

    python benchmarks/engine.py [--json] [--model DIR] [--sessions 1,4,16] [--windows 0,4,8] [--repeats 20]

`needed_tokens` is K+1 per session: the last committed token and the drafted ones. Mode `resident` is the default
engine, in which sessions keep their blocks; `blockwise` uses the prefix cache instead, as in earlier versions.
`generate` is `vllm.LLM.generate` with the same model, batch and settings, one token per step. Each mode runs in a
separate process. Times are medians over the repeats, with the minimum.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 32
PREFIX = 6 * BLOCK + 1
"""Length of a prefix whose last token starts a new block."""
OFF = BLOCK // 2
"""Extra tokens of an unaligned prefix."""
MODES = ("resident", "blockwise", "generate")
TOKENS = 64
"""Tokens decoded per sequence in mode `generate`."""


def main() -> int:
    """Run each mode in a separate process and print the rows."""
    options = parse(sys.argv[1:])
    if options.mode:
        print(json.dumps(measure(options)))
        return 0
    document: dict[str, list[dict[str, Any]]] = {"rows": [], "generate": []}
    for mode in MODES:
        command = [sys.executable, __file__, *sys.argv[1:], "--mode", mode]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment())
        for key, rows in json.loads(done.stdout.splitlines()[-1]).items():
            document[key] += rows
    if options.json:
        print(json.dumps(document))
    else:
        show(document)
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--model", type=Path, help="directory of the target; default: the bundled one")
    parser.add_argument("--sessions", type=numbers, default=[1, 4, 16])
    parser.add_argument("--windows", type=numbers, default=[0, 4, 8])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def numbers(text: str) -> list[int]:
    """Parse comma-separated integers."""
    return [int(part) for part in text.split(",")]


def environment() -> dict[str, str]:
    """Environment with the same number of threads as `bs serve`, for all modes."""
    threads = str(max(1, (os.cpu_count() or 1) - 1))
    return {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}


def measure(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Rows of one mode."""
    from testbed.models.bundle import bundled

    model = options.model or bundled().require("target")
    if options.mode == "generate":
        return {"generate": generate(model, options.sessions)}
    return {"rows": passes(model, options)}


def passes(model: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of the engine's passes, each over the same prefixes with new drafts."""
    from testbed.bs.engines.vllm.engine import VllmEngine

    engine = VllmEngine(model, resident=options.mode == "resident")
    rows = []
    for sessions in options.sessions:
        for window in options.windows:
            for aligned in (True, False):
                length = PREFIX if aligned else PREFIX + OFF
                found = rounds(engine, sessions, window, length, options.repeats)
                rows.append({"model": model.name, "mode": options.mode, "aligned": aligned, **found})
    engine.close()
    return rows


def rounds(engine: Any, sessions: int, window: int, length: int, repeats: int) -> dict[str, Any]:
    """Row of rounds of sessions with prefixes of `length` tokens, the last of which changes every time."""
    from testbed.bs.engines.base import VerifyRequest

    rng = np.random.default_rng(0)

    def some(count: int) -> Any:
        return rng.integers(0, engine.vocab_size, count, dtype=np.int32)

    prefixes = {str(i): some(length) for i in range(sessions)}
    engine.verify([VerifyRequest(name, prefix[:-1], some(0)) for name, prefix in prefixes.items()])
    times, computed = [], []
    for _ in range(repeats):
        for prefix in prefixes.values():
            prefix[-1] = some(1)[0]
        batch = [VerifyRequest(name, prefix, some(window)) for name, prefix in prefixes.items()]
        before, start_s = engine.stats.computed_tokens, time.perf_counter()
        engine.verify(batch)
        times.append(time.perf_counter() - start_s)
        computed.append(engine.stats.computed_tokens - before)
    for name in prefixes:
        engine.release(name)
    return {
        "sessions": sessions,
        "window": window,
        "needed_tokens": sessions * (window + 1),
        "computed_tokens": statistics.mean(computed),
        "pass_ms": 1e3 * statistics.median(times),
        "least_ms": 1e3 * min(times),
    }


def generate(model: Path, batches: Sequence[int]) -> list[dict[str, Any]]:
    """Rows of vLLM's greedy generation: milliseconds per step, without prefill."""
    from testbed.bs.engines.vllm.engine import ENVIRONMENT

    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(model), dtype="float32", enforce_eager=True, skip_tokenizer_init=True, block_size=BLOCK,
        kv_cache_memory_bytes=2 << 30, disable_log_stats=True, seed=0,
    )  # fmt: skip
    rng, rows = np.random.default_rng(0), []
    vocabulary = llm.llm_engine.model_config.get_vocab_size()
    for sequences in batches:
        prompts = [{"prompt_token_ids": rng.integers(0, vocabulary, PREFIX).tolist()} for _ in range(sequences)]
        took = [
            timed(llm, prompts, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False))
            for tokens in (TOKENS, 1, TOKENS, 1, TOKENS)
        ]
        step_ms = 1e3 * (min(took[::2]) - min(took[1::2])) / (TOKENS - 1)
        rows.append({"model": model.name, "sequences": sequences, "step_ms": step_ms})
    return rows


def timed(llm: Any, prompts: Any, params: Any) -> float:
    """Seconds of a call to `generate`."""
    start_s = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - start_s


def show(document: dict[str, list[dict[str, Any]]]) -> None:
    """Print the rows as a table."""
    print(f"{'mode':10} {'sessions':>8} {'K':>3} {'aligned':>8} {'needed':>7} {'computed':>9} {'ms':>8} {'least':>8}")
    for row in document["rows"]:
        print(
            f"{row['mode']:10} {row['sessions']:8} {row['window']:3} {row['aligned']!s:>8} {row['needed_tokens']:7} "
            f"{row['computed_tokens']:9.1f} {row['pass_ms']:8.2f} {row['least_ms']:8.2f}"
        )
    for row in document["generate"]:
        print(f"generate   {row['sequences']:8} sequences: {row['step_ms']:.2f} ms per step")


if __name__ == "__main__":
    sys.exit(main())
