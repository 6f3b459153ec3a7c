"""Training and evaluating rejection predictors: thresholds, calibration, tables, and Theorem 1 against brute force."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import BadInput
from testbed.experiments.predictor import models as predictor_models
from testbed.experiments.predictor.eval import (
    check_traces,
    evaluate,
    intervals,
    latency,
    rounds_of,
    seen_prompts,
    theorem,
    waste,
)
from testbed.experiments.predictor.figures import (
    acceptance_table,
    correlation_table,
    interval_table,
    waste_table,
    write_figures,
)
from testbed.experiments.predictor.scores import calibration_error, fpr_at_recall, scores_of, threshold_for
from testbed.experiments.predictor.traces import TraceMeta, TraceStore, joined, split
from testbed.experiments.predictor.train import TrainConfig, load_families, platt, train
from testbed.ue.windows.predictor import FEATURES, load_predictor, save_predictor
from tests.support.predictors import made_traces, stump

META = TraceMeta(
    dataset="made", first=0, prompts=24, window=6, max_tokens=64, engine="none", dtype="float32", drafter="d",
    drafter_fingerprint="synthetic", target="t", target_fingerprint="synthetic",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("traces")
    store = TraceStore(directory)
    store.create(META)
    store.write(0, made_traces())
    return directory


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("predictors")
    spaces = {
        name: {key: [values[0]] for key, values in space.items()} for name, space in predictor_models.SPACES.items()
    }
    spaces["mlp"] |= {"learning_rate": [1e-3, 1e-2], "max_epochs": [4]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("testbed.experiments.predictor.train.SPACES", spaces)
        train(TrainConfig(recall=0.8, trials=2, seed=3), data, out, lambda *_: None)
    return out


def test_predictors_of_two_trainings_are_not_mixed(data: Path, tmp_path: Path) -> None:
    (tmp_path / "forest").mkdir()
    with pytest.raises(BadInput, match="is not empty; choose another --out"):
        train(TrainConfig(models=("mlp",), trials=1), data, tmp_path, lambda *_: None)
    assert [path.name for path in tmp_path.iterdir()] == ["forest"]


LABELLED = st.lists(st.tuples(st.booleans(), st.integers(0, 12)), min_size=2, max_size=40).filter(
    lambda rows: len({accepted for accepted, _ in rows}) == 2
)


@given(LABELLED, st.floats(0.05, 0.99))
def test_a_threshold_is_the_highest_that_finds_enough(rows: list[tuple[bool, int]], recall: float) -> None:
    accepted = np.array([a for a, _ in rows], np.uint8)
    p = np.array([k / 12 for _, k in rows])
    found = threshold_for(accepted, p, recall)

    def share(threshold: float, label: int) -> float:
        mine = p[accepted == label]
        return float(np.mean(mine >= threshold))

    enough = [t for t in np.unique(p) if share(t, 1) >= recall - 1e-9]
    assert found == max(enough)
    assert fpr_at_recall(accepted, p, recall) == share(found, 0)


def test_scores_are_those_of_the_counts() -> None:
    accepted = np.array([1, 1, 1, 0, 0, 1, 0, 1], np.uint8)
    p = np.array([0.9, 0.8, 0.3, 0.7, 0.2, 0.6, 0.1, 0.5])
    found = scores_of(accepted, p, 0.5).numbers()
    assert [found[n] for n in ("tn", "fp", "fn", "tp")] == [2, 1, 1, 4]
    assert found["rec1"] == 0.8
    assert found["fpr"] == pytest.approx(1 / 3)
    assert found["accuracy"] == 0.75
    assert found["balanced_accuracy"] == pytest.approx((0.8 + 2 / 3) / 2)
    pairs = [(a > r) + 0.5 * (a == r) for a in p[accepted == 1] for r in p[accepted == 0]]
    assert found["auc"] == pytest.approx(np.mean(pairs))


def test_intervals_are_over_prompts(trained: Path) -> None:
    """A prompt twice as often counts for no more: its tokens are dependent."""
    traces, (predictor, *_) = made_traces(prompts=30), load_families(trained).values()
    once = intervals(traces, predictor.probabilities(traces.features), predictor.info.threshold)
    scores = scores_of(traces.accepted, predictor.probabilities(traces.features), predictor.info.threshold).numbers()
    for name in ("auc", "rec1", "fpr"):
        low, high = once[f"{name}_low"], once[f"{name}_high"]
        assert low is not None and high is not None and low < scores[name] < high
    twice = joined([traces, traces])
    again = intervals(twice, predictor.probabilities(twice.features), predictor.info.threshold)
    assert again == pytest.approx(once)


def test_calibration_error_is_none_where_shares_are_as_said() -> None:
    p = np.repeat([0.25, 0.75], 400)
    accepted = np.concatenate([np.arange(400) < 100, np.arange(400) < 300]).astype(np.uint8)
    assert calibration_error(accepted, p) == pytest.approx(0.0)
    assert calibration_error(accepted, np.repeat([0.45, 0.95], 400)) == pytest.approx(0.2)


def test_platt_finds_the_sigmoid_that_made_the_labels() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=60_000)
    accepted = (rng.random(60_000) < 1 / (1 + np.exp(-(1.7 * scores - 0.6)))).astype(np.uint8)
    a, b = platt(scores, accepted)
    assert a == pytest.approx(1.7, abs=0.06)
    assert b == pytest.approx(-0.6, abs=0.04)


def test_training_writes_every_family_and_the_best(trained: Path, data: Path) -> None:
    found = load_families(trained)
    assert list(found) == ["mlp", "lightgbm", "xgboost", "forest"]
    best = load_predictor(trained)
    assert best.info.metrics["fpr_at_recall"] == min(p.info.metrics["fpr_at_recall"] for p in found.values())
    _, held = split(TraceStore(data).load(), 0.25, 3)
    for name, predictor in found.items():
        info = predictor.info
        assert info.model == name
        assert (info.drafter_fingerprint, info.target_fingerprint) == ("synthetic", "synthetic")
        p = predictor.probabilities(held.features)
        assert info.threshold == threshold_for(held.accepted, p, 0.8)
        assert info.metrics["rec1"] == np.mean(p[held.accepted == 1] >= info.threshold) >= 0.8
        assert info.metrics["auc"] > 0.75  # the labels were drawn with these odds
        assert abs(p.mean() - held.accepted.mean()) < 1e-3  # what calibration with an intercept ensures
        assert info.trained["samples"] == len(made_traces())


def test_training_again_gives_the_same(trained: Path, data: Path, tmp_path: Path) -> None:
    config = TrainConfig(trials=1, seed=3, models=("lightgbm",))
    one, two = (train(config, data, tmp_path / name, lambda *_: None)["lightgbm"] for name in "ab")
    assert one.info == two.info
    assert one.info.recall == 0.8


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"recall": 1.0}, "recall must lie in"),
        ({"trials": 0}, "at least 1"),
        ({"models": ("svm",)}, "unknown model svm; known: mlp"),
        ({"models": ()}, "at least one model"),
        ({"validation": 0.0}, "held out"),
    ],
)
def test_training_that_cannot_be_done_is_refused(
    data: Path, tmp_path: Path, change: dict[str, object], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        train(TrainConfig(**change), data, tmp_path / "out", lambda *_: None)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_evaluation_has_a_row_a_predictor(trained: Path) -> None:
    traces = made_traces(seed=9)
    rows = evaluate(load_families(trained), traces)
    for row, predictor in zip(rows, load_families(trained).values(), strict=True):
        p = predictor.probabilities(traces.features)
        expected = scores_of(traces.accepted, p, predictor.info.threshold).numbers()
        assert {name: row[name] for name in expected} == expected
        assert row["tn"] + row["fp"] == row["rejected"]
        assert 0 < row["latency_us_min"] <= row["latency_us_p50"] <= row["latency_us_p99"] <= row["latency_us_max"]


def test_latency_needs_few_tokens_only(trained: Path) -> None:
    few = made_traces(prompts=1, rounds=2)
    assert latency(load_predictor(trained), few)["latency_us_p50"] > 0


def test_traces_of_another_pair_are_refused() -> None:
    check_traces("a", stump(0.2, 0.9), META)
    with pytest.raises(BadInput, match="trained for target other"):
        check_traces("a", stump(0.2, 0.9, target_fingerprint="other"), META)
    with pytest.raises(BadInput, match="trained for drafter other"):
        check_traces("a", stump(0.2, 0.9, drafter_fingerprint="other"), META)


def test_waste_is_that_of_every_round_walked() -> None:
    traces, threshold, window = made_traces(prompts=5), 0.5, 6
    predictor = stump(0.2, 0.9, cut=0.4)
    rounds = rounds_of(traces)
    p = predictor.probabilities(rounds.features.reshape(-1, 5)).reshape(rounds.features.shape[:2])
    found = waste(rounds, p, threshold)
    wasted, sent, missed = [], [], []
    for prompt in range(5):
        for number in range(30):
            mine = (traces.prompt == prompt) & (traces.round == number)
            later = (traces.later_prompt == prompt) & (traces.later_round == number)
            tokens = [*traces.features[mine], *traces.later_features[later]]
            kept = int(traces.accepted[mine].sum())
            said = [predictor.probability(tuple(map(float, x))) >= threshold for x in tokens]
            assert len(said) == window
            k = said.index(False) if False in said else window
            wasted.append(max(0, k - kept))
            sent.append(max(0, min(k + 1, window) - kept))
            if kept < window:
                missed.append(said[kept])
    assert found["wasted"] == pytest.approx(np.mean(wasted))
    assert found["wasted_sent"] == pytest.approx(np.mean(sent))
    assert found["false_alarm"] == pytest.approx(np.mean(missed))


def test_theorem_1_is_put_to_the_test(trained: Path) -> None:
    said = theorem(load_families(trained), made_traces(seed=4))
    points = said["points"]
    assert len(points) == 20
    pairs = [(a, b) for a in points for b in points if a["false_alarm"] < b["false_alarm"]]
    assert said["pairs"] == len(pairs)
    assert said["ordered"] == sum(a["wasted"] <= b["wasted"] for a, b in pairs)
    assert said["dominated_ordered"] <= said["dominated"] <= said["pairs"]
    assert len(said["counterexamples"]) == said["dominated"] - said["dominated_ordered"]


@pytest.mark.parametrize("position", [0.0, 2.0, 1e6])
def test_rounds_with_impossible_positions_are_refused(position: float) -> None:
    """One position of a million took gigabytes."""
    traces = made_traces(seed=4)
    features = traces.features.copy()
    features[0, FEATURES.index("position")] = position
    with pytest.raises(BadInput, match="positions of a round's tokens"):
        rounds_of(replace(traces, features=features))


def test_figures_say_what_the_traces_say(tmp_path: Path) -> None:
    traces = made_traces(prompts=6)
    _, rows = acceptance_table(traces)
    for name in FEATURES:
        mine = [row for row in rows if row[0] == name]
        assert sum(int(row[-1]) for row in mine) == len(traces)
        assert sum(float(row[2]) * int(row[-1]) for row in mine) == pytest.approx(traces.accepted.sum())
        assert all(float(row[3]) <= float(row[2]) <= float(row[4]) for row in mine)
    header, matrix = correlation_table(traces)
    assert header[-1] == "accepted"
    expected = np.corrcoef(traces.features[:, 0], traces.accepted)[0, 1]
    assert float(matrix[0][-1]) == pytest.approx(expected, abs=1e-5)
    _, of_prompts = waste_table(traces)
    drafted = 6 * 30 * 6  # window, rounds, prompts
    assert sum(float(row[1]) * float(row[2]) for row in of_prompts) == pytest.approx(drafted - traces.accepted.sum())
    assert all(math.isclose(float(row[3]), float(row[2]) / 50) for row in of_prompts)
    paths = write_figures(traces, tmp_path / "figures")
    plots = [f"fig{i}.{kind}" for i in (1, 2, 3) for kind in ("csv", "png")]
    assert sorted(p.name for p in paths) == ["correlations.csv", *plots]
    assert all(p.stat().st_size > 100 for p in paths)


def test_correlations_have_intervals_over_prompts() -> None:
    """Tokens of a prompt are dependent: repeating every token keeps the correlation and its interval."""
    traces = made_traces(prompts=30)
    _, rows = interval_table(traces)
    waste = np.array([[row[2], row[4]] for row in waste_table(traces)[1]], float)
    assert [row[0] for row in rows] == ["wasted_tokens", *FEATURES]
    assert float(rows[0][2]) == pytest.approx(np.corrcoef(waste.T)[0, 1])
    r, low, high = (float(value) for value in rows[1][2:])
    assert r == pytest.approx(np.corrcoef(traces.features[:, 0], traces.accepted)[0, 1], abs=1e-5)
    assert low < r < high < low + 0.5
    twice = replace(
        traces, **{field.name: np.repeat(getattr(traces, field.name), 2, axis=0) for field in fields(traces)}
    )
    assert interval_table(twice)[1][1][2:] == pytest.approx(rows[1][2:])


def test_one_predictor_alone_can_be_judged(tmp_path: Path) -> None:
    save_predictor(stump(0.2, 0.9), tmp_path)
    assert list(load_families(tmp_path)) == ["mlp"]


def test_prompts_that_a_predictor_was_trained_on_are_counted(trained: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its figures on them were shown as those on unseen traces."""
    predictor = load_predictor(trained)
    for first, prompts, seen in ((0, 2, 2), (META.prompts - 1, 5, 1), (META.prompts, 5, 0)):
        meta = msgspec.structs.replace(META, first=META.first + first, prompts=prompts)
        assert seen_prompts(predictor, meta) == seen
    assert seen_prompts(predictor, msgspec.structs.replace(META, dataset="other")) == 0
    check_traces("mine", predictor, META)
    assert f"mine was trained on {META.prompts} of the {META.prompts} prompts" in caplog.text
