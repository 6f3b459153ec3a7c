"""Plans made from a cell's report and carried out in a cell, beside what they predict and beside one batch for all."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from testbed.channel.radio.config import ConstantSource, RadioConfig
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellBs, CellConfig, UeGroup
from testbed.experiments.cell.files import carry_out
from testbed.experiments.cell.planning import CellPlan, problem_of, read_plan
from testbed.experiments.cell.run import run_cell
from testbed.optim.tasks import plan
from tests.support.refusals import refuse

NEAR = UeGroup(
    name="near", count=3, profile="edge-sd", protocol="fh", window=5, alpha=1.0, prompt=(300, 300), response=(60, 60),
    together=True,
)  # fmt: skip
FAR = msgspec.structs.replace(NEAR, name="far", count=3, prompt=(40, 40), response=(24, 24))
RADIO = RadioConfig(bandwidth_hz=5e6, scheduler="weights", source=ConstantSource(bits_per_s_per_hz=(4.0, 1.0)))
CELL = CellConfig(seconds=12.0, radio=RADIO, ues=(NEAR, FAR), bs=CellBs(profile="edge-sd"))


def together_s(config: CellConfig) -> float:
    """Mean time from the arrival of a wave to its last answer."""
    tallies = [tally for _, some in run_cell(config).groups for tally in some]
    waves = [max(latencies) for latencies in zip(*(tally.latencies_s for tally in tallies), strict=False)]
    assert len(waves) >= 5
    return sum(waves) / len(waves)


def planned(config: CellConfig, content: Any, folder: Path) -> CellConfig:
    path = folder / "plan.json"
    path.write_text(json.dumps(content))
    return msgspec.structs.replace(config, bs=msgspec.structs.replace(config.bs, plan=str(path)))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cell") / "run"
    carry_out(CELL, real=False, out=out)
    return out


def test_a_problem_has_what_the_run_measured(measured: Path) -> None:
    problem, window = problem_of(measured)
    assert window == 5 and problem.alpha == 1.0 and problem.drafting == "ues"
    assert [task.input_tokens for task in problem.tasks] == [300] * 3 + [40] * 3
    assert [task.output_tokens for task in problem.tasks] == [60] * 3 + [24] * 3
    assert problem.efficiency.tolist() == pytest.approx([4.0] * 3 + [1.0] * 3, rel=0.02)
    # a token's id has 15 bits, its hidden state 2048 · 16; 60 tokens are 10 rounds of 5 drafted ones
    assert problem.tasks[0].upload_bits == pytest.approx(300 * 15 + 50 * (15 + 2048 * 16), rel=0.01)
    assert problem.tasks[3].upload_bits == pytest.approx(40 * 15 + 20 * (15 + 2048 * 16), rel=0.01)


def test_runs_in_virtual_time_and_with_processes_are_not_mixed(measured: Path, tmp_path: Path) -> None:
    """The series of the virtual run would be shown beside the rows of the real one."""
    out = shutil.copytree(measured, tmp_path / "run")
    for real, words in ((True, "holds a run in virtual time"), (False, "holds a run with real processes")):
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        refuse(lambda real=real: carry_out(CELL, real, out), BadInput, words, "choose another --out")  # type: ignore[misc]
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
        (out / "series.json").unlink(missing_ok=True)  # a real run has none


def test_greedy_plans_take_as_long_as_predicted(tmp_path: Path) -> None:
    """Windows of ids take little time on the radio, and acceptance 1 makes the number of rounds certain."""
    ues = tuple(msgspec.structs.replace(group, protocol="greedy") for group in CELL.ues)
    config = msgspec.structs.replace(CELL, ues=ues)
    carry_out(config, real=False, out=tmp_path / "run")
    problem, window = problem_of(tmp_path / "run")
    found = plan(problem, window=window)
    assert len(found["batches"]) == 2
    carried_s = together_s(planned(config, found, tmp_path))
    assert carried_s == pytest.approx(found["latency_s"], rel=0.1)


def test_a_plan_with_hidden_states_is_faster_than_it_predicts(measured: Path, tmp_path: Path) -> None:
    """Windows go up beside passes of the other batch, while the model has all bytes sent before the first pass. Shares
    and batches of the plan beat equal shares and one batch.
    """
    problem, window = problem_of(measured)
    found = plan(problem, window=window)
    carried_s = together_s(planned(CELL, found, tmp_path))
    assert 0.8 * found["latency_s"] < carried_s < found["latency_s"]
    equal = {**found, "batches": [list(range(6))], "bandwidth": [1 / 6] * 6}
    assert carried_s < 0.95 * together_s(planned(CELL, equal, tmp_path))


def test_shares_and_window_of_a_plan_replace_those_of_the_groups() -> None:
    found = CellPlan(window=3, batches=((0, 1, 2, 3, 4, 5),), bandwidth=(0.1, 0.1, 0.2, 0.2, 0.2, 0.2))
    beside = msgspec.structs.replace(
        CELL, ues=(UeGroup(name="bytes", traffic="bytes", weight=5.0), *CELL.ues),
        radio=msgspec.structs.replace(RADIO, source=ConstantSource()),
    )  # fmt: skip
    assert found.weights(beside) == pytest.approx([5.0, 0.6, 0.6, 1.2, 1.2, 1.2, 1.2])
    assert [group.window for group in found.applied(beside).ues] == [8, 3, 3]
    assert found.scheduler(beside).batches == ((b"ue-1", b"ue-2", b"ue-3", b"ue-4", b"ue-5", b"ue-6"),)


@pytest.mark.parametrize("seed", range(3))
def test_every_wave_is_answered_whatever_is_accepted(seed: int, tmp_path: Path) -> None:
    """UEs that finish early leave their batch; nobody waits for them, nor for bytes of others."""
    ues = tuple(
        msgspec.structs.replace(group, alpha=0.6, response=(1, 30), prompt=(1, 200), count=2) for group in CELL.ues
    )
    config = msgspec.structs.replace(CELL, ues=ues, seed=seed, seconds=8.0)
    found = {"window": 4, "batches": [[2], [0, 3], [1]], "bandwidth": [0.4, 0.3, 0.2, 0.1]}
    tallies = [t for _, some in run_cell(planned(config, found, tmp_path)).groups for t in some]
    assert max(len(t.latencies_s) for t in tallies) - min(len(t.latencies_s) for t in tallies) <= 1
    assert min(len(t.latencies_s) for t in tallies) > 3


def test_cells_that_cannot_carry_out_a_plan_are_refused(tmp_path: Path) -> None:
    good = {"window": 3, "batches": [[0, 1, 2], [3, 4, 5]], "bandwidth": [1 / 6] * 6}
    for changed, said in (
        ({"batches": [[0, 1]], "bandwidth": [0.5, 0.5]}, "a plan of 2 tasks; 6 UEs"),
        ({"batches": [[0, 0], [1, 2, 3, 4, 5]]}, "every task once"),
        ({"window": 0}, "window in 1..256"),
        ({"bandwidth": [1e308] * 6}, "add up to 1 at most"),
        ({"bandwidth": [1 / 6] * 5 + [1 / 6 + 1e-5]}, "add up to 1 at most"),
        ({"bandwidth": [1 / 5] * 5 + [0.0]}, "positive shares"),
        ({"batches": "x"}, "give the output of"),
    ):
        with pytest.raises(BadInput, match=said):
            read_plan(planned(CELL, {**good, **changed}, tmp_path))
    radio = msgspec.structs.replace(RADIO, scheduler="round-robin")
    with pytest.raises(BadInput, match=r"radio.scheduler to weights"):
        read_plan(planned(msgspec.structs.replace(CELL, radio=radio), good, tmp_path))
    small = msgspec.structs.replace(CELL, bs=CellBs(profile="edge-sd", max_batch=2))
    with pytest.raises(BadInput, match="a batch of 3 tasks"):
        read_plan(planned(small, good, tmp_path))
    alone = tuple(msgspec.structs.replace(group, protocol="target-only") for group in CELL.ues)
    with pytest.raises(BadInput, match="drafts nothing"):
        read_plan(planned(msgspec.structs.replace(CELL, ues=alone), good, tmp_path))
    with pytest.raises(BadInput, match="virtual time alone"):
        carry_out(planned(CELL, good, tmp_path), real=True, out=None)


def test_runs_that_no_plan_can_be_made_of_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is no run of a cell"):
        problem_of(tmp_path)
    short = msgspec.structs.replace(CELL, seconds=2.2)
    for name, config, said in (
        ("short", short, "run the cell for longer"),
        ("mixed", msgspec.structs.replace(short, ues=(NEAR, msgspec.structs.replace(FAR, window=3))), "one window"),
        ("linear", msgspec.structs.replace(CELL, seconds=6.0, bs=CellBs(profile="wisv")), "must be of kind flops"),
    ):
        carry_out(config, real=False, out=tmp_path / name)
        with pytest.raises(BadInput, match=said):
            problem_of(tmp_path / name)
    with pytest.raises(BadInput, match="rate_rps or after think_s or together"):
        UeGroup(name="x", rate_rps=1.0, together=True)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("output_tokens", "many", "could not convert"), ("acceptance_cond", "1.5", "lies in 0 to 1"),
        ("request_bytes", "nan", "lies in 0 to"), ("input_tokens", "-3", "lies in 0 to"),
        ("input_tokens", "", "longer"),
    ],
)  # fmt: skip
def test_measured_rows_that_were_changed_are_refused(
    measured: Path, tmp_path: Path, column: str, value: str, said: str
) -> None:
    for name in ("config.yaml", "ues.csv"):
        (tmp_path / name).write_bytes((measured / name).read_bytes())
    with (measured / "ues.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (tmp_path / "ues.csv").open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows([rows[0] | {column: value}, *rows[1:]])
    with pytest.raises(BadInput, match=said):
        problem_of(tmp_path)
    (tmp_path / "ues.csv").write_text("ue,group\n0,near\n")
    with pytest.raises(BadInput, match="1 rows, and the cell 6 UEs"):
        problem_of(tmp_path)


def test_requests_that_come_together_begin_at_the_same_time() -> None:
    """The next request of a UE that is answered early waits for the others'."""
    config = CELL
    counts = [len(t.latencies_s) for _, some in run_cell(config).groups for t in some]
    assert max(counts) - min(counts) <= 1
    apart = msgspec.structs.replace(config, ues=tuple(msgspec.structs.replace(g, together=False) for g in config.ues))
    near, far = ([len(t.latencies_s) for t in some] for _, some in run_cell(apart).groups)
    assert min(far) > 1.2 * max(near)
