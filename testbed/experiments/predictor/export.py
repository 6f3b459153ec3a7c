"""Exports trained models to the plain arrays that `testbed.ue.windows.predictor` evaluates."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Arrays: TypeAlias = dict[str, NDArray[Any]]


class TreeNode(NamedTuple):
    """A tree node: a leaf with `value` if `feature` is -1; otherwise left if x[feature] <= threshold."""

    feature: int
    threshold: float = 0.0
    left: TreeNode | None = None
    right: TreeNode | None = None
    value: float = 0.0


def lightgbm_arrays(booster: Any) -> Arrays:
    """Trees of a binary LightGBM `Booster`; the score is its raw score."""

    def node(of: dict[str, Any]) -> TreeNode:
        if "leaf_value" in of:
            return TreeNode(-1, value=of["leaf_value"])
        return TreeNode(of["split_feature"], of["threshold"], node(of["left_child"]), node(of["right_child"]))

    return _flat([node(tree["tree_structure"]) for tree in booster.dump_model()["tree_info"]])


def xgboost_arrays(booster: Any, rounds: int) -> Arrays:
    """The first `rounds` trees of a binary XGBoost `Booster` with base score 0.5; the score is its margin.

    XGBoost branches left if x < t in 32-bit floats, which equals x <= the float before t.
    """

    def node(of: dict[str, Any]) -> TreeNode:
        if "leaf" in of:
            return TreeNode(-1, value=float(np.float32(of["leaf"])))
        child = {c["nodeid"]: c for c in of["children"]}
        below = np.nextafter(np.float32(of["split_condition"]), np.float32(-np.inf))
        return TreeNode(int(of["split"].removeprefix("f")), float(below), node(child[of["yes"]]), node(child[of["no"]]))

    return _flat([node(json.loads(text)) for text in booster.get_dump(dump_format="json")[:rounds]])


def forest_arrays(forest: Any) -> Arrays:
    """Trees of a binary scikit-learn `RandomForestClassifier`; the score is its probability of class 1."""
    count = len(forest.estimators_)

    def node(tree: Any, i: int) -> TreeNode:
        if tree.children_left[i] < 0:
            of_class = tree.value[i, 0]
            return TreeNode(-1, value=float(of_class[1] / of_class.sum()) / count)
        left, right = node(tree, tree.children_left[i]), node(tree, tree.children_right[i])
        return TreeNode(int(tree.feature[i]), float(tree.threshold[i]), left, right)

    return _flat([node(one.tree_, 0) for one in forest.estimators_])


def _flat(trees: list[TreeNode]) -> Arrays:
    """Nodes in depth-first order, parents before children, left before right."""
    rows: list[list[float]] = []

    def add(node: TreeNode) -> int:
        place = len(rows)
        rows.append([node.feature, node.threshold, 0, 0, node.value])
        if node.left is not None and node.right is not None:
            rows[place][2] = add(node.left)
            rows[place][3] = add(node.right)
        return place

    roots = [add(tree) for tree in trees]
    table = np.array(rows, np.float64)
    return {
        "feature": table[:, 0].astype(np.int8),
        "threshold": table[:, 1],
        "left": table[:, 2].astype(np.int32),
        "right": table[:, 3].astype(np.int32),
        "value": table[:, 4],
        "roots": np.array(roots, np.int32),
        "base": np.zeros(1),
    }


def mlp_arrays(net: Any, mean: NDArray[np.float64], std: NDArray[np.float64]) -> Arrays:
    """Layers of a torch `Sequential` in evaluation mode, in blocks of Linear, BatchNorm1d, ReLU and Dropout.

    Args:
        mean, std: scaling of the inputs, [5] each.
    """
    from torch import nn

    layers: list[list[NDArray[np.float64]]] = []
    for module in net:
        if isinstance(module, nn.Linear):
            layers.append([_numbers(module.weight).T, _numbers(module.bias)])
        elif isinstance(module, nn.BatchNorm1d):
            scale = _numbers(module.weight) / np.sqrt(_numbers(module.running_var) + module.eps)
            w, b = layers[-1]
            layers[-1] = [w * scale, (b - _numbers(module.running_mean)) * scale + _numbers(module.bias)]
    w, b = layers[0]
    layers[0] = [w / std[:, None], b - (mean / std) @ w]
    return {f"{name}{i}": array for i, pair in enumerate(layers) for name, array in zip("wb", pair, strict=True)}


def _numbers(tensor: Any) -> NDArray[np.float64]:
    found: NDArray[np.float64] = tensor.detach().double().numpy()
    return found
