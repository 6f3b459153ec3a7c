"""Models in a cell: outputs are those of single runs of the same pair, and a real head judges by each UE's channel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from testbed.bs.judging.base import Candidates
from testbed.bs.judging.head import HeadJudge
from testbed.channel.radio.config import RadioConfig
from testbed.channel.spec import parse_channel
from testbed.config import DemoConfig
from testbed.errors import BadInput, EngineError
from testbed.experiments.cell.config import CellBs, CellConfig, UeGroup
from testbed.experiments.cell.grid.sustain import SustainConfig
from testbed.experiments.cell.parts.computed import ComputedPair
from testbed.experiments.cell.parts.tasks import PairTasks, UeTasks
from testbed.experiments.cell.real.run import run_cell_really
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell
from testbed.experiments.cell.sections import CellModels
from testbed.experiments.inputs.pair import target_for
from testbed.experiments.inputs.profile import HeadCost, load_profile
from testbed.experiments.runs.demo import judge_of, run_config
from testbed.experiments.runs.prepare import prepare
from testbed.experiments.runs.virtual import load_models, run_virtual
from testbed.options import save
from tests.experiments.cell.test_run import rows
from tests.support.virtual import QUIET

PROMPTS, MOST = 5, 80
MODELS = CellModels(prompts=PROMPTS, max_tokens=MOST)
JUDGED = UeGroup(name="judged", count=2, protocol="fh", threshold=0.3)
STRICT = UeGroup(name="strict", protocol="greedy")


def cell(*groups: UeGroup, models: CellModels = MODELS, **more: Any) -> CellConfig:
    config = {"seconds": 12.0, "warmup_s": 1.0, "radio": RadioConfig(bandwidth_hz=5e6), **more}
    return CellConfig(ues=groups, models=models, **config)


def outputs(config: CellConfig, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, ...], set[tuple[int, ...]]]:
    """The different responses to each prompt in a cell."""
    found: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    seen = UeTasks.seen

    def kept(self: UeTasks, ids: Any, record: Any) -> None:
        found.setdefault(tuple(ids), set()).add(tuple(record.token_ids))
        seen(self, ids, record)

    monkeypatch.setattr(UeTasks, "seen", kept)
    run_cell(config)
    return found


def alone(**options: Any) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The responses of one UE on a link of its own."""
    demo = DemoConfig(
        engine="transformers", prompts=PROMPTS, max_tokens=MOST, channel="kind=virtual,profile=wisv", **options
    )
    run = run_config(demo)
    work = prepare(run)
    target = Path(target_for("transformers", None))
    models = load_models(target, "transformers", "float32", run, work, hidden=True)
    try:
        channel, profile = parse_channel(demo.channel), load_profile("wisv")
        found = run_virtual(run, work, QUIET, channel, profile, models, judge=judge_of(demo))
    finally:
        models.close()
    return {tuple(work.prompts[one.request].ids): tuple(one.record.token_ids) for one in found}


@pytest.mark.parametrize("protocol", ["fh", "sh"])
def test_a_head_that_sees_no_channel_judges_as_on_a_link_of_its_own(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = msgspec.structs.replace(JUDGED, protocol=protocol)
    models = msgspec.structs.replace(MODELS, head="bundled:blind")
    single = alone(methods=(protocol,), threshold=0.3, head="bundled:blind")
    strict = alone(methods=("greedy",))
    assert single != strict  # the head keeps mismatches
    found = outputs(cell(group, STRICT, models=models), monkeypatch)
    assert len(found) == PROMPTS
    for prompt, answers in found.items():
        assert answers <= {single[prompt], strict[prompt]}
    assert any(len(answers) == 2 for answers in found.values())


def test_the_head_judges_by_the_channel_of_each_ue(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = set[float]()

    def judge(self: HeadJudge, batch: list[Candidates]) -> Any:
        rates.update(round(one.csi.uplink_mbps, 3) for one in batch if one.csi is not None)
        return probabilities(self, batch)

    probabilities = HeadJudge.judge
    monkeypatch.setattr(HeadJudge, "judge", judge)
    near = msgspec.structs.replace(JUDGED, name="near", csi="oracle")
    far = msgspec.structs.replace(near, name="far")
    source = {"kind": "constant", "bits_per_s_per_hz": [3.0, 0.5]}
    radio = msgspec.convert({"bandwidth_hz": 5e6, "source": source}, RadioConfig)
    run_cell(cell(near, far, radio=radio))
    assert rates == {15.0, 2.5}


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"protocol": "greedy"}, "sh": {"protocol": "sh"}, "fh one ahead": {"protocol": "fh", "lookahead": 1},
    "stream": {"lookahead": "stream"}, "chosen": {"lookahead": None}, "alone": {"protocol": "target-only"},
    "predicted": {"window_rule": "predicted", "window": 16}, "hinted": {"window_rule": "hinted"},
    "open": {"rate_rps": 1.0, "count": 3},
}  # fmt: skip
"""UEs whose output is the target's own."""


def test_responses_are_the_targets_own_without_a_threshold() -> None:
    """All in one cell, so that their rounds meet in batches."""
    groups = [msgspec.convert({"name": name, **way}, UeGroup) for name, way in WAYS.items()]
    found = rows(cell(*groups, radio=RadioConfig(bandwidth_hz=50e6)))
    assert set(found) == set(WAYS)
    for name, row in found.items():
        assert row["responses"] >= 2 and row["same_share"] == 1 and row["accuracy_lost"] == 0, name


def test_a_response_that_is_not_the_targets_own_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PairTasks, "exact", lambda self, group: True)
    with pytest.raises(Exception, match="differs from the target's own output"):
        run_cell(cell(JUDGED))


@pytest.mark.parametrize("protocol", ["rejection", "split", "coupled"])
def test_protocols_that_sample_have_no_own_output_to_compare_with(protocol: str) -> None:
    group, radio = msgspec.convert({"name": "sampled", "protocol": protocol}, UeGroup), RadioConfig(bandwidth_hz=100e6)
    (row,) = rows(cell(group, radio=radio)).values()
    assert row["responses"] > 0 and row["same_share"] is None and 0 <= row["accuracy"] <= 1


def test_a_real_head_promised_speeds_and_shares_of_the_radio_meet_in_one_run() -> None:
    near = msgspec.structs.replace(JUDGED, name="near", class_tps=12.0, weight=3.0)
    far = msgspec.structs.replace(near, name="far", weight=1.0)
    crowd = UeGroup(name="crowd", count=40, protocol="target-only")
    radio = RadioConfig(bandwidth_hz=3e6, scheduler="weights")
    found = rows(cell(near, far, crowd, radio=radio, bs=CellBs(scheduler="slo")))
    strict = rows(
        cell(*(msgspec.structs.replace(one, threshold=0.0) for one in (near, far)), crowd, radio=radio,
             bs=CellBs(scheduler="slo"))
    )  # fmt: skip
    first_come = rows(cell(near, far, crowd, radio=radio))
    for name in ("near", "far"):
        assert found[name]["acceptance_cond"] > strict[name]["acceptance_cond"] + 0.03  # the head
        assert strict[name]["same_share"] == 1 > found[name]["same_share"]
        assert found[name]["violations"] == 0  # the promise
        assert found[name]["goodput_tps"] > first_come[name]["goodput_tps"]
    assert found["far"]["message_delay_s"]["mean"] > 1.3 * found["near"]["message_delay_s"]["mean"]  # the shares


def test_the_time_of_the_head_is_that_of_the_profile_of_the_base_station(tmp_path: Path) -> None:
    profile, size = load_profile("wisv"), {"drafter_hidden": 1000, "target_hidden": 1000, "channel": 0, "width": 500}
    head = HeadCost(**size, peak_flops=1e8, utilisation=1.0)  # 20 ms a position
    save(msgspec.structs.replace(profile, head=head), tmp_path / "slow.yaml")
    save(msgspec.structs.replace(profile, head=None), tmp_path / "fast.yaml")
    one = msgspec.structs.replace(JUDGED, count=1)
    slow, fast = (
        rows(cell(one, bs=CellBs(profile=str(tmp_path / f"{name}.yaml"))))["judged"] for name in ("slow", "fast")
    )
    assert slow["output_tokens"] == fast["output_tokens"]
    assert 0.02 < slow["latency_s"] - fast["latency_s"] < 0.5


def test_processes_decode_with_the_models_of_virtual_time() -> None:
    """A drafter in each process, the target and its head in the base station's; hidden states are as large as the
    profile's. Times depend on the machine.
    """
    config = cell(JUDGED, STRICT, seconds=12.0, warmup_s=2.0)
    real = {row["group"]: row for row in document(config, run_cell_really(config))["rows"]}
    virtual = rows(config)
    assert real["strict"]["same_share"] == 1 and real["strict"]["accuracy_lost"] == 0
    assert real["judged"]["same_share"] < 1 and real["judged"]["kept_share"] == pytest.approx(
        virtual["judged"]["kept_share"], rel=0.5
    )
    assert real["judged"]["acceptance_cond"] > real["strict"]["acceptance_cond"] + 0.03
    assert min(real[name]["responses"] for name in real) > 0
    sent = [one["judged"]["uplink_bytes"] / one["judged"]["goodput_tps"] for one in (real, virtual)]
    assert sent[0] == pytest.approx(sent[1], rel=0.4)  # rounds that straddle the ends


def test_a_process_whose_responses_are_not_the_targets_own_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ComputedPair, "own_outputs", lambda self: [[0]] * PROMPTS)
    with pytest.raises(EngineError, match="responses differ from the target's own output"):
        run_cell_really(cell(STRICT, seconds=8.0))


STATIONS = [{"name": name, "at_m": [at, 0]} for name, at in (("a", 0), ("b", 100))]


@pytest.mark.parametrize(
    ("groups", "more", "said"),
    [
        ([{"drafts": "bundled"}], {}, "leave out drafts"),
        ([{"protocol": "fh", "judge_keeps": 0.5}], {}, "leave out drafts and judge_keeps"),
        ([{}], {"cells": {"stations": STATIONS}, "radio": {"source": {"kind": "model"}}},
         "models are for one cell"),
        ([{"protocol": "fh", "threshold": 0.5}], {"models": None}, "a threshold is for the judge of `models`"),
        ([{"protocol": "greedy", "threshold": 0.5}], {}, "no judge keeps tokens under greedy"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_models_is_refused(groups: Any, more: dict[str, Any], said: str) -> None:
    named = [{"name": f"g{i}", **group} for i, group in enumerate(groups)]
    with pytest.raises((BadInput, msgspec.ValidationError), match=said):
        msgspec.convert({"ues": named, "models": {}, **more}, CellConfig)


def test_models_decode_for_1_to_64_ues_and_are_not_searched() -> None:
    with pytest.raises(BadInput, match="1 to 64 UEs with `traffic: tokens`, not 65"):
        run_cell(cell(msgspec.structs.replace(STRICT, count=65)))
    with pytest.raises(BadInput, match="`traffic: tokens`, not 0"):
        run_cell(cell(msgspec.structs.replace(STRICT, traffic="bytes")))
    with pytest.raises(BadInput, match="not searched"):
        SustainConfig(cell=cell(msgspec.structs.replace(STRICT, class_tps=4.0)))


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ({"head": "nowhere"}, "no decision head"),
        ({"judge": "strict", "head": "bundled"}, "takes no head"),
        ({"engine": "synthetic"}, "has no model"),
        ({"dataset": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"scorer": "nobody"}, "nobody"),
        ({"scorer": "code"}, "which a cell does not"),
    ],
)
def test_models_that_cannot_be_used_are_refused(models: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        run_cell(cell(JUDGED, models=msgspec.structs.replace(MODELS, **models)))
