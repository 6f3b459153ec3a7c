"""Plans of edge SD batching for a cell: made from the report of one run, carried out by another."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from testbed.bs.scheduling.planned import Planned
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.inputs.profile import FlopsDraft, FlopsVerify, load_profile
from testbed.files import file_bytes
from testbed.optim.inference_cost import Cost, Model, cache_bytes, parameter_bytes
from testbed.optim.tasks import Problem, Task
from testbed.options import load

CONFIG, UES = "config.yaml", "ues.csv"
ROUNDING = 1e-6
"""Allowed above the sum of a plan's shares."""
MOST_MEASURED = {
    "uplink_bits_per_s_per_hz": 100.0, "input_tokens": 1e7, "output_tokens": 1e7, "request_bytes": 1e12,
    "acceptance_cond": 1.0,
}  # fmt: skip
"""What a plan needs of each UE, and the largest values."""
MEASURED = tuple(MOST_MEASURED)


class CellPlan(msgspec.Struct, frozen=True):
    """The parts of a plan (the document of `optim plan --json`) that a cell carries out; tasks are its decoding UEs, in
    order.
    """

    window: int
    batches: tuple[tuple[int, ...], ...]
    bandwidth: tuple[float, ...]

    def applied(self, config: CellConfig) -> CellConfig:
        """The configuration with the plan's window for all UEs."""
        ues = tuple(
            msgspec.structs.replace(group, window=self.window) if group.traffic == "tokens" else group
            for group in config.ues
        )
        return msgspec.structs.replace(config, ues=ues)

    def weights(self, config: CellConfig) -> list[float]:
        """Radio weights of all UEs: the shares, scaled to a mean of 1, beside the weights of groups of bytes."""
        shares = iter(self.bandwidth)
        scale = len(self.bandwidth) / sum(self.bandwidth)
        return [scale * next(shares) if group.traffic == "tokens" else group.weight for group in _members(config)]

    def scheduler(self, config: CellConfig) -> Planned:
        """The scheduler that verifies in the plan's batches."""
        names = [ue_name(number) for number in decoding(config)]
        return Planned(tuple(tuple(names[k] for k in batch) for batch in self.batches))


def ue_name(number: int) -> bytes:
    """Identity of the cell's UE of this number at the base station."""
    return f"ue-{number}".encode()


def decoding(config: CellConfig) -> list[int]:
    """Numbers of the UEs that decode: the tasks of a plan, in order."""
    return [number for number, group in enumerate(_members(config)) if group.traffic == "tokens"]


def read_plan(config: CellConfig) -> CellPlan:
    """The plan that a cell is to carry out.

    Raises:
        BadInput: an unreadable file, a plan for other UEs, or a cell that cannot carry it out.
    """
    path = Path(str(config.bs.plan))
    try:
        plan = msgspec.json.decode(file_bytes(path), type=CellPlan)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadInput(f"{path}: {exc}; give the output of `testbed optim plan --json`") from exc
    tasks = sorted(k for batch in plan.batches for k in batch)
    count = len(decoding(config))
    if tasks != list(range(len(tasks))) or len(tasks) != len(plan.bandwidth) or not all(plan.batches):
        raise BadInput(f"{path}: batches must hold every task once, and bandwidth a share of each")
    if len(tasks) != count:
        raise BadInput(f"{path} is a plan of {len(tasks)} tasks; {count} UEs of this cell decode")
    if not 1 <= plan.window <= 256 or min(plan.bandwidth) <= 0 or sum(plan.bandwidth) > 1 + ROUNDING:
        raise BadInput(f"{path}: a cell needs a window in 1..256 and positive shares that add up to 1 at most")
    if (largest := max(map(len, plan.batches))) > config.bs.max_batch:
        raise BadInput(f"{path} has a batch of {largest} tasks; bs.max_batch is {config.bs.max_batch}")
    if config.radio.scheduler != "weights":
        raise BadInput("a plan's shares are weights of the radio: set radio.scheduler to weights")
    if bare := [group.name for group in config.ues if group.traffic == "tokens" and not group.method.drafts]:
        raise BadInput(f"group {bare[0]} drafts nothing, so that no plan has a batch for it")
    return plan


def problem_of(directory: Path) -> tuple[Problem, int]:
    """The planning problem of a cell's run directory, see `measured_problem`.

    Raises:
        BadInput: no run of a cell, or see `measured_problem`.
    """
    try:
        rows = list(csv.DictReader(file_bytes(directory / UES).decode("utf-8").splitlines()))
        config = load(CellConfig, directory / CONFIG)
    except (OSError, UnicodeDecodeError) as exc:
        raise BadInput(f"{directory} is no run of a cell (`testbed cell run FILE.yaml --out DIR`): {exc}") from exc
    return measured_problem(config, rows)


def measured_problem(config: CellConfig, rows: Sequence[Mapping[str, Any]]) -> tuple[Problem, int]:
    """The planning problem of a cell that was run, and the window of that run.

    Every decoding UE is a task, with its measured spectral efficiency, acceptance rate, bytes of a request, and mean
    lengths. Power and noise count as 1 W. Bytes are those of the run's window.

    Args:
        rows: one for each UE, as in `ues.csv`.

    Raises:
        BadInput: UEs without responses, groups that differ, or profiles without FLOPs.
    """
    groups = [group for group in config.ues if group.traffic == "tokens"]
    profile, window = _same("profile", groups), int(_same("window", groups))
    draft, verify = load_profile(profile).draft, load_profile(config.bs.profile).verify
    if not isinstance(draft, FlopsDraft) or not isinstance(verify, FlopsVerify):
        raise BadInput(
            f"a plan needs the FLOPs of both models: {profile} and {config.bs.profile} must be of kind flops"
        )
    if len(rows) != len(_members(config)):
        raise BadInput(f"{UES} has {len(rows)} rows, and the cell {len(_members(config))} UEs")
    measured = [_measured(number, rows[number]) for number in decoding(config)]
    drafter = Model(draft.layers, draft.hidden, draft.ffn)
    tasks = tuple(
        Task(
            input_tokens=round(one["input_tokens"]), power_w=1.0, gain=2 ** one["uplink_bits_per_s_per_hz"] - 1,
            output_tokens=round(one["output_tokens"]), upload_bits=8 * one["request_bytes"],
        )
        for one in measured
    )  # fmt: skip
    problem = Problem(
        bandwidth_hz=config.radio.bandwidth_hz * config.radio.slot_share(True), noise_w=1.0, tasks=tasks,
        draft_model=drafter, verify_model=Model(verify.layers, verify.hidden, verify.ffn),
        cost=Cost(draft.c1_s, draft.c2_s, verify.c1_s, verify.c2_s),
        memory_bytes=float(parameter_bytes(drafter) + cache_bytes(drafter, 1, config.bs.kv_tokens, 0)),
        max_output_tokens=max(task.output_tokens or 1 for task in tasks),
        alpha=sum(one["acceptance_cond"] for one in measured) / len(measured),
        max_window=max(10, window), drafting="ues",
    )  # fmt: skip
    return problem, window


def _members(config: CellConfig) -> list[UeGroup]:
    return [group for group in config.ues for _ in range(group.count)]


def _measured(number: int, row: Mapping[str, Any]) -> dict[str, float]:
    """What a plan needs of a UE.

    Raises:
        BadInput: it was not measured, or no number says so.
    """
    if missing := [name for name in MEASURED if row.get(name) in (None, "")]:
        raise BadInput(f"UE {number} has no {missing[0]}; run the cell for longer")
    try:
        found = {name: float(row[name]) for name in MEASURED}
    except ValueError as exc:
        raise BadInput(f"{UES}, UE {number}: {exc}") from exc
    if wrong := [name for name, value in found.items() if not 0 <= value <= MOST_MEASURED[name]]:
        raise BadInput(f"{UES}, UE {number}: {wrong[0]} lies in 0 to {MOST_MEASURED[wrong[0]]:g}")
    return found


def _same(name: str, groups: Sequence[UeGroup]) -> str:
    """The value that all groups share.

    Raises:
        BadInput: there is no group, or they differ.
    """
    values = {str(getattr(group, name)) for group in groups}
    if len(values) != 1:
        raise BadInput(f"a plan has one {name} for all UEs that decode, not {', '.join(sorted(values)) or 'none'}")
    return values.pop()
