"""Measured step times of a pair: the drafter under llama.cpp, the target on its engine (edge SD batching, Fig. 5).

All combinations of batch size, prefix and window are measured in random order, with new random prompts, which no
cache has. The nodes are measured one after the other.
"""

from __future__ import annotations

import csv
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from testbed.bs.engines.base import VerifyEngine
from testbed.bs.engines.registry import ENGINES, leave_a_core, load_engine
from testbed.config import resolved
from testbed.errors import BadInput, ModelError
from testbed.experiments.edge.config import FitConfig
from testbed.experiments.edge.dimensions import of_directory, of_gguf
from testbed.experiments.estimator.profile import PassBench
from testbed.experiments.inputs.pair import pair_paths
from testbed.experiments.results.csv_file import write_csv
from testbed.files import file_bytes, json_values
from testbed.optim.cost_fit import NODES, MeasuredStep, Node, NodeFit, Phase, cost_document, fit_steps
from testbed.optim.inference_cost import Cost, Model
from testbed.optim.pass_time import RequestWork
from testbed.table_text import check_once
from testbed.ue.llama.batch_drafter import BatchDrafter

Progress = Callable[[int, int, str], None]


MOST_COUNT = 2**20
"""Largest batch, number of passes or window of a step that is read."""
BLOCK = 32
"""Block size in tokens of the coarsest prefix cache, vLLM's on a CPU."""
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def measure(config: FitConfig, told: Progress) -> list[MeasuredStep]:
    """Measure both nodes, one after the other.

    Raises:
        ModelError: unusable model files, or too short a context.
    """
    target, drafter_path = pair_paths(config.model, config.drafter, config.engine)
    leave_a_core(config.threads)
    longest = max(config.prefixes) + (max(config.windows) + 1) * (config.repeats + config.warmups)
    if max(longest, max(config.prefixes) + BLOCK) + max(config.windows) > target.max_positions:
        raise ModelError(f"the target's context is {target.max_positions} tokens, and {longest} are needed")
    drafter = BatchDrafter(
        drafter_path, target.vocab_size, context=longest, sequences=max(config.batches), threads=config.threads
    )
    try:
        steps = list(_run(config, "draft", _DraftBench(drafter, config), told))
    finally:
        drafter.close()
    options = ENGINES.choose(config.engine).keywords({"max_batch": max(config.batches)})
    engine = load_engine(
        config.engine, target.path, dtype=config.dtype, vocab_size=target.vocab_size, **options
    )  # fmt: skip
    try:
        steps += _run(config, "verify", _VerifyBench(engine, config), told)
    finally:
        engine.close()
    return steps


def dimensions(config: FitConfig) -> dict[Node, Model]:
    """Dimensions of both models."""
    target, drafter = pair_paths(config.model, config.drafter, config.engine)
    return {"draft": of_gguf(drafter), "verify": (of_gguf if target.path.is_file() else of_directory)(target.path)}


class _DraftBench:
    """Times draft steps; each repeat of a combination continues the last one, a token longer."""

    def __init__(self, drafter: BatchDrafter, config: FitConfig) -> None:
        self._drafter, self._rng = drafter, np.random.default_rng([config.seed, 11])
        self._clock = CLOCKS[config.clock]

    def times(self, phase: Phase, batch: int, prefix: int, window: int, count: int) -> tuple[list[float], list[float]]:
        """Seconds and prefix of each of `count` steps."""
        found: list[float] = []
        lengths: list[float] = []
        self._open(batch, prefix)
        if phase == "decode":
            self._drafter.draft(range(batch), 1)
        for _ in range(count):
            if phase == "prompt" and found:
                self._open(batch, prefix, again=True)
            lengths.append(self._drafter.length(0))
            start_s = self._clock()
            drafted = self._drafter.draft(range(batch), window)
            found.append(self._clock() - start_s)
            for task, row in enumerate(drafted.tolist()):
                self._drafter.commit(task, window - 1, row[-1])
        for task in range(batch):
            self._drafter.release(task)
        return found, lengths

    def _open(self, batch: int, prefix: int, again: bool = False) -> None:
        for task in range(batch):
            if again:
                self._drafter.release(task)
            self._drafter.open(task, self._rng.integers(0, self._drafter.vocab_size, prefix).tolist())


class _VerifyBench:
    """Times verification steps with new prompts.

    The tokens in the last, incomplete block of the engine's cache are computed again, so that decoding steps use
    prefixes up to one block longer than configured, uniformly spread.
    """

    def __init__(self, engine: VerifyEngine, config: FitConfig) -> None:
        self._bench, self._block = PassBench(engine, config.seed, CLOCKS[config.clock]), engine.block_size
        self._rng = np.random.default_rng([config.seed, 12])

    def times(self, phase: Phase, batch: int, prefix: int, window: int, count: int) -> tuple[list[float], list[float]]:
        """Seconds and mean prefix of each of `count` steps."""
        if phase == "prompt":
            return [self._bench.time_s([RequestWork(prefix + window, 0)] * batch) for _ in range(count)], [
                prefix
            ] * count
        found: list[float] = []
        lengths: list[float] = []
        for shift in self._rng.permutation(count) / count:
            ends = [prefix + int((task + shift) * self._block / batch) for task in range(batch)]
            found.append(self._bench.time_s([RequestWork(window + 1, end) for end in ends]))
            lengths.append(statistics.fmean(ends) + 1)
        return found, lengths


def _run(config: FitConfig, node: Node, bench: _DraftBench | _VerifyBench, told: Progress) -> Iterator[MeasuredStep]:
    grid = list(itertools.product(config.batches, config.prefixes, config.windows))
    combinations: list[tuple[Phase, int, int, int]] = [("decode", *one) for one in grid]
    combinations += [("prompt", b, prefix, config.windows[0]) for b in config.batches for prefix in config.prefixes]
    order = np.random.default_rng([config.seed, NODES.index(node)]).permutation(len(combinations))
    for done, index in enumerate(order.tolist()):
        phase, batch, prefix, window = combinations[index]
        told(done, len(combinations), f"{node} {phase}")
        window = 1 if node == "draft" and phase == "prompt" else window
        times, lengths = bench.times(phase, batch, prefix, window, config.warmups + config.repeats)
        kept, mean_prefix = times[config.warmups :], statistics.fmean(lengths[config.warmups :])
        variation = statistics.stdev(kept) / statistics.fmean(kept) if len(kept) > 1 else 0.0
        passes = window if node == "draft" else 1
        yield MeasuredStep(node, phase, batch, mean_prefix, window, passes, statistics.median(kept), variation)
    told(len(combinations), len(combinations), f"{node} done")


# ---------------------------------------------------------------- files


def report(
    steps: Sequence[MeasuredStep], models: dict[Node, Model], seed: int = 0, phase: Phase | None = "decode"
) -> dict[str, Any]:
    """The fits of both nodes, `cost` for `testbed optim plan`, and the models' dimensions.

    Args:
        phase: phase of the steps that `cost` is fitted to; None: all.

    Raises:
        BadInput: too few steps of a node.
    """
    fits: dict[Node, NodeFit] = {
        node: fit_steps(models[node], [step for step in steps if step.node == node], seed) for node in NODES
    }
    return {
        "cost": cost_document(fits, phase),
        "cost_of": phase or "all",
        **{node: msgspec.to_builtins(fit) for node, fit in fits.items()},
        "models": {node: resolved(model) for node, model in models.items()},
    }


def write_steps(path: Path, steps: Sequence[MeasuredStep]) -> None:
    """Write steps as CSV."""
    write_csv(path, map(msgspec.structs.asdict, steps), MeasuredStep.__struct_fields__)


def read_steps(path: Path) -> list[MeasuredStep]:
    """Read steps from a file of `write_steps`.

    Raises:
        BadInput: an unreadable file, a missing column, or an invalid value; the message has the line.
    """
    try:
        table = csv.DictReader(file_bytes(path).decode("utf-8-sig").splitlines(), strict=True)
        check_once(str(path), table.fieldnames or (), MeasuredStep.__struct_fields__)
        rows = list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise BadInput(f"cannot read {path}: {exc}") from exc
    steps = []
    for line, row in enumerate(rows, 2):
        try:
            step = msgspec.convert(row, MeasuredStep, strict=False)
            counts = step.batch, step.passes, step.window
            if not (min(counts) >= 1 and max(counts) <= MOST_COUNT):
                raise ValueError(f"batch, passes and window lie in 1..{MOST_COUNT}")
            if not (0 < step.prefix < 1e9 and 0 < step.seconds < 1e9):
                raise ValueError("prefix and seconds must be positive and below 1e9")
        except ValueError as exc:
            raise BadInput(f"{path} line {line}: {exc}; columns: {','.join(MeasuredStep.__struct_fields__)}") from exc
        steps.append(step)
    return steps


def read_cost(path: Path) -> Cost:
    """Read `cost` from a document of `testbed optim fit --json`.

    Raises:
        BadInput: an unreadable file, or one without `cost`.
    """
    try:
        return msgspec.convert(json_values(file_bytes(path))["cost"], Cost)
    except (OSError, ValueError, KeyError, TypeError, BadInput) as exc:
        raise BadInput(f"{path} has no `cost`, as `testbed optim fit --json` writes it: {exc}") from exc
