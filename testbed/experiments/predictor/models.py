"""The four families of rejection predictors and their hyper-parameter search spaces (WISP Table 9).

The paper gives values for the MLP only; those of the tree models are chosen here around the libraries' defaults, with
at most 64 leaves per tree.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.experiments.predictor.export import Arrays, forest_arrays, lightgbm_arrays, mlp_arrays, xgboost_arrays
from testbed.experiments.predictor.traces import Traces
from testbed.ue.windows.predictor import FEATURES, MOST_LEAVES

Space = dict[str, list[Any]]
Fitted = tuple[str, Arrays]
"""Form and arrays of an exported model."""

PATIENCE_ROUNDS = 30
"""Boosting stops after this number of trees without improvement on validation data."""
PATIENCE_EPOCHS = 4

_BOOSTED: Space = {
    "n_estimators": [100, 200, 300],
    "learning_rate": [0.03, 0.05, 0.1, 0.2],
    "subsample": [0.7, 0.85, 1.0],
    "colsample_bytree": [0.6, 0.8, 1.0],
    "reg_lambda": [0.1, 1.0, 10.0],
    "reg_alpha": [0.0, 0.1, 1.0],
}
SPACES: dict[str, Space] = {
    "mlp": {
        "hidden": [[32, 16], [64, 32, 16], [128, 64, 32], [512, 128, 64]],
        "learning_rate": [1e-5, 1e-4, 3e-4, 1e-3],
        "batch_size": [32, 64, 128, 256],
        "dropout": [0.0, 0.1, 0.2, 0.3],
        "batch_norm": [False, True],
        "max_epochs": [20],
    },
    "lightgbm": {
        **_BOOSTED,
        "num_leaves": [7, 15, 31, 63],
        "max_depth": [-1, 4, 6, 8],
        "min_child_samples": [5, 20, 100],
    },
    "xgboost": {**_BOOSTED, "max_depth": [3, 4, 5, 6], "min_child_weight": [1, 5, 20], "gamma": [0.0, 0.1, 1.0]},
    "forest": {
        "n_estimators": [100, 200, 300],
        "max_depth": [4, 6, 8, None],
        "min_samples_split": [2, 10, 50],
        "min_samples_leaf": [1, 5, 20],
        "max_features": ["sqrt", 0.6, None],
    },
}


def draw(space: Space, rng: np.random.Generator) -> dict[str, Any]:
    """Draw one combination of hyper-parameters at random."""
    return {name: values[int(rng.integers(len(values)))] for name, values in space.items()}


def fit_lightgbm(params: dict[str, Any], train: Traces, held: Traces, seed: int) -> Fitted:
    """Histogram-based gradient boosting with early stopping."""
    import lightgbm

    model = lightgbm.LGBMClassifier(
        **params, subsample_freq=1, random_state=seed, n_jobs=1, deterministic=True, force_row_wise=True, verbose=-1
    )
    stop = lightgbm.early_stopping(PATIENCE_ROUNDS, verbose=False)
    model.fit(train.features, train.accepted, eval_X=held.features, eval_y=held.accepted, callbacks=[stop])
    return "trees", lightgbm_arrays(model.booster_)


def fit_xgboost(params: dict[str, Any], train: Traces, held: Traces, seed: int) -> Fitted:
    """Gradient boosting with early stopping."""
    import xgboost

    model = xgboost.XGBClassifier(
        **params, base_score=0.5, early_stopping_rounds=PATIENCE_ROUNDS, random_state=seed, n_jobs=1
    )
    model.fit(train.features, train.accepted, eval_set=[(held.features, held.accepted)], verbose=False)
    return "trees", xgboost_arrays(model.get_booster(), model.best_iteration + 1)


def fit_forest(params: dict[str, Any], train: Traces, held: Traces, seed: int) -> Fitted:
    """A random forest."""
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(**params, max_leaf_nodes=MOST_LEAVES, random_state=seed, n_jobs=1)
    model.fit(train.features, train.accepted)
    return "trees", forest_arrays(model)


def fit_mlp(params: dict[str, Any], train: Traces, held: Traces, seed: int) -> Fitted:
    """Multilayer perceptron: binary cross-entropy, Adam, early stopping; keeps the best epoch."""
    import torch

    mean, std = train.features.mean(0, dtype=np.float64), train.features.std(0, dtype=np.float64)
    std = np.where(std > 0, std, 1.0)
    x, y = _tensors(train, mean, std)
    held_x, held_y = _tensors(held, mean, std)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for layers this small, threads only add overhead
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = mlp(params)
        adam = torch.optim.Adam(net.parameters(), lr=params["learning_rate"])
        loss_of = torch.nn.functional.binary_cross_entropy_with_logits
        best, best_loss, waited = copy.deepcopy(net.state_dict()), np.inf, 0
        for _ in range(params["max_epochs"]):
            net.train()
            for rows in torch.randperm(len(x)).split(params["batch_size"]):
                if params["batch_norm"] and len(rows) < 2:
                    continue
                adam.zero_grad(set_to_none=True)
                loss_of(net(x[rows])[:, 0], y[rows]).backward()
                adam.step()
            net.eval()
            with torch.no_grad():
                loss = float(loss_of(net(held_x)[:, 0], held_y))
            if loss < best_loss:
                best, best_loss, waited = copy.deepcopy(net.state_dict()), loss, 0
            elif (waited := waited + 1) == PATIENCE_EPOCHS:
                break
        net.load_state_dict(best)
    torch.set_num_threads(threads)
    return "mlp", mlp_arrays(net.eval(), mean, std)


def mlp(params: dict[str, Any]) -> Any:
    """A torch network with one output logit."""
    from torch import nn

    layers: list[nn.Module] = []
    width = len(FEATURES)
    for hidden in params["hidden"]:
        layers.append(nn.Linear(width, hidden))
        if params["batch_norm"]:
            layers.append(nn.BatchNorm1d(hidden))
        layers += [nn.ReLU(), nn.Dropout(params["dropout"])]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, 1))


def _tensors(traces: Traces, mean: NDArray[np.float64], std: NDArray[np.float64]) -> Any:
    import torch

    scaled = ((traces.features - mean) / std).astype(np.float32)
    return torch.from_numpy(scaled), torch.from_numpy(traces.accepted.astype(np.float32))


Fit = Callable[[dict[str, Any], Traces, Traces, int], Fitted]
FAMILIES: dict[str, Fit] = {
    "mlp": fit_mlp,
    "lightgbm": fit_lightgbm,
    "xgboost": fit_xgboost,
    "forest": fit_forest,
}
