"""Run a plan of edge SD batching: uploads by bandwidth shares, then batches on two nodes, compared with the model."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from testbed.bs.engines.target import Target
from testbed.config import resolved, save
from testbed.errors import BadInput, GateError
from testbed.experiments.deployment.distortions import own_standstill_told, standstill_told
from testbed.experiments.edge.config import MODES, QUICK, PipelineConfig
from testbed.experiments.edge.fit import dimensions, measure, report
from testbed.experiments.edge.pipeline import Pipeline, PipelineRun
from testbed.experiments.edge.pipeline_nodes import NodeProcess, Orders, started
from testbed.experiments.edge.pipeline_report import model_scores, run_row, step_rows
from testbed.experiments.edge.pipeline_upload import Uploaded, upload
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.inputs.formats import prompt_ids, worked_examples
from testbed.experiments.inputs.pair import pair_paths
from testbed.experiments.results import directory as results
from testbed.experiments.results.claims import reserved
from testbed.experiments.results.csv_file import write_csv
from testbed.optim.figures import GAIN_1M, NOISE_W, POWER_W, RADIUS_M
from testbed.optim.inference_cost import Cost
from testbed.optim.tasks import Problem, Task, allocation
from testbed.optim.tasks import plan as planned
from testbed.ue.prompts import Prompter

Told = Callable[[str], None]
OWN = "target-only"


class PipelineLoad(NamedTuple):
    """Problem and prompts of a run."""

    problem: Problem
    prompts: dict[int, list[int]]


class CarriedOut(NamedTuple):
    """One run, from the start of its uploads to its last output."""

    run: PipelineRun
    policy: str
    shares: dict[str, Any]
    """Document of `testbed.optim.tasks.allocation`."""
    uploaded: Uploaded

    def times(self) -> dict[str, Any]:
        """T_com, and T as measured: from the common start of the uploads to the last output (eqs. 16, 23)."""
        return {
            "policy": self.policy,
            "communication_s": self.uploaded.last_s - self.uploaded.begin_s,
            "total_s": self.run.ended_s - self.uploaded.begin_s,
        }


def run(config: PipelineConfig, cost: Cost, out: Path, told: Told) -> dict[str, Any]:
    """Plan, run every mode with every policy's uploads, compare outputs with the target's own, and write results; if
    interrupted, those of the finished runs.

    Raises:
        BadInput: an invalid configuration, or `out` is not empty or in use.
        GateError: an output differs from the target's own.
        TestbedError: a node failed, or an upload did not arrive.
    """
    target, drafter = pair_paths(config.pair.model, config.pair.drafter, config.engine)
    cell = make_cell(config, target, cost)
    plan = planned(cell.problem, config.algorithm, config.window)
    orders = _orders(config, target, drafter, cell, plan)
    with reserved(out):
        save(config, out / "config.yaml")
        (out / "plan.json").write_text(json.dumps(plan) + "\n", encoding="utf-8")
        (out / "cell.json").write_text(json.dumps(resolved(cell.problem)) + "\n", encoding="utf-8")
        told("starting drafter and verifier")
        with (
            started(orders) as nodes,
            own_standstill_told() as beat,
            standstill_told("the drafter or the verifier", *(node.pid for node in nodes)) as watch,
        ):
            runs: list[CarriedOut] = []
            try:
                for one in _runs(config, target, plan, cell, nodes, told):
                    runs.append(one)  # noqa: PERF402 - finished runs count even if the next one is interrupted
            except BaseException:
                if runs:
                    _tables(cell, runs, out)
                raise
        return _write(config, cell, plan, runs, max(beat.still_s, watch.still_s), out)


def quick_cost(config: PipelineConfig) -> Cost:
    """Cost coefficients of this machine, measured on a small grid."""
    quick = msgspec.structs.replace(config.pair, **QUICK, seed=config.seed)
    return Cost(**report(measure(quick, lambda *_: None), dimensions(quick))["cost"])


def make_cell(config: PipelineConfig, target: Target, cost: Cost) -> PipelineLoad:
    """Users uniformly distributed in a cell of 400 m (Section IV), and their prompts.

    Raises:
        BadInput: too few prompts in the data set.
    """
    rng = np.random.default_rng([config.seed, 23])
    examples = load_dataset(config.dataset, config.tasks + config.shots)
    if len(examples) < config.tasks + config.shots:
        raise BadInput(f"{config.dataset} has {len(examples)} prompts, but {config.tasks + config.shots} are needed")
    shown = worked_examples(examples[config.tasks :])
    prompters = [Prompter(target.path, shots=shown[:n]) for n in range(config.shots + 1)]
    shots = rng.integers(0, config.shots + 1, config.tasks).tolist()
    prompts = {k: prompt_ids(prompters[n], examples[k]) for k, n in enumerate(shots)}
    metres = RADIUS_M * np.sqrt(rng.uniform(size=config.tasks))
    gains = (GAIN_1M * rng.exponential(size=config.tasks) * metres**-2).tolist()
    models = dimensions(config.pair)
    problem = Problem(
        bandwidth_hz=config.bandwidth_mhz * 1e6, noise_w=NOISE_W,
        tasks=tuple(Task(input_tokens=len(prompts[k]), power_w=POWER_W, gain=gains[k]) for k in range(config.tasks)),
        bits_per_token=config.bits_per_token, draft_model=models["draft"], verify_model=models["verify"], cost=cost,
        memory_bytes=config.memory_bytes, max_output_tokens=config.max_tokens, alpha=config.alpha,
        max_window=max(10, config.window or 0),
    )  # fmt: skip
    return PipelineLoad(problem, prompts)


def _orders(config: PipelineConfig, target: Target, drafter: Path, cell: PipelineLoad, plan: dict[str, Any]) -> Orders:
    context = max(map(len, cell.prompts.values())) + config.max_tokens + plan["window"] + 1
    if context > target.max_positions:
        raise BadInput(f"prompts and outputs take {context} positions, but the target has {target.max_positions}")
    return Orders(
        drafter=str(drafter), target=str(target.path), vocab_size=target.vocab_size, engine=config.engine,
        dtype=config.dtype, threads=config.threads, context=context, sequences=config.tasks,
    )  # fmt: skip


def _runs(
    config: PipelineConfig,
    target: Target,
    plan: dict[str, Any],
    cell: PipelineLoad,
    nodes: tuple[NodeProcess, NodeProcess],
    told: Told,
) -> Iterator[CarriedOut]:
    """Run every mode with every policy's uploads `repeats` times in random order, after a warm-up; target-only at least
    once. Inference begins when the last prompt has arrived (eq. 16).

    Raises:
        GateError: a prompt arrived damaged.
    """

    def one(mode: str, prompts: dict[int, list[int]]) -> PipelineRun:
        drafts = MODES[mode].drafts
        batches = plan["batches"] if drafts else [list(prompts)]
        return Pipeline(
            *nodes, prompts, batches, mode=mode, window=plan["window"] if drafts else 0,
            max_tokens=config.max_tokens, end_ids=target.end_ids,
        ).run()  # fmt: skip

    order = [(mode, policy) for mode in config.modes for policy in config.policies for _ in range(config.repeats)]
    if OWN not in config.modes:
        order.append((OWN, config.policies[0]))
    told("warming up")
    one(config.modes[0], cell.prompts)
    bits = cell.problem.bits.tolist()
    for done, index in enumerate(np.random.default_rng([config.seed, 29]).permutation(len(order)).tolist()):
        mode, policy = order[index]
        told(f"run {done + 1} of {len(order)}: {mode}, {policy} shares")
        shares, runs = allocation(cell.problem, policy), list[PipelineRun]()
        found = upload(cell.prompts, bits, shares, lambda prompts: runs.append(one(mode, prompts)))  # noqa: B023
        if found.prompts != cell.prompts:
            raise GateError("a prompt arrived damaged")
        yield CarriedOut(runs[0], policy, shares, found)


def _write(
    config: PipelineConfig,
    cell: PipelineLoad,
    plan: dict[str, Any],
    runs: Sequence[CarriedOut],
    still_s: float,
    out: Path,
) -> dict[str, Any]:
    """Write tables and `summary.json`; returns the document.

    Args:
        still_s: longest standstill of a process.
    """
    steps, rows = _tables(cell, runs, out)
    if broken := [row["mode"] for row in rows if not row["lossless"]]:
        raise GateError(f"outputs of {', '.join(sorted(set(broken)))} differ from the target's own; see {out}")
    document = {
        "plan": plan,
        "uploads": {
            one.policy: {
                "communication_s": _median(rows, policy=one.policy)["communication_s"],
                "model_s": one.shares["communication_s"],
            }
            for one in runs
        },
        "modes": {mode: _median(rows, mode=mode) for mode in dict.fromkeys(row["mode"] for row in rows)},
        "latency_s": {
            f"{policy}, {mode}": _median(rows, mode=mode, policy=policy)["total_s"]
            for policy, mode in dict.fromkeys((row["policy"], row["mode"]) for row in rows)
        },
        "model": model_scores(steps),
        "model_cpu": model_scores(steps, "cpu_"),
        "still_s": still_s,
    }
    results.write_summary(out, results.summary(resolved(config), config.seed, results.host(), [document]))
    return document


def _tables(
    cell: PipelineLoad, runs: Sequence[CarriedOut], out: Path
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Write `steps.csv`, `runs.csv` and `uploads.csv`; returns the rows of the first two."""
    own, serving = next((one.run.outputs for one in runs if one.run.mode == OWN), None), cell.problem.serving
    steps = [row for number, one in enumerate(runs) for row in step_rows(one.run, number, serving)]
    rows = [run_row(one.run, number, serving, own) | one.times() for number, one in enumerate(runs)]
    uploads = [row for number, one in enumerate(runs) for row in _upload_rows(cell, one, number)]
    for name, table in (("steps", steps), ("runs", rows), ("uploads", uploads)):
        write_csv(out / f"{name}.csv", table)
    return steps, rows


def _upload_rows(cell: PipelineLoad, one: CarriedOut, number: int) -> list[dict[str, Any]]:
    shares, found = one.shares, one.uploaded
    return [
        {"policy": one.policy, "repeat": number, "task": k, "tokens": len(cell.prompts[k]),
         "bits": float(cell.problem.bits[k]), "share": shares["bandwidth"][k], "rate_mbps": shares["rates_mbps"][k],
         "arrival_s": found.arrivals_s[k], "model_s": float(cell.problem.bits[k]) / (1e6 * shares["rates_mbps"][k])}
        for k in range(len(cell.prompts))
    ]  # fmt: skip


def _median(rows: Sequence[dict[str, Any]], **where: str) -> dict[str, Any]:
    """Medians over the runs of a mode or policy, and the range of inference times."""
    mine = [row for row in rows if all(row[key] == value for key, value in where.items())]
    keys = [key for key in mine[0] if all(isinstance(row[key], float) for row in mine)]
    times = [row["inference_s"] for row in mine]
    return {
        "runs": len(mine), "tokens": mine[0]["tokens"], "steps": mine[0]["steps"],
        **{key: statistics.median(row[key] for row in mine) for key in keys},
        "least_s": min(times), "largest_s": max(times), "lossless": all(row["lossless"] for row in mine),
    }  # fmt: skip
