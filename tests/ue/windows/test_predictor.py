"""The rejection predictor: exported models against their own libraries, one token against many, refused files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import BadInput
from testbed.experiments.predictor.export import forest_arrays, lightgbm_arrays, mlp_arrays, xgboost_arrays
from testbed.experiments.predictor.models import mlp
from testbed.ue.windows.predictor import FEATURES, RejectionPredictor, features, load_predictor, save_predictor
from tests.support.predictors import Arrays, info, stump, token


def data(seed: int, count: int) -> tuple[Any, Any]:
    """Inputs with ties and equal values, as statistics have them, and labels that depend on three of them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, len(FEATURES))).astype(np.float32)
    x[:, 4] = rng.integers(1, 9, count)
    x[::3, 1] = np.round(x[::3, 1], 1)
    y = (x[:, 0] + x[:, 1] * x[:, 2] + 0.2 * (x[:, 4] > 4) + rng.normal(size=count) > 0).astype(np.uint8)
    return x, y


def lightgbm_pair() -> tuple[Arrays, Any]:
    import lightgbm

    x, y = data(0, 1500)
    model = lightgbm.LGBMClassifier(n_estimators=60, num_leaves=64, n_jobs=1, verbose=-1).fit(x, y)
    return lightgbm_arrays(model.booster_), lambda z: model.booster_.predict(z)


def xgboost_pair() -> tuple[Arrays, Any]:
    import xgboost

    x, y = data(0, 1500)
    model = xgboost.XGBClassifier(n_estimators=60, max_depth=6, base_score=0.5, n_jobs=1).fit(x, y)
    return xgboost_arrays(model.get_booster(), 45), lambda z: model.predict_proba(z, iteration_range=(0, 45))[:, 1]


def mlp_pair() -> tuple[Arrays, Any]:
    import torch

    torch.manual_seed(0)
    net = mlp({"hidden": [512, 128, 64], "batch_norm": True, "dropout": 0.3})
    mean, std = np.array([0.1, 2.0, -1.0, 0.0, 4.5]), np.array([0.5, 2.0, 1.0, 3.0, 2.3])
    with torch.no_grad():
        net[-1].weight *= 40.0  # so that it says yes and no
    for _ in range(3):  # so that the running statistics are not those of a new network
        net(torch.randn(64, 5) * 2 + 1)
    net.eval()
    exact = net.double()

    def predict(x: Any) -> Any:
        with torch.no_grad():
            return torch.sigmoid(exact(torch.from_numpy((x.astype(np.float64) - mean) / std))[:, 0]).numpy()

    return mlp_arrays(net, mean, std), predict


def forest_pair() -> tuple[Arrays, Any]:
    from sklearn.ensemble import RandomForestClassifier

    x, y = data(0, 1500)
    model = RandomForestClassifier(40, max_leaf_nodes=64, random_state=0).fit(x, y)
    return forest_arrays(model), lambda z: 1 / (1 + np.exp(-model.predict_proba(z)[:, 1]))


@pytest.mark.parametrize(
    ("form", "pair"), [("trees", lightgbm_pair), ("trees", xgboost_pair), ("trees", forest_pair), ("mlp", mlp_pair)]
)
def test_an_exported_model_says_what_its_library_says(form: str, pair: Any) -> None:
    arrays, predict = pair()
    predictor = RejectionPredictor(info(form), arrays)
    x = np.concatenate([data(1, 400)[0], data(0, 400)[0]])  # unseen ones, and those that thresholds were taken from
    expected = predict(x)
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(predictor.probabilities(x), expected, atol=1e-6)
    one_by_one = [predictor.probability(tuple(map(float, row))) for row in x]
    np.testing.assert_allclose(one_by_one, predictor.probabilities(x), atol=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(1, 64))
def test_bit_vectors_end_in_the_leaf_of_a_walk(seed: int, leaves: int) -> None:
    rng = np.random.default_rng(seed)
    rows: list[list[float]] = []

    def grow(count: int) -> int:
        place = len(rows)
        rows.append([-1, 0.0, 0, 0, float(rng.normal())])
        if count > 1:
            left = int(rng.integers(1, count))
            rows[place][:2] = [int(rng.integers(5)), float(rng.integers(-3, 4))]
            rows[place][2] = grow(left)
            rows[place][3] = grow(count - left)
        return place

    roots = [grow(leaves), grow(1)]
    table = np.array(rows)
    names = ("feature", "threshold", "left", "right", "value")
    kinds = (np.int8, np.float64, np.int32, np.int32, np.float64)
    arrays: Arrays = {n: table[:, i].astype(k) for i, (n, k) in enumerate(zip(names, kinds, strict=True))}
    arrays |= {"roots": np.array(roots), "base": np.array([0.25])}
    predictor = RejectionPredictor(info("trees"), arrays)
    x = rng.integers(-4, 5, size=(50, 5)).astype(np.float32)  # values on the thresholds too

    def walk(sample: Any, node: int) -> float:
        while rows[node][0] >= 0:
            node = int(rows[node][2] if sample[int(rows[node][0])] <= rows[node][1] else rows[node][3])
        return rows[node][4]

    expected = [0.25 + sum(walk(sample, root) for root in roots) for sample in x]
    np.testing.assert_allclose(predictor.scores(x), expected, atol=1e-12)


def test_features_are_the_five_in_order() -> None:
    assert features(token(0.7), 3) == (0.7, 0.0, 0.0, 0.0, 3.0)
    assert FEATURES == ("top1", "entropy", "margin", "logit_std", "position")


def test_calibration_is_applied_to_the_score() -> None:
    predictor = stump(0.2, 0.9, platt=(2.0, -1.0))
    for top1, p in ((0.1, 0.2), (0.9, 0.9)):
        z = 2 * np.log(p / (1 - p)) - 1
        assert predictor.accept_probability(token(top1), 1) == pytest.approx(1 / (1 + np.exp(-z)))
    assert stump(0.2, 0.9, platt=(-1e6, 0.0)).accept_probability(token(0.9), 1) == 0.0


def test_a_predictor_comes_back_from_its_directory(tmp_path: Path) -> None:
    predictor = stump(0.2, 0.9, trained={"dataset": "x"}, metrics={"auc": 0.7})
    save_predictor(predictor, tmp_path / "p")
    again = load_predictor(tmp_path / "p")
    x = np.random.default_rng(0).random((20, 5)).astype(np.float32)
    assert again.info == predictor.info
    assert (again.probabilities(x) == predictor.probabilities(x)).all()


def test_what_is_no_predictor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no predictor in .*predictor train"):
        load_predictor(tmp_path)
    save_predictor(stump(0.2, 0.9), tmp_path)
    whole = (tmp_path / "predictor.npz").read_bytes()
    damaged = bytes(byte ^ 0x55 if 60 <= at < 90 else byte for at, byte in enumerate(whole))
    for content in (b"nonsense", b"", damaged):
        (tmp_path / "predictor.npz").write_bytes(content)
        with pytest.raises(BadInput, match="no predictor in"):
            load_predictor(tmp_path)
    (tmp_path / "predictor.json").write_text('{"model": "mlp", "colour": "red"}')
    with pytest.raises(BadInput, match="no predictor in"):
        load_predictor(tmp_path)


@pytest.mark.parametrize(
    ("form", "change"),
    [
        ("trees", {"left": np.array([0, 0, 0])}),
        ("trees", {"right": np.array([9, 0, 0])}),
        ("trees", {"feature": np.array([7, -1, -1])}),
        ("trees", {"value": np.zeros(0)}),
        ("trees", {"feature": np.array(["a", "b", "c"])}),
        ("trees", {"left": np.zeros((3, 1), np.int64)}),
        ("trees", {"roots": np.zeros((1, 1), np.int64)}),
        ("mlp", {"w0": np.zeros((4, 1)), "b0": np.zeros(1)}),
        ("mlp", {"w0": np.zeros((5, 3)), "b0": np.zeros(3), "w1": np.zeros((2, 1)), "b1": np.zeros(1)}),
        ("mlp", {"w0": np.zeros((5, 1)), "b0": np.zeros(2)}),
        ("mlp", {"w0": np.zeros((5, 1, 7)), "b0": np.zeros(1)}),
        ("mlp", {"w0": np.full((5, 1), np.nan), "b0": np.zeros(1)}),
        ("mlp", {"w0": np.zeros((5, 1)), "b0": np.full(1, np.inf)}),
        ("mlp", {"w0": np.full((5, 1), 1e300), "b0": np.zeros(1)}),
        ("trees", {"value": np.full(3, np.nan)}),
    ],
)
def test_arrays_that_make_no_model_are_refused(form: str, change: Arrays) -> None:
    with pytest.raises(BadInput, match="do not make one"):
        RejectionPredictor(info(form), stump(0.2, 0.9).arrays | change)


def test_a_tree_of_too_many_leaves_is_refused() -> None:
    count = 65
    inner = np.arange(count - 1)
    arrays: Arrays = {
        "feature": np.concatenate([np.zeros(count - 1), np.full(count, -1)]).astype(np.int8),
        "threshold": np.zeros(2 * count - 1),
        "left": np.concatenate([inner + count - 1, np.zeros(count)]).astype(np.int32),
        "right": np.concatenate([inner[1:], [2 * count - 2], np.zeros(count)]).astype(np.int32),
        "value": np.zeros(2 * count - 1),
        "roots": np.array([0]),
        "base": np.zeros(1),
    }
    with pytest.raises(BadInput, match="more than 64 leaves"):
        RejectionPredictor(info("trees"), arrays)


@pytest.mark.parametrize("name", ["recall", "threshold"])
@pytest.mark.parametrize("value", [-0.1, 7.0, float("nan")])
def test_shares_of_a_predictor_are_such(name: str, value: float) -> None:
    with pytest.raises(BadInput, match=f"{name} of a predictor lies in 0..1"):
        RejectionPredictor(info("trees", **{name: value}), stump(0.2, 0.9).arrays)


@pytest.mark.parametrize("platt", [(float("nan"), 0.0), (1.0, 1e300)])
def test_a_calibration_that_is_no_number_is_refused(platt: tuple[float, float]) -> None:
    with pytest.raises(BadInput, match="platt has values"):
        RejectionPredictor(info("trees", platt=platt), stump(0.2, 0.9).arrays)


def test_another_drafter_is_refused_in_one_line() -> None:
    stump(0.2, 0.9).check_drafter("synthetic")
    with pytest.raises(BadInput, match="trained for drafter synthetic, this one is 0123") as caught:
        stump(0.2, 0.9).check_drafter("0123")
    assert "\n" not in str(caught.value)


def test_other_features_are_refused() -> None:
    with pytest.raises(BadInput, match="top1, entropy"):
        RejectionPredictor(info(features=("top1",)), {})
