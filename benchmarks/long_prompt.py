"""Delay of rounds by a long prompt that arrives beside them, by the bound of one prompt's share of a pass.

    python benchmarks/long_prompt.py [--json] [--csv FILE] [--engine vllm|llama|transformers] [--model DIR|NAME]
        [--prompt 8000] [--chunks none,512,128] [--sessions 4] [--window 4] [--repeats 3]

Sessions submit rounds in a closed loop: a round as soon as the last one is finished. `alone_ms` is a round's time from
submission to result without the prompt; `round_ms` (median) and `longest_ms` are those of rounds that were in the
engine with it; `prompt_ms` is the prompt's own time. A prompt longer than the target takes is shortened. Every bound
has a process of its own; they take turns, and ratios are medians over pairs: `longest_over_alone` within a bound, and
`longest_over_unbounded` and `prompt_over_unbounded` to the first bound. Times are medians with 95 % bootstrap
intervals.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from support.commands import measure, threads_of_a_server, with_engine
from support.workers import Worker, median

PREFIX = 209
"""Committed tokens of a session."""
LOOP = 40
"""Passes of rounds without the prompt."""
ROOM = 64
"""Positions of the target that the prompt leaves free."""


def main() -> int:
    """Measure all bounds in turn and print the rows."""
    return measure(load, parse, run, show)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = with_engine(__doc__)
    parser.add_argument("--prompt", type=int, default=8000)
    parser.add_argument("--chunks", type=bounds, default=[None, 512, 128], help="tokens, or none")
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--window", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args(arguments)


def bounds(text: str) -> list[int | None]:
    """Parse comma-separated bounds."""
    return [None if part == "none" else int(part) for part in text.split(",")]


# ---------------------------------------------------------------- the parent


def run(options: argparse.Namespace) -> dict[str, Any]:
    """A row for each bound."""
    from testbed.experiments.inputs.pair import target_for
    from testbed.experiments.results.directory import host

    threads_of_a_server()
    model = target_for(options.engine, options.model)
    workers: list[Worker] = []
    found: list[list[dict[str, float]]] = [[] for _ in options.chunks]
    try:
        for chunk in options.chunks:
            what = {"engine": options.engine, "model": model, "chunk": chunk, "sessions": options.sessions}
            workers.append(Worker(__file__, what))
        for repeat in range(-1, options.repeats):  # the first is a warm-up
            for place in range(len(workers))[:: 1 if repeat % 2 else -1]:
                asked = {"prompt": options.prompt, "window": options.window, "seed": repeat + 1}
                measured = workers[place].ask(**asked)
                if repeat >= 0:
                    found[place].append(measured)
    finally:
        for worker in workers:
            worker.close()
    about = {"model": options.model or "bundled", "engine": options.engine, "sessions": options.sessions}
    about |= {"window": options.window, "repeats": options.repeats}
    rows = [{"chunk": chunk} | row(own, found[0]) for chunk, own in zip(options.chunks, found, strict=True)]
    return {"host": host(), "rows": [about | one for one in rows]}


def row(own: Sequence[dict[str, float]], unbounded: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Medians of a bound's repeats, and ratios."""

    def column(name: str, of: Sequence[dict[str, float]] = own) -> Any:
        return np.asarray([one[name] for one in of])

    times = ("alone_ms", "round_ms", "longest_ms", "prompt_ms")
    return {
        "prompt": int(own[0]["prompt"]),
        "rounds": float(np.mean(column("rounds"))),
        **{name: list(median(column(name))) for name in times},
        "longest_over_alone": list(median(column("longest_ms") / column("alone_ms"))),
        "longest_over_unbounded": list(median(column("longest_ms") / column("longest_ms", unbounded))),
        "prompt_over_unbounded": list(median(column("prompt_ms") / column("prompt_ms", unbounded))),
    }


# ---------------------------------------------------------------- the workers


def load(engine: str, model: str, chunk: int | None, sessions: int) -> tuple[None, Callable[..., Any]]:
    """Load an engine with a bound."""
    from testbed.bs.engines.registry import load_engine

    options: dict[str, dict[str, Any]] = {
        "vllm": {"max_batch_tokens": 8192},  # as `bs serve`
        "llama": {"max_sessions": sessions + 1, "max_model_len": 8192},
        "transformers": {},
    }
    if engine == "llama":
        from testbed.llama.gguf_rules import check_gguf

        header = check_gguf(Path(model))
        longest = int(header.scalars[f"{header.scalars['general.architecture']}.context_length"])
        options["llama"]["max_model_len"] = min(longest, 8192)
    return None, Beside(load_engine(engine, model, chunk_tokens=chunk, **options[engine]), sessions)


class Beside:
    """Rounds of sessions in a closed loop, with and without a long prompt beside them."""

    def __init__(self, engine: Any, sessions: int) -> None:
        self._engine, self._names = engine, [str(number) for number in range(sessions)]
        self._begun: dict[str, float] = {}

    def __call__(self, prompt: int, window: int, seed: int) -> dict[str, float]:
        """Times of rounds alone and beside the prompt, and of the prompt [ms]."""
        self._rng, self._window = np.random.default_rng(seed), window
        self._prefixes = {name: self._some(PREFIX) for name in self._names}
        prompt = min(prompt, self._engine.max_positions - ROOM)
        self._loop(0)
        alone = self._loop(LOOP)
        start_s = time.perf_counter()
        beside = self._loop(0, self._some(prompt))
        took_s = time.perf_counter() - start_s
        for name in (*self._names, "prompt"):
            self._engine.release(name)
        return {
            "prompt": prompt, "rounds": len(beside), "alone_ms": 1e3 * float(np.median(alone)),
            "round_ms": 1e3 * float(np.median(beside)), "longest_ms": 1e3 * max(beside), "prompt_ms": 1e3 * took_s,
        }  # fmt: skip

    def _some(self, count: int) -> Any:
        return self._rng.integers(0, self._engine.vocab_size, count, dtype=np.int32)

    def _submit(self, name: str, prefix: Any, window: int) -> None:
        from testbed.bs.engines.base import VerifyRequest

        self._begun[name] = time.perf_counter()
        self._engine.submit(VerifyRequest(name, prefix.copy(), self._some(window)))

    def _loop(self, passes: int, prompt: Any = None) -> list[float]:
        """Round times [s] during some passes, or while the prompt is computed; all rounds are finished at the end."""
        for name, prefix in self._prefixes.items():
            self._submit(name, prefix, self._window)
        if prompt is not None:
            self._submit("prompt", prompt, 0)
        took_s: list[float] = []
        left = passes
        while self._begun:
            left -= 1
            for share in self._engine.step():
                if share.result is None:
                    continue
                name = share.request.session
                seconds = time.perf_counter() - self._begun.pop(name)
                if name == "prompt":
                    continue
                took_s.append(seconds)
                self._prefixes[name][-1] = self._some(1)[0]
                if left > 0 or "prompt" in self._begun:
                    self._submit(name, self._prefixes[name], self._window)
        return took_s


def show(document: dict[str, Any]) -> None:
    """Print the rows as a table."""
    first = document["rows"][0]
    print(f"a prompt of {first['prompt']} tokens beside {first['sessions']} sessions, window {first['window']}")
    print(
        f"{'bound':>6} {'alone ms':>9} {'round ms':>9} {'longest ms':>11} {'prompt ms':>10}  longest over alone, ",
        end="",
    )
    print("over unbounded; prompt over unbounded")
    for one in document["rows"]:
        times = [one[name][0] for name in ("alone_ms", "round_ms", "longest_ms", "prompt_ms")]
        ratios = [one[name][0] for name in ("longest_over_alone", "longest_over_unbounded", "prompt_over_unbounded")]
        print(
            f"{one['chunk'] or 'none':>6} {times[0]:9.1f} {times[1]:9.1f} {times[2]:11.1f} {times[3]:10.1f}  "
            f"{ratios[0]:.2f}, {ratios[1]:.3f}; {ratios[2]:.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
