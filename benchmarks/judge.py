"""Cost of judging: time of the decision head relative to the engine pass of the same round.

The bundled pair decodes bundled problems in batches of 1, 4 and 16, with target passes and head evaluations alternating
in one process. All windows of a round are judged in one batch, as in the base station. Reported are the median and the
95th percentile of the ratio over rounds; the goal is a median below 2 %.

Run: python benchmarks/judge.py [--head DIR] [--engine vllm|transformers] [--window K] [--prompts N] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from testbed.bs.engines.base import VerifyEngine, VerifyRequest
from testbed.bs.engines.registry import leave_a_core, load_engine
from testbed.bs.engines.target import describe
from testbed.bs.judging.base import Candidates, Judge
from testbed.bs.judging.registry import make_judge
from testbed.channel.csi import PERFECT
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.results import directory as results
from testbed.models.bundle import bundled, head_directory
from testbed.ue.drafters.base import DraftSequence
from testbed.ue.llama.drafter import LlamaDrafter
from testbed.ue.prompts import Prompter

BATCHES = (1, 4, 16)
ROUNDS = 6
"""Rounds per prompt; the first one, which includes the prefill, is discarded."""
THETA = 0.5
GOAL = 0.02


def main() -> None:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head", help="directory of a decision head; default: the bundled one")
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    leave_a_core()
    target = describe(str(bundled().require("target")))
    judge = make_judge("head", head_directory(arguments.head), None, target.path)
    engine = load_engine(arguments.engine, target.path, vocab_size=target.vocab_size)
    prompter = Prompter(target.path)
    prompts = [prompter.ids(example.question) for example in load_dataset("bundled:test", arguments.prompts)]
    drafter = LlamaDrafter(bundled().require("drafter"), prompter.vocab_size, sequences=max(BATCHES))
    try:
        rows = [measure(engine, judge, drafter, prompts, batch, arguments.window) for batch in BATCHES]
    finally:
        drafter.close()
        engine.close()
    report(rows, arguments.json)


def report(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print the results."""
    host = results.host()
    if as_json:
        print(json.dumps({"host": host, "rows": rows, "goal": GOAL}))
        return
    print(f"{host['cpu']}, {host['cores']} cores; window {rows[0]['window']}, {rows[0]['engine']}")
    print("batch  rounds  candidates/round    pass ms (p50)  head ms (p50)  share (p50)  share (p95)")
    for row in rows:
        print(
            f"{row['batch']:5d}  {row['rounds']:6d}  {row['candidates']:18.1f}  {row['pass_ms']:13.3f}  "
            f"{row['head_ms']:13.3f}  {row['share']:11.2%}  {row['share_p95']:11.2%}"
        )


def measure(
    engine: VerifyEngine, judge: Judge, drafter: LlamaDrafter, prompts: list[list[int]], batch: int, window: int
) -> dict[str, Any]:
    """Decode all prompts, `batch` at a time, and compare pass and head time of each round."""
    timed: list[tuple[float, float, int]] = []
    for start in range(0, len(prompts) - batch + 1, batch):
        timed += decode(engine, judge, drafter, prompts[start : start + batch], window)
    pass_s, head_s, candidates = (np.array(column) for column in zip(*timed, strict=True))
    share = head_s / pass_s
    return {
        "engine": engine.__class__.__name__,
        "batch": batch,
        "window": window,
        "rounds": len(timed),
        "candidates": float(candidates.mean()),
        "pass_ms": float(np.median(pass_s)) * 1e3,
        "head_ms": float(np.median(head_s)) * 1e3,
        "share": float(np.median(share)),
        "share_p95": float(np.percentile(share, 95)),
    }


def decode(
    engine: VerifyEngine, judge: Judge, drafter: LlamaDrafter, prompts: list[list[int]], window: int
) -> list[tuple[float, float, int]]:
    """Decode prompts together; per round except the first: seconds of pass and head, and candidates judged."""
    sequences = [drafter.open(prompt) for prompt in prompts]
    prefixes = [np.array(prompt, np.int32) for prompt in prompts]
    timed = []
    for number in range(ROUNDS):
        pass_s, head_s, judged = one_round(engine, judge, sequences, prefixes, window)
        if number:
            timed.append((pass_s, head_s, judged))
    for i, sequence in enumerate(sequences):
        sequence.close()
        engine.release(str(i))
    return timed


def one_round(
    engine: VerifyEngine, judge: Judge, sequences: list[DraftSequence], prefixes: list[Any], window: int
) -> tuple[float, float, int]:
    """Draft, verify, judge and commit one window per sequence; extends `prefixes` in place."""
    drafted = [[sequence.draft_one() for _ in range(window)] for sequence in sequences]
    ids = [np.array([token.id for token in tokens], np.int32) for tokens in drafted]
    batch = [VerifyRequest(str(i), p, d, hidden=True) for i, (p, d) in enumerate(zip(prefixes, ids, strict=True))]
    start_s = time.perf_counter()
    answers = engine.verify(batch)
    pass_s = time.perf_counter() - start_s
    missed = [np.flatnonzero(d != a.argmax[:-1]) for d, a in zip(ids, answers, strict=True)]
    hidden = [np.stack([token.hidden for token in tokens]) for tokens in drafted]
    start_s = time.perf_counter()
    kept = judge.judge(
        [
            Candidates(d[m], a.argmax[m], h[m], a.hidden[m] if a.hidden is not None else None, PERFECT, THETA)
            for d, a, h, m in zip(ids, answers, hidden, missed, strict=True)
            if len(m)
        ]
    )
    head_s = time.perf_counter() - start_s
    left = iter(kept)
    for i, (answer, rows) in enumerate(zip(answers, missed, strict=True)):
        stays = (
            next((int(r) for r, keep in zip(rows, next(left), strict=True) if not keep), window)
            if len(rows)
            else window
        )
        token = int(answer.argmax[stays])
        sequences[i].commit(stays, token)
        prefixes[i] = np.concatenate([prefixes[i], ids[i][:stays], np.array([token], np.int32)])
    return pass_s, head_s, sum(map(len, missed))


if __name__ == "__main__":
    main()
