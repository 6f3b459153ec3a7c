"""Runs by other window rules, end to end in virtual time: lossless, their waste written down, refused in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.channel.spec import ChannelSpec
from testbed.config import DemoConfig, RunConfig
from testbed.errors import BadInput
from testbed.experiments.inputs.formats import Example
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.experiments.results.rows import rows as rows_of
from testbed.experiments.runs.demo import check_demo
from testbed.experiments.runs.prepare import policy_of, prepare, unlabelled
from testbed.experiments.sweep.grid import SweepConfig, points
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.gain import ExpectedGain
from testbed.ue.windows.predicted import PredictedWindow
from testbed.ue.windows.predictor import AcceptanceLabels, save_predictor
from tests.support.predictors import stump
from tests.support.virtual import decode, synthetic_models

PROFILE = Profile(
    name="bare", about="", source="", draft=LinearDraft(per_token_s=0.01, prefill_per_token_s=0.001),
    verify=LinearVerify(base_s=0.03, per_drafted_s=0.001, undrafted_s=0.02),
)  # fmt: skip
LINK = ChannelSpec(kind="virtual", uplink_mbps=2, downlink_mbps=1, rtt_ms=30)


@pytest.fixture
def predictor(tmp_path: Path) -> str:
    """A predictor of the synthetic drafter, whose top-1 probability is high where it agrees with the target."""
    save_predictor(stump(0.4, 0.95, cut=0.6), tmp_path / "p")
    return str(tmp_path / "p")


@pytest.mark.parametrize("rule", ["predicted", "gain"])
@pytest.mark.parametrize("method", ["greedy", "fh", "sh"])
def test_a_rule_changes_rounds_and_not_outputs(rule: str, method: str, predictor: str) -> None:
    how = {"methods": (method, "target-only", "colocated"), "window": 8}
    fixed = decode(LINK, PROFILE, synthetic_models(0.7), **how)
    dynamic = decode(LINK, PROFILE, synthetic_models(0.7), **how, window_rule=rule, predictor=predictor)
    assert all(o.lossless for o in dynamic)
    own = {(o.method, o.request): o.record.token_ids for o in fixed}
    assert own == {(o.method, o.request): o.record.token_ids for o in dynamic}
    lengths = {r.drafted for o in dynamic if o.method == method for r in o.record.rounds}
    assert min(lengths) >= 1
    assert len(lengths) > 1
    old, new = (rows_of(o, [Example("")] * 3, {}, window=8, threshold=0.0)[0] for o in (fixed, dynamic))
    assert new["acceptance"] > old["acceptance"]
    assert new["wasted_s"] < old["wasted_s"]


def test_wasted_time_is_that_of_the_tokens_that_did_not_stay() -> None:
    outcomes = decode(LINK, PROFILE, synthetic_models(0.6), methods=("greedy", "target-only"))
    for outcome in outcomes:
        for r in outcome.record.rounds:
            assert r.wasted_s == pytest.approx(0.01 * (r.drafted - r.accepted))  # the prompt's time is left out
    rows = {r["method"]: r for r in rows_of(outcomes, [Example("")] * 3, {}, window=8, threshold=0.0)}
    assert rows["greedy"]["wasted_s"] == pytest.approx(0.01 * rows["greedy"]["wasted_tokens"])
    assert rows["target-only"]["wasted_s"] == rows["target-only"]["wasted_tokens"] == 0


def test_a_run_takes_the_rule_that_it_was_given(predictor: str) -> None:
    config = RunConfig(window=6, predictor=predictor)
    assert policy_of(RunConfig(window=6), "synthetic") == FixedWindow(6)
    for rule, kind in (("predicted", PredictedWindow), ("gain", ExpectedGain)):
        made = policy_of(RunConfig(window=6, window_rule=rule, predictor=config.predictor), "synthetic")
        assert isinstance(made, kind)
        assert made.max_window == 6
    with pytest.raises(BadInput, match="trained for drafter synthetic, this one is 0123"):
        policy_of(RunConfig(window_rule="gain", predictor=predictor), "0123")


def test_a_rule_that_cannot_be_followed_is_refused_first(predictor: str, tmp_path: Path) -> None:
    cases = [
        ({"window_rule": "best"}, "known: fixed, predicted, before-rejection"),
        ({"window_rule": "gain", "predictor": str(tmp_path / "none")}, "no predictor in"),
        ({"predictor": predictor}, "a fixed window needs no predictor"),
    ]
    for fields, said in cases:
        with pytest.raises(BadInput, match=said):
            check_demo(DemoConfig(**fields))  # type: ignore[arg-type]
        with pytest.raises(BadInput, match=said):
            prepare(RunConfig(drafter="none.gguf", **fields), [1])  # type: ignore[arg-type]


def test_a_sweep_tells_predictors_apart_by_their_files(predictor: str) -> None:
    config = SweepConfig(
        grid={"window_rule": ["fixed", "predicted"]},
        run=DemoConfig(channel="kind=virtual,profile=wisv,uplink_mbps=20,downlink_mbps=20,rtt_ms=50"),
    )
    before = [p.key for p in points(config)]
    assert len(set(before)) == 2
    given = SweepConfig(run=DemoConfig(channel=config.run.channel, window_rule="gain", predictor=predictor))
    first = points(given)[0].key
    save_predictor(stump(0.3, 0.95), Path(predictor))
    assert points(given)[0].key != first


SAMPLED, JUDGED = AcceptanceLabels(temperature=1.0), AcceptanceLabels(judge="head", threshold=0.2)


@pytest.mark.parametrize(
    ("labels", "values", "names"),
    [
        (AcceptanceLabels(), {"methods": ("greedy", "fh", "target-only")}, []),
        (AcceptanceLabels(), {"methods": ("greedy", "fh", "sh"), "threshold": 0.2}, ["fh", "sh"]),
        (AcceptanceLabels(), {"methods": ("greedy", "rejection")}, ["rejection"]),
        (AcceptanceLabels(), {"methods": ("rejection", "split"), "temperature": 0.0}, []),
        (AcceptanceLabels(), {"methods": ("target-only", "auto"), "threshold": 0.2, "temperature": 1.0}, ["auto"]),
        (SAMPLED, {"methods": ("greedy", "rejection", "split")}, ["greedy"]),
        (SAMPLED, {"methods": ("rejection",), "temperature": 0.5}, ["rejection"]),
        (SAMPLED, {"methods": ("rejection",), "top_k": 5}, ["rejection"]),
        (JUDGED, {"methods": ("greedy", "fh"), "threshold": 0.2}, ["greedy"]),
        (JUDGED, {"methods": ("fh", "sh"), "threshold": 0.3}, ["fh", "sh"]),
    ],
)
def test_methods_that_accept_by_another_rule_than_the_labels(
    labels: AcceptanceLabels, values: dict[str, Any], names: list[str]
) -> None:
    assert unlabelled(RunConfig(**values), labels) == names
