"""Estimator of verification time: eq. 19 by hand, recovery of known coefficients, files, online updates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bs.scheduling.estimator_csv import read_samples
from testbed.bs.scheduling.estimator_fit import Sample, by_regime, fit, regime, score
from testbed.bs.scheduling.estimator_online import OnlineConfig, OnlineEstimator
from testbed.errors import BadInput
from testbed.experiments.inputs.profile import PassWork as ProfileWork
from testbed.experiments.inputs.profile import load_profile
from testbed.optim.pass_time import NAMES, Coefficients, RequestWork, coefficients_of
from tests.support.refusals import refuse

TRUTH = Coefficients(a=3.314e-5, b_compute=3.450e-8, b_read=4.620e-6, c=1.486e-2)
WORKS = st.lists(st.builds(RequestWork, st.integers(1, 2000), st.integers(0, 3000)), min_size=1, max_size=12)


def batches(count: int, seed: int) -> list[tuple[RequestWork, ...]]:
    """Passes mixed as in the paper: new prompts, follow-ups, and both."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        cold = rng.random(int(rng.integers(1, 9))) < rng.choice([0.0, 0.5, 1.0])
        found.append(
            tuple(
                RequestWork(int(rng.integers(100, 1500)), 0)
                if new
                else RequestWork(int(rng.integers(1, 60)), int(rng.integers(1, 2000)))
                for new in cold
            )
        )
    return found


def measured(truth: Coefficients, count: int, noise: float, seed: int) -> list[Sample]:
    rng = np.random.default_rng(seed + 1)
    return [Sample(b, truth.batch_s(b) * float(np.exp(noise * rng.standard_normal()))) for b in batches(count, seed)]


# ---------------------------------------------------------------- the model


def test_a_batch_by_hand() -> None:
    simple = Coefficients(a=2.0, b_compute=0.5, b_read=0.25, c=7.0)
    # 3 new after 4 cached: 6 + 0.5·21 + 1 = 17.5; 2 new alone: 4 + 0.5·4 = 6.
    assert simple.share_s(3, 4) == 17.5 and simple.alone_s(3, 4) == 24.5
    assert simple.batch_s([RequestWork(3, 4), RequestWork(2, 0)]) == 30.5
    assert simple.batch_s([]) == 0.0


@given(batch=WORKS)
def test_batch_times_match_the_device_profile(batch: list[RequestWork]) -> None:
    profile = load_profile("a100-qwen3-32b-appendix").verify
    theirs = profile.pass_s([ProfileWork(0, work.new, work.cached) for work in batch])
    assert TRUTH.batch_s(batch) == pytest.approx(theirs, rel=1e-9)


@given(batch=WORKS, more=st.builds(RequestWork, st.integers(1, 2000), st.integers(0, 3000)))
def test_one_more_request_adds_its_share_to_any_batch(batch: list[RequestWork], more: RequestWork) -> None:
    added_s = TRUTH.batch_s([*batch, more]) - TRUTH.batch_s(batch)
    assert TRUTH.share_s(*more) == pytest.approx(added_s, rel=1e-6, abs=1e-9)
    assert TRUTH.alone_s(*more) == pytest.approx(TRUTH.batch_s([more]))


@pytest.mark.parametrize("values", [(-1e-9, 0, 0, 1), (0, float("nan"), 0, 1), (0, 0, float("inf"), 1), (0, 0, 0, 0)])
def test_coefficients_that_cannot_be_are_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(BadInput):
        Coefficients(*values)


def test_documents_are_read_and_their_faults_named() -> None:
    assert coefficients_of({**TRUTH.as_dict(), "r2": 0.9}, "x.json") == TRUTH
    with pytest.raises(BadInput, match=r"x\.json has no b_read, c; it needs a, b_compute, b_read, c"):
        coefficients_of({"a": 1, "b_compute": 1}, "x.json")
    with pytest.raises(BadInput, match=r"x\.json: b_read must be a number"):
        coefficients_of({**TRUTH.as_dict(), "b_read": "1"}, "x.json")
    with pytest.raises(BadInput, match=r"x\.json: c must be a number of seconds"):
        coefficients_of({**TRUTH.as_dict(), "c": -1}, "x.json")


# ---------------------------------------------------------------- the fit


def test_the_fit_is_least_squares() -> None:
    samples = measured(TRUTH, 80, 0.05, 1)
    rows, times = [], []
    for batch, latency_s in samples:
        new, cached = (np.array(column, float) for column in zip(*batch, strict=True))
        rows.append([new.sum(), (new * (new + cached)).sum(), cached.sum(), 1.0])
        times.append(latency_s)
    x, y = np.array(rows), np.array(times)
    by_hand = np.linalg.solve(x.T @ x, x.T @ y)
    found = fit(samples, resamples=20)
    assert found.coefficients.values == pytest.approx(by_hand, rel=1e-6)
    assert found.ols == pytest.approx(found.coefficients.as_dict()) and found.clamped == ()
    predicted = x @ by_hand
    assert found.training.r2 == pytest.approx(np.corrcoef(predicted, y)[0, 1] ** 2, abs=1e-9)
    assert found.training.mape == pytest.approx(np.mean(np.abs(predicted / y - 1)))
    assert found.training.rmse_s == pytest.approx(np.std(predicted - y))
    assert found.training.batches == 80 and found.requests == sum(len(s.batch) for s in samples)


def test_passes_without_noise_give_the_coefficients_back() -> None:
    found = fit(measured(TRUTH, 30, 0.0, 2), resamples=50)
    assert found.coefficients.values == pytest.approx(TRUTH.values, rel=1e-6)
    assert found.training.r2 == pytest.approx(1) and found.cv_r2 == pytest.approx((1, 0), abs=1e-6)


def test_known_coefficients_lie_in_their_intervals_as_often_as_they_should() -> None:
    inside = dict.fromkeys(NAMES, 0)
    for seed in range(30):
        found = fit(measured(TRUTH, 120, 0.03, 100 + seed), seed, resamples=150)
        for name, (low, high) in found.intervals.items():
            inside[name] += low <= TRUTH.as_dict()[name] <= high
        assert found.training.r2 is not None and found.training.r2 > 0.98
    # 95 % of 30 are 28.5; 24 or fewer come about once in a hundred, and a bootstrap falls a little short.
    assert all(24 <= count <= 30 for count in inside.values()), inside
    assert sum(inside.values()) < 4 * 30


def test_the_same_seed_gives_the_same_fit_and_another_one_other_intervals() -> None:
    samples = measured(TRUTH, 40, 0.1, 3)
    assert fit(samples, 5, 100).document() == fit(samples, 5, 100).document()
    other = fit(samples, 6, 100)
    assert other.intervals != fit(samples, 5, 100).intervals
    assert other.coefficients == fit(samples, 5, 100).coefficients


def test_negative_coefficients_are_clamped_and_reported() -> None:
    # Time falls with what is cached, which no coefficient of 0 or more can follow.
    bent = [Sample(b, 0.5 + 1e-4 * sum(w.new for w in b) - 1e-5 * sum(w.cached for w in b)) for b in batches(60, 4)]
    found = fit(bent, resamples=50)
    assert found.ols["b_read"] == pytest.approx(-1e-5) and "b_read" in found.clamped
    assert found.coefficients.b_read == 0.0 and min(found.coefficients.values) >= 0
    assert found.document()["ols"]["b_read"] < 0


def test_clamped_fits_are_the_best_non_negative_ones() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(8)
    clamped = 0
    for _ in range(40):
        samples = [Sample(b, float(rng.uniform(0.01, 0.5))) for b in batches(8, int(rng.integers(10**6)))]
        found = fit(samples, resamples=1)
        x = np.array(
            [
                [sum(w.new for w in b), sum((w.new + w.cached) * w.new for w in b), sum(w.cached for w in b), 1]
                for b, _ in samples
            ],
            float,
        )
        y = np.array([s.latency_s for s in samples])
        best = optimize.nnls(x / x.max(axis=0), y)[1]
        assert np.linalg.norm(x @ np.array(found.coefficients.values) - y) == pytest.approx(best, rel=1e-6)
        clamped += bool(found.clamped)
    assert clamped > 10


def test_uninformative_passes_are_refused() -> None:
    rows = measured(TRUTH, 30, 0.1, 5)
    with pytest.raises(BadInput, match="5 batches are too few"):
        fit(rows[:5])
    with pytest.raises(BadInput, match="cached_tokens is 0 in every batch"):
        fit([Sample((RequestWork(10 * i + 1, 0),), 0.1 + i) for i in range(9)])
    with pytest.raises(BadInput, match="go up and down together"):
        fit([Sample((RequestWork(4, 9),) * (i + 1), 0.1 + i) for i in range(9)])
    with pytest.raises(BadInput, match="take the same time"):
        fit([row._replace(latency_s=0.5) for row in rows])
    with pytest.raises(BadInput, match="1 resample or more"):
        fit(rows, resamples=0)


def test_scores_and_regimes_by_hand() -> None:
    line = Coefficients(a=1.0, b_compute=0.0, b_read=0.0, c=0.0)
    samples = [
        Sample((RequestWork(1, 0),), 2.0),
        Sample((RequestWork(4, 5), RequestWork(2, 0)), 5.0),
        Sample((RequestWork(3, 1),), 2.0),
    ]
    found = score(line, samples)  # errors −1, 1, 1; mean 3, squares 1 + 4 + 1
    assert (found.rmse_s, found.mae_s, found.max_error_s) == (1, 1, 1)
    assert found.r2 == pytest.approx(1 - 3 / 6) and found.adjusted_r2 is None
    assert found.mape == pytest.approx((0.5 + 0.2 + 0.5) / 3) and found.bias == pytest.approx((-0.5 + 0.2 + 0.5) / 3)
    assert [regime(sample) for sample in samples] == ["compute", "mixed", "memory"]
    assert score(line, samples[:1]).r2 is None
    with pytest.raises(BadInput, match="no passes"):
        score(line, [])


def test_terms_of_a_regime_by_hand() -> None:
    line = Coefficients(a=1.0, b_compute=0.0, b_read=2.0, c=1.0)
    found = by_regime(line, [Sample((RequestWork(3, 0),), 4.0), Sample((RequestWork(1, 4), RequestWork(1, 5)), 21.0),
                             Sample((RequestWork(7, 1),), 10.0)])  # fmt: skip
    assert list(found) == ["compute", "memory"] and found["compute"]["mae_s"] == 0
    assert found["compute"]["terms"]["a"] == {"share": 0.75, "largest": 1}
    memory = found["memory"]["terms"]  # 2 + 18 + 1 and 7 + 2 + 1
    assert memory["b_read"] == {"share": pytest.approx((18 / 21 + 0.2) / 2), "largest": 1}
    assert (memory["a"]["largest"], memory["c"]["largest"], memory["b_compute"]["share"]) == (1, 0, 0)


# ---------------------------------------------------------------- files

HEADER = "batch,new_tokens,cached_tokens,latency_s\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_read_whatever_its_order(tmp_path: Path) -> None:
    text = "# measured\nlatency_s,batch,cached_tokens,note,new_tokens\n0.5,b2,10,,3\n\n0.25,7,0,x,40\n0.5,b2,0,,1.0\n"
    found = read_samples(written(tmp_path / "a.csv", "\ufeff" + text))
    assert found == [Sample((RequestWork(3, 10), RequestWork(1, 0)), 0.5), Sample((RequestWork(40, 0),), 0.25)]


def test_passes_that_were_held_out_are_told_apart(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "held_out,batch,new_tokens,cached_tokens,latency_s\n1,a,3,0,0.5\n0,b,4,9,0.25\n")
    doubled = written(tmp_path / "twice.csv", path.read_text().replace("held_out", "latency_s", 1))
    refuse(lambda: read_samples(doubled), BadInput, "the header has the column latency_s more than once")
    assert [len(read_samples(path, held_out)) for held_out in (None, True, False)] == [2, 1, 1]
    assert read_samples(path, True) == [Sample((RequestWork(3, 0),), 0.5)]
    plain = written(tmp_path / "b.csv", f"{HEADER}1,2,3,0.5\n")
    refuse(lambda: read_samples(plain, True), BadInput, "the header has no held_out")
    marked = written(tmp_path / "c.csv", "held_out,batch,new_tokens,cached_tokens,latency_s\nyes,a,3,0,0.5\n")
    refuse(lambda: read_samples(marked, False), BadInput, "line 2: held_out must be 0 or 1, not 'yes'")
    refuse(lambda: read_samples(written(plain, path.read_text().replace("1,a", "0,a")), True), BadInput, "held_out = 1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("batch,new_tokens,latency_s\n1,2,3\n", "line 1: the header has no cached_tokens"),
        (HEADER, "has no rows"),
        (f"{HEADER}1,2,3,0.5\n1,2,3,0.6\n", "line 3: batch 1 takes 0.6 s here and 0.5 s in line 2"),
        (f"{HEADER}1,2,3\n", "line 2: 3 cells"),
        (f"{HEADER}1,2,three,0.5\n", "line 2: cached_tokens must be a number, not 'three'"),
        (f"{HEADER}1,2.5,3,0.5\n", "line 2: new_tokens must be a whole number, 0 to 2147483648, not 2.5"),
        (f"{HEADER}1,1e23,3,0.5\n", "line 2: new_tokens must be a whole number, 0 to 2147483648, not 1e+23"),
        (f"{HEADER}1,2,-3,0.5\n", "line 2: cached_tokens must be a whole number, 0 to 2147483648, not -3"),
        (f"{HEADER}1,2,3,0\n", "line 2: latency_s must be positive, and 86400 at most, not 0"),
        (f"{HEADER}1,2,3,nan\n", "line 2: latency_s must be finite"),
        (f"{HEADER},2,3,0.5\n", "line 2: batch is empty"),
        (f'{HEADER}"1,2,3,0.5\n', "line 2"),
        ("", "is empty"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        read_samples(written(tmp_path / "a.csv", text))
    assert said in str(caught.value) and "\n" not in str(caught.value)


# ---------------------------------------------------------------- online


def scaled(truth: Coefficients, factor: float) -> Coefficients:
    return Coefficients(*(factor * value for value in truth.values))


def watched(start: Coefficients, passes: Sequence[Sample], config: OnlineConfig | None = None) -> OnlineEstimator:
    online = OnlineEstimator(start, config)
    for batch, latency_s in passes:
        online.observe(batch, latency_s)
    return online


def mape(found: Coefficients, truth: Coefficients) -> float:
    return float(np.mean([abs(found.batch_s(b) / truth.batch_s(b) - 1) for b in batches(200, 77)]))


def test_the_online_estimate_minimises_the_stated_objective() -> None:
    truth = Coefficients(a=5e-5, b_compute=1e-7, b_read=4e-6, c=0.015)  # no term is small
    passes, start = measured(truth, 60, 0.02, 20), scaled(truth, 1.02)
    online = OnlineEstimator(start, OnlineConfig(memory=30, spread=0.1, prior_spread=0.2))
    rows, spreads_s = [], []
    for batch, latency_s in passes:
        rows.append([sum(w.new for w in batch), sum((w.new + w.cached) * w.new for w in batch)])
        rows[-1] += [sum(w.cached for w in batch), 1]
        spreads_s.append(0.1 * online.coefficients.batch_s(batch))
        online.observe(batch, latency_s)
    begun, times_s = np.array(start.values), np.array([s.latency_s for s in passes])
    weights = np.exp(-np.arange(len(passes))[::-1] / 30) ** 0.5 / np.array(spreads_s)
    stacked = np.vstack([np.array(rows) * weights[:, None] * begun, np.eye(4) / 0.2])
    aims = np.concatenate([times_s * weights, np.full(4, 1 / 0.2)])
    by_hand = np.linalg.lstsq(stacked, aims, rcond=None)[0] * begun
    assert online.coefficients.values == pytest.approx(by_hand, rel=1e-6)


def test_wrong_coefficients_are_corrected_and_reported() -> None:
    passes = measured(TRUTH, 400, 0.03, 21)
    online = watched(scaled(TRUTH, 1.6), passes)
    assert mape(online.coefficients, TRUTH) < 0.02 < mape(scaled(TRUTH, 1.6), TRUTH)
    assert online.drifted and online.bias < 0 and online.passes == 400
    online.rebase()
    assert not online.drifted
    for batch, latency_s in measured(TRUTH, 400, 0.03, 22):
        online.observe(batch, latency_s)
    assert not online.drifted


def test_no_drift_is_reported_without_changes() -> None:
    quiet = [watched(TRUTH, measured(TRUTH, 500, 0.1, 30 + seed)) for seed in range(6)]
    assert sum(online.drifted for online in quiet) <= 1  # once in ten thousand passes
    assert all(mape(online.coefficients, TRUTH) < 0.03 for online in quiet)


@pytest.mark.parametrize("factor", [1.3, 0.7])
def test_drift_is_noticed_within_a_dozen_passes_and_followed(factor: float) -> None:
    online = watched(TRUTH, measured(TRUTH, 300, 0.05, 40), OnlineConfig(memory=50))
    assert not online.drifted
    for number, (batch, latency_s) in enumerate(measured(scaled(TRUTH, factor), 300, 0.05, 41)):
        online.observe(batch, latency_s)
        if number == 11:
            assert online.drifted
    assert online.drifted and mape(online.coefficients, scaled(TRUTH, factor)) < 0.03


def test_a_single_outlier_is_not_drift_and_changes_little() -> None:
    online = watched(TRUTH, measured(TRUTH, 200, 0.05, 50))
    (batch, latency_s), before = measured(TRUTH, 1, 0.0, 51)[0], online.coefficients
    online.observe(batch, 50 * latency_s)
    assert not online.drifted and mape(online.coefficients, before) < 0.06


def test_unobserved_coefficients_keep_their_value() -> None:
    alike = [Sample((RequestWork(5, 400),) * 4, 1.2 * TRUTH.batch_s([RequestWork(5, 400)] * 4))] * 3000
    online = watched(TRUTH, alike, OnlineConfig(memory=20))
    assert online.coefficients.batch_s([RequestWork(5, 400)] * 4) == pytest.approx(alike[0].latency_s, rel=0.01)
    assert 0.5 < online.coefficients.b_compute / TRUTH.b_compute < 2
    assert 0.5 < online.coefficients.a / TRUTH.a < 2


def test_a_term_that_began_at_0_can_be_learnt() -> None:
    blind = Coefficients(a=TRUTH.a, b_compute=0.0, b_read=0.0, c=TRUTH.c)
    online = watched(blind, measured(TRUTH, 600, 0.02, 60))
    assert mape(online.coefficients, TRUTH) < 0.04


def test_invalid_passes_are_refused_and_change_nothing() -> None:
    online = OnlineEstimator(TRUTH)
    for batch, latency_s in (([], 0.1), ([RequestWork(1, 1)], 0.0), ([RequestWork(1, 1)], float("nan"))):
        with pytest.raises(BadInput):
            online.observe(batch, latency_s)
    assert online.passes == 0 and online.coefficients == TRUTH
    for wrong in (
        {"memory": 0.5},
        {"spread": 0.0},
        {"prior_spread": -1.0},
        {"alarm": float("nan")},
        {"allowance": 0.0},
    ):
        with pytest.raises(BadInput):
            OnlineConfig(**wrong)
