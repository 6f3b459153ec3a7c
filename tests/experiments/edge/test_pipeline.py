"""Batches through two nodes: what may overlap and what may not, outputs, and the model's times beside them."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.errors import BadInput, TestbedError
from testbed.experiments.edge.config import PipelineConfig
from testbed.experiments.edge.pipeline import MODES, Pipeline, PipelineRun, StepRecord
from testbed.experiments.edge.pipeline_nodes import (
    Done,
    DraftBatch,
    Failed,
    NodeProcess,
    OpenTasks,
    Orders,
    Verify,
    answers,
    serve,
    started,
)
from testbed.experiments.edge.pipeline_report import (
    model_scores,
    model_step_s,
    overlap_s,
    recursion_s,
    run_row,
    step_rows,
)
from testbed.experiments.edge.pipeline_run import make_cell, run
from testbed.experiments.edge.pipeline_upload import payload, upload
from testbed.experiments.inputs.pair import pair_paths
from testbed.models.bundle import bundled
from testbed.optim.inference_cost import Cost, Model, ServedPair
from testbed.optim.tasks import Problem, Task, allocation
from tests.support.refusals import refuse

END, VOCAB = 0, 50
COST = Cost(c1_draft=4e-10, c2_draft=3e-4, c1_verify=3e-11, c2_verify=5e-3)


def following(ids: list[int]) -> int:
    """The target's next token: a hash of the prefix, an end token now and then."""
    value = 7
    for token in ids:
        value = (value * 31 + token + 1) % 10_007
    return END if value % 17 == 0 else 1 + value % (VOCAB - 1)


def guessed(ids: list[int]) -> int:
    """The drafter's: the target's two times in three."""
    return following(ids) if sum(ids) % 3 else 1 + sum(ids) % (VOCAB - 1)


class Clockwork:
    """Nodes of threads, whose clock advances by one with every order; what they do may wait for an event."""

    def __init__(self, before: Callable[[Any], None] = lambda _: None) -> None:
        self.orders: list[Any] = []
        self._before, self._now, self._lock = before, 0.0, threading.Lock()
        self._tasks: dict[int, list[int]] = {}
        self._window: dict[int, list[int]] = {}
        self.nodes, self._threads = [], []
        for name in ("drafter", "verifier"):
            ours, theirs = Pipe()
            thread = threading.Thread(target=self._serve, args=(theirs,), daemon=True)
            thread.start()
            self._threads.append(thread)
            self.nodes.append(NodeProcess(name, ours, 0))

    def _serve(self, connection: Any) -> None:
        while (order := connection.recv()) is not None:
            with self._lock:
                self.orders.append(order)
                self._now += 1
                start_s = self._now
            self._before(order)
            rows = self._obey(order)
            with self._lock:
                self._now += 1
                connection.send(Done(rows, start_s, self._now))

    def _obey(self, order: Any) -> list[list[int]]:
        if isinstance(order, OpenTasks):
            self._tasks = {task: list(ids) for task, ids in order.prompts.items()}
            return []
        if isinstance(order, Verify):
            rows = zip(order.prefixes, order.drafts, strict=True)
            return [[following([*p, *d[:i]]) for i in range(len(d) + 1)] for p, d in rows]
        assert isinstance(order, DraftBatch)
        for task, accepted, token in order.committed:
            self._tasks[task] += [*self._window[task][:accepted], token]
        for task in order.batch:
            ids = list(self._tasks[task])
            for _ in range(order.window):
                ids.append(guessed(ids))
            self._window[task] = ids[len(self._tasks[task]) :]
        return [self._window[task] for task in order.batch]

    def close(self) -> None:
        for node, thread in zip(self.nodes, self._threads, strict=True):
            node.connection.send(None)
            thread.join(10)
            node.connection.close()


@pytest.fixture
def clockwork() -> Iterator[Clockwork]:
    nodes = Clockwork()
    yield nodes
    nodes.close()


PROMPTS = {k: list(np.random.default_rng(k).integers(1, VOCAB, 3 + 2 * k).tolist()) for k in range(7)}
BATCHES = [[4, 0], [6, 1, 2], [5], [3]]
MOST = 14


def own(prompt: list[int]) -> list[int]:
    """The target's own output."""
    output: list[int] = []
    while len(output) < MOST and END not in output:
        output.append(following([*prompt, *output]))
    return output


def carried_out(nodes: Clockwork, mode: str, window: int = 3) -> PipelineRun:
    return Pipeline(
        *nodes.nodes, PROMPTS, BATCHES, mode=mode, window=0 if mode == "target-only" else window, max_tokens=MOST,
        end_ids=[END],
    ).run()  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_outputs_are_the_targets_own(clockwork: Clockwork, mode: str) -> None:
    expected = {task: own(prompt) for task, prompt in PROMPTS.items()}
    assert len({len(output) for output in expected.values()}) > 2
    found = carried_out(clockwork, mode)
    assert found.outputs == expected
    assert sum(step.committed for step in found.steps) == sum(map(len, expected.values()))
    for index, batch in enumerate(BATCHES):
        mine = [step for step in found.steps if step.batch == index]
        assert [step.step for step in mine] == list(range(1, len(mine) + 1))
        assert mine[0].tasks == len(batch) and mine[0].longest == max(len(PROMPTS[task]) for task in batch)
        assert all(a.tasks >= b.tasks for a, b in itertools.pairwise(mine))
    if mode == "target-only":
        assert not any(isinstance(order, DraftBatch) for order in clockwork.orders)


@pytest.mark.parametrize("mode", [name for name, mode in MODES.items() if mode.drafts])
def test_a_batch_is_verified_after_it_is_drafted_and_drafted_after_it_is_verified(
    clockwork: Clockwork, mode: str
) -> None:
    by_place = {(step.batch, step.step): step for step in carried_out(clockwork, mode).steps}
    for (batch, number), step in by_place.items():
        assert step.drafted[0] < step.drafted[1] < step.verified[0] < step.verified[1]
        if number > 1:
            assert by_place[batch, number - 1].verified[1] < step.drafted[0]


def test_steps_do_not_overlap_in_the_pipeline(clockwork: Clockwork) -> None:
    steps = carried_out(clockwork, "pipeline").steps
    for number in range(2, max(step.step for step in steps) + 1):
        before = [step.verified[1] for step in steps if step.step == number - 1]
        assert max(before) < min(step.drafted[0] for step in steps if step.step == number)
    for number in {step.step for step in steps}:
        mine = sorted((step for step in steps if step.step == number), key=lambda step: step.batch)
        for a, b in itertools.pairwise(mine):
            assert a.drafted[1] < b.drafted[0] and a.verified[1] < b.verified[0]


def test_one_node_at_a_time_without_the_pipeline(clockwork: Clockwork) -> None:
    steps = carried_out(clockwork, "sequential").steps
    spans = sorted(span for step in steps for span in (step.drafted, step.verified))
    assert all(a[1] < b[0] for a, b in itertools.pairwise(spans))
    assert overlap_s(steps) == 0


@pytest.mark.parametrize("mode", ["pipeline", "continuous"])
def test_the_next_batch_is_drafted_while_one_is_verified(mode: str) -> None:
    """The first verification of a run ends only once another draft has been asked for."""
    drafts = threading.Semaphore(0)
    waited: list[bool] = []

    def before(order: Any) -> None:
        if isinstance(order, DraftBatch):
            drafts.release()
        if isinstance(order, Verify) and not waited:
            waited.append(drafts.acquire(timeout=20) and drafts.acquire(timeout=20))

    nodes = Clockwork(before)
    steps = carried_out(nodes, mode).steps
    nodes.close()
    assert waited == [True]
    first, second = (next(step for step in steps if (step.batch, step.step) == (batch, 1)) for batch in (0, 1))
    assert second.drafted[0] < first.verified[1]


def test_without_barriers_a_batch_does_not_wait_for_the_others() -> None:
    """The last batch's first verification ends only once a second step has begun."""
    second = threading.Event()
    waited: list[bool] = []

    def before(order: Any) -> None:
        if isinstance(order, DraftBatch) and order.committed:
            second.set()
        if isinstance(order, Verify) and list(order.batch) == BATCHES[-1] and not waited:
            waited.append(second.wait(20))

    nodes = Clockwork(before)
    steps = carried_out(nodes, "continuous").steps
    nodes.close()
    assert waited == [True]
    begun = min(step.drafted[0] for step in steps if step.step == 2)
    assert begun < max(step.verified[1] for step in steps if step.step == 1)


# ---------------------------------------------------------------- the model beside it


def test_the_recursion_is_eqs_20_to_22() -> None:
    rng = np.random.default_rng(4)
    needed = [3, 1, 4]
    steps, times = [], []
    for batch, last in enumerate(needed):
        for number in range(1, last + 1):
            steps.append(StepRecord(batch, number, 2, 10, 3, (0, 0), (0, 0), 0, 0, 0))
            times.append((float(rng.uniform(1, 3)), float(rng.uniform(1, 3))))
    for pipeline in (True, False):
        total = 0.0
        for number in range(1, 5):
            drafted = done = 0.0
            for batch in range(3):
                if number > needed[batch]:
                    continue
                draft, verify = times[[(s.batch, s.step) for s in steps].index((batch, number))]
                drafted = drafted + draft
                done = (max(drafted, done) if pipeline else done + draft) + verify
            total += done
        assert recursion_s(steps, times, pipeline) == pytest.approx(total)


def serving() -> ServedPair:
    return ServedPair(
        draft_model=Model(layers=3, hidden=96, ffn=256), verify_model=Model(layers=6, hidden=192, ffn=512), cost=COST,
        memory_bytes=1e9, max_output_tokens=32, alpha=0.8,
    )  # fmt: skip


def flops(layers: int, hidden: int, ffn: int, new: int, cached: int) -> int:
    """Two for each multiplication of a pass."""
    return layers * (8 * new * hidden**2 + 4 * new * (cached + new) * hidden + 4 * new * hidden * ffn)


def test_a_steps_model_times_are_those_of_its_passes() -> None:
    later = StepRecord(0, 5, 4, 100, 3, (0, 0), (0, 0), 0, 0, 0)
    draft = sum(4 * COST.c1_draft * flops(3, 96, 256, 1, 99 + i) + COST.c2_draft for i in range(3))
    verify = 4 * COST.c1_verify * flops(6, 192, 512, 4, 99) + COST.c2_verify
    assert model_step_s(serving(), later) == (pytest.approx(draft), pytest.approx(verify))
    first = later._replace(step=1)
    works = [flops(3, 96, 256, 100, 0), flops(3, 96, 256, 1, 100), flops(3, 96, 256, 1, 101)]
    draft = sum(4 * COST.c1_draft * work + COST.c2_draft for work in works)
    verify = 4 * COST.c1_verify * flops(6, 192, 512, 103, 0) + COST.c2_verify
    assert model_step_s(serving(), first)[1] == pytest.approx(verify)
    assert model_step_s(serving(), first)[0] == pytest.approx(draft, rel=1e-3)


def test_rows_of_a_run(clockwork: Clockwork) -> None:
    expected = {task: own(prompt) for task, prompt in PROMPTS.items()}
    found = carried_out(clockwork, "pipeline")
    row = run_row(found, 0, serving(), expected)
    assert row["lossless"] is True and row["tokens"] == sum(map(len, expected.values()))
    assert 0 < row["acceptance"] < row["acceptance_cond"] < 1
    assert row["recursion_s"] <= row["draft_s"] + row["verify_s"]
    assert run_row(found, 0, serving(), {**expected, 0: [1]})["lossless"] is False
    rows = step_rows(found, 0, serving())
    assert min(one["draft_begin_s"] for one in rows) == 0 and len(rows) == len(found.steps)
    perfect = [{**one, "model_draft_s": one["draft_s"], "model_verify_s": 2 * one["verify_s"]} for one in rows]
    scores = model_scores(perfect)
    assert set(scores) == {"draft prompt", "draft decode", "verify prompt", "verify decode"}
    for phase, count in (("prompt", len(BATCHES)), ("decode", len(rows) - len(BATCHES))):
        draft, verify = scores[f"draft {phase}"], scores[f"verify {phase}"]
        assert (draft["mape"], verify["mape"], verify["ratio"]) == (0, pytest.approx(1), pytest.approx(2))
        assert draft["steps"] == verify["steps"] == count


# ---------------------------------------------------------------- what is refused, and failures


def test_what_cannot_be_run(clockwork: Clockwork) -> None:
    def one(**changed: Any) -> Pipeline:
        given = {"mode": "pipeline", "window": 3, "max_tokens": 5, "end_ids": [0], "batches": BATCHES, **changed}
        return Pipeline(*clockwork.nodes, PROMPTS, given.pop("batches"), **given)

    refuse(lambda: one(mode="magic"), BadInput, "unknown mode 'magic'; known: pipeline")
    refuse(lambda: one(batches=[[0, 1]]), BadInput, "every task must be in exactly one batch")
    refuse(lambda: one(batches=[*BATCHES, [0]]), BadInput, "every task must be in exactly one batch")
    refuse(lambda: one(window=0), BadInput, "mode pipeline does not take a window of 0")
    refuse(lambda: one(mode="target-only"), BadInput, "mode target-only does not take a window")
    for changed, words in (
        ({"tasks": 0}, "tasks must be at least 1"), ({"max_tokens": 0}, "max-tokens"),
        ({"modes": ("x",)}, "no such modes: x"), ({"policies": ()}, "none given; known: optimal"),
        ({"window": 0}, "window must be at least 1"),
    ):  # fmt: skip
        refuse(lambda changed=changed: PipelineConfig(**changed), BadInput, words)


def test_a_node_that_fails_dies_or_is_silent() -> None:
    ours, theirs = Pipe()
    node = NodeProcess("verifier", ours, 0)
    node.send(OpenTasks({}))
    refuse(lambda: answers([node], 0.01), TestbedError, "the verifier did not answer within 0.01 s")
    theirs.send(Failed("no memory"))
    refuse(node.take, TestbedError, "the verifier failed: no memory")
    theirs.close()
    refuse(node.take, TestbedError, "the verifier process died")
    node.busy = False
    refuse(lambda: node.send(OpenTasks({})), TestbedError, "the verifier process is gone")
    ours.close()


def test_uploads_bring_the_prompts_and_end_as_shared() -> None:
    prompts = {k: list(range(1, 40 + 60 * k)) for k in range(3)}
    tasks = tuple(
        Task(input_tokens=len(prompts[k]), power_w=0.2, gain=gain) for k, gain in enumerate((1e-9, 1e-12, 1e-11))
    )
    problem = Problem(bandwidth_hz=1e6, noise_w=2.5e-14, tasks=tasks, bits_per_token=16_000.0)
    last = {}
    for policy in ("optimal", "uniform"):
        shares = allocation(problem, policy)
        found = upload(prompts, problem.bits.tolist(), shares)
        assert found.prompts == prompts
        assert max(found.arrivals_s) == pytest.approx(shares["communication_s"], rel=0.3)
        last[policy] = max(found.arrivals_s)
    assert last["optimal"] < last["uniform"]
    refuse(lambda: payload(0, [1, 2, 3], 10), BadInput, "task 0 has 10 bytes", "raise the bits per token")


def orders_of(folder: Path) -> Orders:
    return Orders(
        drafter=str(folder / "no.gguf"), target=str(folder), vocab_size=10, engine="synthetic", dtype="float32",
        threads=1, context=64, sequences=2,
    )  # fmt: skip


def test_a_node_whose_model_cannot_be_loaded(tmp_path: Path) -> None:
    def load() -> None:
        with started(orders_of(tmp_path), 120):
            pass

    refuse(load, TestbedError, "the drafter failed", "no such file")


def test_a_node_for_which_nobody_waits_any_longer(tmp_path: Path) -> None:
    """Ctrl-C while models were loaded printed its traceback."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=("verifier", orders_of(tmp_path), theirs))
    process.start()
    ours.close()
    theirs.close()
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.slow
def test_a_plan_is_carried_out_by_two_processes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = PipelineConfig(
        tasks=5, shots=1, max_tokens=14, window=3, engine="transformers", repeats=1, bandwidth_mhz=2.0,
        modes=("pipeline", "continuous"), memory_bytes=3e6,
    )  # fmt: skip
    said: list[str] = []

    def stop_a_node(line: str) -> None:
        said.append(line)
        if line.startswith("run 1"):
            node = multiprocessing.active_children()[0].pid or 0
            os.kill(node, signal.SIGSTOP)
            threading.Timer(1.5, os.kill, (node, signal.SIGCONT)).start()

    document = run(config, COST, tmp_path / "run", stop_a_node)
    assert document["still_s"] > 1.0 and "the drafter or the verifier stood still for" in caplog.text
    assert {path.name for path in (tmp_path / "run").glob("[!.]*")} == {
        "config.yaml", "plan.json", "cell.json", "steps.csv", "runs.csv", "uploads.csv", "summary.json",
    }  # fmt: skip
    assert set(document["modes"]) == {"pipeline", "continuous", "target-only"}
    assert len(document["plan"]["batches"]) > 1
    assert len({row["tokens"] for row in document["modes"].values()}) == 1
    for row in document["modes"].values():
        assert row["lossless"] and row["inference_s"] > 0
    pipeline = document["modes"]["pipeline"]
    # what the nodes took, one after the other as eqs. 20-22 have it, cannot exceed what the whole took
    assert pipeline["recursion_s"] <= pipeline["inference_s"]
    assert document["latency_s"]["uniform, pipeline"] > document["latency_s"]["optimal, pipeline"]
    refuse(lambda: run(config, COST, tmp_path / "run", said.append), BadInput, "is not empty")
    target, _ = pair_paths(config.pair.model, config.pair.drafter)
    again, other = make_cell(config, target, COST), make_cell(PipelineConfig(tasks=5, seed=1), target, COST)
    assert json.loads((tmp_path / "run" / "plan.json").read_text()) == document["plan"]
    assert [len(again.prompts[k]) for k in range(5)] != [len(other.prompts[k]) for k in range(5)]
    assert bundled().require("drafter").is_file()
