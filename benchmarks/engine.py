"""Computed tokens and duration of verification passes, by sessions and draft window, at and off a block boundary.

    python benchmarks/engine.py [--json] [--csv FILE] [--engine vllm|llama|transformers] [--model DIR|NAME]
        [--sessions 1,4,16] [--windows 0,4,8] [--repeats 15] [--before CHECKOUT] [--compiled]

`needed_tokens` is K+1 per session: the last committed token and the drafted ones. `generate` is `vllm.LLM.generate`
with the same model, batch and mode, per step of one token per sequence. `before` is the vLLM engine of another
checkout, such as an earlier commit's. `--compiled` adds both in vLLM's compiled mode, loaded with an empty cache of
compiled code first. Every system is a process of its own; they take turns, pass by pass, and ratios are medians over
pairs. Times are medians with 95 % bootstrap intervals. CPU times, those of all threads, depend less on other work; with
OMP_NUM_THREADS=1 they are the time of a pass on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from support.commands import measure, threads_of_a_server, with_engine
from support.workers import Worker, median

BLOCK = 32
PREFIX = 6 * BLOCK + 1
"""Length of a prefix whose last token starts a new block."""
OFF = BLOCK // 2
"""Extra tokens of a prefix that ends off a block boundary."""
TOKENS = 32
"""Tokens decoded per sequence by `generate`."""
POSITIONS = 1024
PAIRS = (("engine", "generate"), ("compiled", "generate compiled"))
"""Engines, and the generation in the same mode."""


def main() -> int:
    """Measure all systems in turn and print the rows."""
    return measure(load, parse, run, show)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = with_engine(__doc__)
    parser.add_argument("--sessions", type=numbers, default=[1, 4, 16])
    parser.add_argument("--windows", type=numbers, default=[0, 4, 8])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--before", type=Path, help="checkout whose vLLM engine is measured beside this one")
    parser.add_argument("--compiled", action="store_true", help="measure vLLM's compiled mode beside eager")
    return parser.parse_args(arguments)


def numbers(text: str) -> list[int]:
    """Parse comma-separated integers."""
    return [int(part) for part in text.split(",")]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All rows."""
    from testbed.experiments.inputs.pair import target_for
    from testbed.experiments.results.directory import host

    threads_of_a_server()
    model = target_for(options.engine, options.model)
    most = max(options.sessions)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["VLLM_CACHE_ROOT"] = cache
        workers, loading = start(options, {"model": model, "sessions": most})
        try:
            rows, generated = [], []
            for sessions in options.sessions:
                for window in options.windows:
                    rows += measured(workers, sessions, window, options.repeats)
                for engine, generator in PAIRS:
                    if generator in workers:
                        found = generation(workers[engine], workers[generator], sessions, options.repeats)
                        generated.append({"mode": "eager" if engine == "engine" else engine} | found)
        finally:
            for worker in workers.values():
                worker.close()
    about = {"model": options.model or "bundled", "engine": options.engine}
    seconds, cpu_s = ({name: about[i] for name, about in loading.items()} for i in range(2))
    rows = [about | row for row in rows]
    return {"host": host(), "load_s": seconds, "load_cpu_s": cpu_s, "rows": rows, "generate": generated}


def start(options: argparse.Namespace, common: dict[str, Any]) -> tuple[dict[str, Worker], dict[str, list[float]]]:
    """Load all systems; returns them, and the seconds and CPU seconds that each took."""
    wanted: dict[str, tuple[dict[str, Any], Path | None]] = {"engine": ({"engine": options.engine}, None)}
    if options.engine == "vllm":
        wanted["generate"] = ({"engine": "generate"}, None)
    if options.compiled:
        wanted["compiled cold"] = wanted["compiled"] = ({"engine": "vllm", "compiled": True}, None)
        wanted["generate compiled"] = ({"engine": "generate", "compiled": True}, None)
    if options.before:
        wanted["before"] = ({"engine": "before"}, options.before.resolve())
    workers: dict[str, Worker] = {}
    loading: dict[str, list[float]] = {}
    for name, (what, path) in wanted.items():
        workers[name] = Worker(__file__, common | what, *filter(None, [path]))
        loading[name] = workers[name].about
        if name == "compiled cold":
            workers.pop(name).close()
    return workers, loading


def measured(workers: dict[str, Worker], sessions: int, window: int, repeats: int) -> list[dict[str, Any]]:
    """Rows of one combination: every repeat asks each engine for one pass on and one off a boundary."""
    engines = {name: worker for name, worker in workers.items() if not name.startswith("generate")}
    passes: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
    for repeat in range(-2, repeats):
        order = list(engines) if repeat % 2 else list(engines)[::-1]
        for name in order:
            found = engines[name].ask(sessions=sessions, window=window, seed=repeat + 2)
            if repeat >= 0:
                passes[name].append(found)
    needed = sessions * (window + 1)
    rows = []
    for aligned in ("on", "off"):
        times = {name: [one[aligned]["ms"] for one in found] for name, found in passes.items()}
        value, low, high = median(times["engine"])
        row: dict[str, Any] = {
            "sessions": sessions, "window": window, "aligned": aligned == "on", "needed_tokens": needed,
            "computed_tokens": float(np.mean([one[aligned]["computed"] for one in passes["engine"]])),
            "pass_ms": value, "interval_ms": [low, high], "least_ms": min(times["engine"]), "repeats": repeats,
        }  # fmt: skip
        cpu = {name: [one[aligned]["cpu_ms"] for one in found] for name, found in passes.items()}
        row["cpu_ms"] = list(median(cpu["engine"]))
        if aligned == "off":
            row["off_over_on"] = ratio(times["engine"], [one["on"]["ms"] for one in passes["engine"]])
        if "compiled" in times:
            row["compiled_ms"] = median(times["compiled"])[0]
            row["compiled_speedup"] = ratio(times["engine"], times["compiled"])
            row["compiled_cpu_ms"] = list(median(cpu["compiled"]))
            row["compiled_cpu_speedup"] = ratio(cpu["engine"], cpu["compiled"])
        if "before" in times:
            row["before_ms"] = median(times["before"])[0]
            row["before_computed_tokens"] = float(np.mean([one[aligned]["computed"] for one in passes["before"]]))
            row["speedup"] = ratio(times["before"], times["engine"])
        rows.append(row)
    return rows


def generation(engine: Worker, generator: Worker, sessions: int, repeats: int) -> dict[str, Any]:
    """Row of vLLM's greedy generation, beside as many passes without drafts in the same minutes."""
    steps, passes = [], []
    for repeat in range(max(3, repeats // 3)):
        steps.append(generator.ask(sequences=sessions))
        found = [engine.ask(sessions=sessions, window=0, seed=100 + 8 * repeat + i) for i in range(8)]
        passes.append(float(np.median([one["off"]["ms"] for one in found])))
    value, low, high = median(steps)
    return {"sequences": sessions, "step_ms": value, "interval_ms": [low, high], "pass_over_step": ratio(passes, steps)}


def ratio(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Median ratio of pairs, and its 95 % interval."""
    return list(median(np.asarray(above) / np.asarray(below)))


def load(engine: str, model: str, sessions: int, compiled: bool = False) -> tuple[list[float], Callable[..., Any]]:
    """Load a system; returns the seconds and CPU seconds that it took, and what it measures."""
    start_s, start_cpu_s = time.perf_counter(), cpu_time_s()
    if engine == "generate":
        made: Callable[..., Any] = generator(model, sessions, compiled)
    else:
        made = Passes(engine_of(engine, model, sessions, compiled))
    return [time.perf_counter() - start_s, cpu_time_s() - start_cpu_s], made


def cpu_time_s() -> float:
    """CPU time of this process and of the children that have ended, such as compilers."""
    return sum(os.times()[:4])


def engine_of(kind: str, model: str, sessions: int, compiled: bool) -> Any:
    """The engine of this checkout, or vLLM's of an earlier one."""
    if kind == "before":
        try:
            from testbed.bs.engines.vllm.engine import VllmEngine
        except ImportError:
            from testbed.bs.vllm_engine import VllmEngine
        return VllmEngine(model)
    from testbed.bs.engines.registry import load_engine

    options = {
        "vllm": {"compiled": compiled},
        "llama": {"max_sessions": 2 * sessions, "max_model_len": POSITIONS},
        "transformers": {},
    }
    return load_engine(kind, model, **options[kind])


class Passes:
    """Rounds of sessions over the same prefixes, the last token of which changes every time, with new drafts."""

    def __init__(self, engine: Any) -> None:
        try:
            from testbed.bs.engines.base import VerifyRequest
        except ImportError:
            from testbed.bs.engine import VerifyRequest
        self._engine, self._request = engine, VerifyRequest
        self._prefixes: dict[str, Any] = {}

    def __call__(self, sessions: int, window: int, seed: int) -> dict[str, dict[str, float]]:
        """Milliseconds and computed tokens of a pass on and off a block boundary, in changing order."""
        rng = np.random.default_rng(seed)
        order = [("on", 0), ("off", OFF)]
        return {name: self._pass(name, extra, sessions, window, rng) for name, extra in order[:: 1 - 2 * (seed % 2)]}

    def _pass(self, name: str, extra: int, sessions: int, window: int, rng: np.random.Generator) -> dict[str, float]:
        def some(count: int) -> Any:
            return rng.integers(0, self._engine.vocab_size, count, dtype=np.int32)

        names = [f"{name}-{number}" for number in range(sessions)]
        for one in names:
            if one not in self._prefixes:
                self._prefixes[one] = some(PREFIX + extra)
                self._engine.verify([self._request(one, self._prefixes[one][:-1], some(0))])
            self._prefixes[one][-1] = some(1)[0]
        batch = [self._request(one, self._prefixes[one].copy(), some(window)) for one in names]
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        results = self._engine.verify(batch)
        took_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
        computed = sum(PREFIX + extra + window - result.cached for result in results)
        return {"ms": 1e3 * took_s, "cpu_ms": 1e3 * cpu_s, "computed": computed}


def generator(model: str, sessions: int, compiled: bool) -> Callable[..., float]:
    """vLLM's greedy generation: milliseconds per step, without prefill."""
    from testbed.bs.engines.vllm.engine import ENVIRONMENT

    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from vllm import LLM, SamplingParams

    from testbed.bs.engines.vllm.compiled import read_compiled_code

    read_compiled_code()  # or else every start compiles again

    llm = LLM(
        model, dtype="float32", enforce_eager=not compiled, skip_tokenizer_init=True, block_size=BLOCK,
        kv_cache_memory_bytes=2 << 30, disable_log_stats=True, seed=0,
    )  # fmt: skip
    vocabulary = llm.llm_engine.model_config.get_vocab_size()
    rng = np.random.default_rng(0)

    def measure(sequences: int) -> float:
        prompts: Any = [{"prompt_token_ids": rng.integers(0, vocabulary, PREFIX).tolist()} for _ in range(sequences)]
        took_s = []
        for tokens in (1, TOKENS + 1, 1):  # the first call fills the prefix cache
            params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
            start_s = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            took_s.append(time.perf_counter() - start_s)
        return 1e3 * (took_s[1] - took_s[2]) / TOKENS

    return measure


def show(document: dict[str, Any]) -> None:
    """Print the rows as a table."""
    for name, seconds in document["load_s"].items():
        print(f"{name}: loaded in {seconds:.1f} s, {document['load_cpu_s'][name]:.1f} s of CPU time")
    print(f"{'sessions':>8} {'K':>3} {'boundary':>8} {'needed':>7} {'computed':>9} {'ms':>8} {'least':>8}  ratios")
    for row in document["rows"]:
        named = ("off_over_on", "speedup", "compiled_speedup", "cpu_ms", "compiled_cpu_ms", "compiled_cpu_speedup")
        ratios = [f"{name} {'{:.2f} ({:.2f} to {:.2f})'.format(*row[name])}" for name in named if name in row]
        print(
            f"{row['sessions']:8} {row['window']:3} {'on' if row['aligned'] else 'off':>8} {row['needed_tokens']:7} "
            f"{row['computed_tokens']:9.1f} {row['pass_ms']:8.2f} {row['least_ms']:8.2f}  {', '.join(ratios)}"
        )
    for row in document["generate"]:
        value, low, high = row["pass_over_step"]
        print(
            f"generate, {row['mode']}, {row['sequences']:3} sequences: {row['step_ms']:.2f} ms per step; pass over "
            f"step {value:.2f} ({low:.2f} to {high:.2f})"
        )


if __name__ == "__main__":
    sys.exit(main())
