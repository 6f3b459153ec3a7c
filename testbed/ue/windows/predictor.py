"""The rejection predictor: how likely the verifier is to accept a drafted token, by what the drafter thought of it
(WISP, Section 4.1 and Appendix B). numpy alone.

A predictor is a directory: `predictor.json` (`PredictorInfo`) and `predictor.npz` (its arrays).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.files import file_bytes, make_folder, whole_file
from testbed.ue.drafters.base import DraftToken
from testbed.ue.windows.predictor_files import check_arrays, check_layers, check_shares
from testbed.unpacked.arrays import npz_arrays

FEATURES = ("top1", "entropy", "margin", "logit_std", "position")
"""WISP names four of its five features; the position in the window, from 1, is our choice of the fifth."""
MOST_LEAVES = 64
"""Maximum number of leaves of a tree: each is one bit of a 64-bit word."""
MOST_WORDS = 2**26
"""Largest product of nodes and trees: half a gigabyte of bit vectors."""
Arrays = Mapping[str, NDArray[Any]]


def features(token: DraftToken, position: int) -> tuple[float, ...]:
    """Features of the `position`-th token of a window, counted from 1."""
    return token.top1, token.entropy, token.margin, token.logit_std, float(position)


class AcceptanceLabels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the tokens were accepted that a predictor was trained on: greedily under a judge, or by sampling."""

    temperature: float = 0.0
    """Temperature of rejection sampling; 0: greedy."""
    top_k: int = 0
    top_p: float = 1.0
    judge: str = "strict"
    head: str | None = None
    """Decision head of the judge."""
    threshold: float = 0.0
    """θ."""

    def __str__(self) -> str:
        if self.temperature > 0:
            return f"by rejection sampling at temperature {self.temperature:g}"
        if self.threshold > 0:
            return f"by greedy decoding under judge {self.judge} at θ = {self.threshold:g}"
        return "by greedy decoding under the strict judge"


class PredictorInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Kind of a predictor, and the pair of models that it was trained for."""

    schema: int = 1
    model: str
    """mlp, lightgbm, xgboost or forest."""
    form: Literal["mlp", "trees"]
    features: tuple[str, ...] = FEATURES
    drafter_fingerprint: str
    target_fingerprint: str
    labels: AcceptanceLabels = AcceptanceLabels()
    recall: float
    """Share of accepted tokens that the threshold was to find, on validation data."""
    threshold: float
    """Predicted accepted: an acceptance probability of at least this."""
    platt: tuple[float, float]
    """(a, b): the acceptance probability is sigmoid(a·score + b), fitted on validation data."""
    trained: dict[str, Any] = {}
    """Data, sizes, hyper-parameters, seed."""
    metrics: dict[str, float] = {}
    """Metrics on validation data, at the threshold."""


class Scorer(Protocol):
    """The model's own output, before calibration: log-odds, or a forest's share of votes."""

    def score(self, x: Sequence[float]) -> float:
        """Score of one token, given its features [5]."""

    def scores(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Scores [n] of many tokens [n, 5]."""


class PredictorMlp:
    """Layers of `x @ w + b` with ReLU between them; scaling and batch normalisation are folded in.

    Raises:
        ValueError: arrays `w0`, `b0`, `w1`, … that do not fit.
    """

    def __init__(self, arrays: Arrays) -> None:
        count = sum(name.startswith("w") for name in arrays)
        self._weights = [np.ascontiguousarray(arrays[f"w{i}"], np.float64) for i in range(count)]
        self._biases = [np.ascontiguousarray(arrays[f"b{i}"], np.float64) for i in range(count)]
        check_layers(self._weights, self._biases, len(FEATURES))
        self._hidden = list(zip(self._weights[:-1], self._biases[:-1], strict=True))
        self._last, self._bias = self._weights[-1][:, 0].copy(), float(self._biases[-1][0])

    def score(self, x: Sequence[float]) -> float:
        """See `Scorer`."""
        h = np.array(x, np.float32).astype(np.float64)
        for w, b in self._hidden:
            h = h @ w
            h += b
            np.maximum(h, 0.0, out=h)
        return float(h @ self._last) + self._bias

    def scores(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """See `Scorer`."""
        h = x.astype(np.float64)
        for w, b in self._hidden:
            h = np.maximum(h @ w + b, 0.0)
        found: NDArray[np.float64] = h @ self._last + self._bias
        return found


class Trees:
    """A sum of decision trees, all walked at once by bit vectors (QuickScorer, Lucchese et al., SIGIR 2015).

    A word per tree has a bit per leaf, leftmost lowest. A node whose test x <= t fails rules out the leaves on its
    left; for each feature and each rank of its value among all thresholds, the words that are left are kept ready.
    The lowest bit of their conjunction over the features is the leaf that a walk from the root would end in.

    Args:
        arrays: of all nodes, tree by tree: `feature` (-1: a leaf), `threshold`, `left`, `right` (numbers of nodes),
            `value` (of leaves); `roots` (number of each tree's first node); `base` [1], added to the sum.

    Raises:
        ValueError: arrays that are no trees, too many trees, or a tree of more than 64 leaves.
    """

    def __init__(self, arrays: Arrays) -> None:
        feature, threshold = arrays["feature"], arrays["threshold"].astype(np.float64)
        roots = arrays["roots"].tolist()
        if len(feature) * len(roots) > MOST_WORDS:
            raise ValueError(f"{len(roots)} trees of {len(feature)} nodes in all")
        self._base = float(arrays["base"][0])
        self._values = np.zeros((len(roots), MOST_LEAVES))
        self._offsets = np.arange(len(roots), dtype=np.int64) * MOST_LEAVES - 1023
        masks = np.full(len(feature), ~np.uint64(0), np.uint64)
        tree_of = np.zeros(len(feature), np.int64)
        nodes_of = tuple(arrays[name].tolist() for name in ("feature", "left", "right", "value"))
        for tree, root in enumerate(roots):
            self._number(tree, root, nodes_of, masks, tree_of)
        self._ranks: list[list[float]] = []
        self._words: list[NDArray[np.uint64]] = []
        for f in range(len(FEATURES)):
            nodes = np.flatnonzero(feature == f)
            known = np.unique(threshold[nodes])
            words = np.full((len(known) + 1, len(roots)), ~np.uint64(0), np.uint64)
            ranks = np.searchsorted(known, threshold[nodes]) + 1
            np.bitwise_and.at(words, (ranks, tree_of[nodes]), masks[nodes])
            self._words.append(np.bitwise_and.accumulate(words, axis=0))
            self._ranks.append(known.tolist())
        self._flat = self._values.reshape(-1)

    def _number(
        self, tree: int, root: int, nodes: Sequence[list[Any]], masks: NDArray[np.uint64], tree_of: NDArray[np.int64]
    ) -> None:
        """Number a tree's leaves from the left, and note of each node which leaves its failing rules out."""
        feature, left, right, value = nodes
        count = 0

        def walk(node: int) -> None:
            nonlocal count
            tree_of[node] = tree
            if feature[node] < 0:
                if count == MOST_LEAVES:
                    raise ValueError(f"a tree of more than {MOST_LEAVES} leaves")
                self._values[tree, count] = value[node]
                count += 1
                return
            if not feature[node] < len(FEATURES) or min(left[node], right[node]) <= node:
                raise ValueError(f"node {node} is none of a tree")
            first = count
            walk(left[node])
            ruled_out = (1 << count) - (1 << first)
            masks[node] = np.uint64((2**MOST_LEAVES - 1) ^ ruled_out)
            walk(right[node])

        walk(root)

    def score(self, x: Sequence[float]) -> float:
        """See `Scorer`."""
        words, ranks = self._words, self._ranks
        values = np.array(x, np.float32).tolist()
        left = words[0][bisect_left(ranks[0], values[0])]
        for f in range(1, len(words)):
            left = left & words[f][bisect_left(ranks[f], values[f])]
        return self._base + float(np.add.reduce(self._flat.take(self._leaves(left))))

    def scores(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """See `Scorer`."""
        left = np.full((len(x), len(self._values)), ~np.uint64(0), np.uint64)
        for f, (words, ranks) in enumerate(zip(self._words, self._ranks, strict=True)):
            left &= words[np.searchsorted(ranks, x[:, f].astype(np.float64))]
        found: NDArray[np.float64] = self._base + self._flat.take(self._leaves(left)).sum(axis=-1)
        return found

    def _leaves(self, left: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Places in `_flat` of the lowest bits [..., trees]: the exponent of a power of two as a float is its place."""
        lowest = left & (~left + np.uint64(1))
        leaves: NDArray[np.int64] = (lowest.astype(np.float64).view(np.int64) >> 52) + self._offsets
        return leaves


FORMS: dict[str, Callable[[Arrays], Scorer]] = {"mlp": PredictorMlp, "trees": Trees}


class RejectionPredictor:
    """Acceptance probabilities of drafted tokens."""

    def __init__(self, info: PredictorInfo, arrays: Arrays) -> None:
        """Set up from its parts.

        Raises:
            BadInput: parts that do not go together.
        """
        if info.schema != 1 or info.features != FEATURES:
            raise BadInput(f"this version reads predictors of schema 1 that see {', '.join(FEATURES)}")
        check_shares(recall=info.recall, threshold=info.threshold)
        self.info = info
        self.arrays = dict(arrays)
        try:
            check_arrays({**arrays, "platt": np.array(info.platt)})
            self._scorer: Scorer = FORMS[info.form](arrays)
        except (KeyError, ValueError, TypeError, IndexError, RecursionError) as exc:
            raise BadInput(f"the arrays of predictor {info.model} do not make one: {exc}") from exc

    def accept_probability(self, token: DraftToken, position: int) -> float:
        """Probability that the `position`-th token of a window (from 1) is accepted, given that all before it are."""
        return self.probability(features(token, position))

    def probability(self, x: Sequence[float]) -> float:
        """Acceptance probability of one token, given its features [5]."""
        a, b = self.info.platt
        z = a * self._scorer.score(x) + b
        return 1.0 / (1.0 + math.exp(-z)) if z > -500.0 else 0.0

    def probabilities(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Acceptance probabilities [n] of many tokens [n, 5]."""
        a, b = self.info.platt
        found: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-np.clip(a * self.scores(x) + b, -500.0, 500.0)))
        return found

    def scores(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """The model's own output [n] for many tokens [n, 5], before calibration."""
        return self._scorer.scores(x)

    def check_drafter(self, fingerprint: str) -> None:
        """Refuse another drafter than the one that this was trained for.

        Raises:
            BadInput: it is another one.
        """
        if fingerprint != self.info.drafter_fingerprint:
            raise BadInput(
                f"the predictor was trained for drafter {self.info.drafter_fingerprint}, this one is {fingerprint}; "
                "train one for it with `testbed predictor collect` and `train`, or use --window-rule fixed"
            )


def save_predictor(predictor: RejectionPredictor, directory: Path) -> None:
    """Write a predictor's directory.

    Raises:
        BadInput: it cannot be written.
    """
    make_folder(directory)
    with whole_file(directory / "predictor.npz") as part, part.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **predictor.arrays)
    with whole_file(directory / "predictor.json") as part:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(predictor.info), indent=1) + b"\n")


def load_predictor(directory: Path) -> RejectionPredictor:
    """Read a predictor's directory.

    Raises:
        BadInput: there is none, or it cannot be read.
    """
    try:
        info = msgspec.json.decode(file_bytes(directory / "predictor.json"), type=PredictorInfo)
        arrays = npz_arrays(directory / "predictor.npz")
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadInput) as exc:
        raise BadInput(f"no predictor in {directory} ({exc}); `testbed predictor train` makes one") from exc
    return RejectionPredictor(info, arrays)
