"""Trains rejection predictors: searches every family, calibrates, chooses thresholds, and selects the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from testbed.config import Config
from testbed.errors import BadInput
from testbed.experiments.predictor.models import FAMILIES, SPACES, Fitted, draw
from testbed.experiments.predictor.scores import fpr_at_recall, scores_of, threshold_for
from testbed.experiments.predictor.traces import TraceMeta, Traces, TraceStore, split
from testbed.experiments.results.claims import reserved
from testbed.options import option
from testbed.ue.windows.predictor import PredictorInfo, RejectionPredictor, load_predictor, save_predictor

Progress = Callable[[int, int, str], None]
"""Called with the numbers of finished and of all trials, and the current family."""


class TrainConfig(Config, frozen=True):
    """Configuration of `testbed predictor train`."""

    recall: Annotated[
        float, option("Share of accepted tokens that must be predicted accepted.", above=0, below=1, panel="Training")
    ] = 0.8
    trials: Annotated[int, option("Hyper-parameter combinations tried per model.", least=1)] = 6
    validation: Annotated[
        float, option("Share of the prompts kept for model choice, early stopping, calibration and thresholds.")
    ] = 0.25
    seed: Annotated[int, option("Seed of the split, the search and the models.", least=0)] = 0
    models: Annotated[tuple[str, ...], option("Models, separated by commas.", kinds="predictors", panel="Training")] = (
        tuple(FAMILIES)
    )


def train(config: TrainConfig, data: Path, out: Path, progress: Progress) -> dict[str, RejectionPredictor]:
    """Train every family, write `out/FAMILY/`, and the best predictor to `out` itself; returns them by family.

    The best, within and across families, has the lowest false-positive rate on validation data at the required recall;
    ties are broken by the higher AUC.

    Raises:
        BadInput: an invalid configuration, unusable data, or an `out` with files or in use.
    """
    _check(config)
    store = TraceStore(data)
    meta = store.meta()
    fitted, held = split(store.load(), config.validation, config.seed)
    for part in (fitted, held):
        if len(np.unique(part.accepted)) < 2:
            raise BadInput(f"{data} contains accepted or rejected tokens only; collect more prompts")
    found, done, total = dict[str, RejectionPredictor](), 0, len(config.models) * config.trials
    with reserved(out):
        for family in config.models:
            candidates = []
            for trial, params in enumerate(_trials(family, config)):
                progress(done, total, family)
                model = FAMILIES[family](params, fitted, held, config.seed)
                facts = {"hyper_parameters": params, "trial": trial}
                candidates.append(_finished(config, meta, family, model, (fitted, held), facts))
                done += 1
            found[family] = min(candidates, key=_merit)
            save_predictor(found[family], out / family)
        progress(done, done, "done")
        save_predictor(min(found.values(), key=_merit), out)
    return found


def _check(config: TrainConfig) -> None:
    if unknown := [m for m in config.models if m not in FAMILIES]:
        raise BadInput(f"unknown model {', '.join(unknown)}; known: {', '.join(FAMILIES)}")
    if not config.models:
        raise BadInput(f"give at least one model; known: {', '.join(FAMILIES)}")


def _trials(family: str, config: TrainConfig) -> Sequence[dict[str, Any]]:
    """Distinct random combinations of hyper-parameters."""
    rng = np.random.default_rng([config.seed, list(FAMILIES).index(family)])
    found: list[dict[str, Any]] = []
    for _ in range(100 * config.trials):
        if len(found) < config.trials and (one := draw(SPACES[family], rng)) not in found:
            found.append(one)
    return found


def _merit(predictor: RejectionPredictor) -> tuple[float, float]:
    metrics = predictor.info.metrics
    return metrics["fpr_at_recall"], -metrics["auc"]


def _finished(
    config: TrainConfig,
    meta: TraceMeta,
    family: str,
    model: Fitted,
    parts: tuple[Traces, Traces],
    facts: dict[str, Any],
) -> RejectionPredictor:
    """Calibrate a model, choose its threshold and score it, all on the validation data."""
    form, arrays = model
    fitted, held = parts
    info = PredictorInfo(
        model=family,
        form=form,  # type: ignore[arg-type]
        drafter_fingerprint=meta.drafter_fingerprint,
        target_fingerprint=meta.target_fingerprint,
        labels=meta.labels,
        recall=config.recall,
        threshold=0.5,
        platt=(1.0, 0.0),
        trained={
            **facts,
            "dataset": meta.dataset,
            "first": meta.first,
            "prompts": meta.prompts,
            "prompts_used": fitted.prompts + held.prompts,
            "window": meta.window,
            "seed": config.seed,
            "samples": len(fitted) + len(held),
            "accepted": int(fitted.accepted.sum() + held.accepted.sum()),
            "validation_samples": len(held),
            "calibration": "Platt, on validation data",
        },
    )
    scores = RejectionPredictor(info, arrays).scores(held.features)
    info = msgspec.structs.replace(info, platt=platt(scores, held.accepted))
    probabilities = RejectionPredictor(info, arrays).probabilities(held.features)
    threshold = threshold_for(held.accepted, probabilities, config.recall)
    metrics = scores_of(held.accepted, probabilities, threshold).numbers()
    metrics["fpr_at_recall"] = fpr_at_recall(held.accepted, probabilities, config.recall)
    return RejectionPredictor(msgspec.structs.replace(info, threshold=threshold, metrics=metrics), arrays)


def platt(scores: NDArray[np.float64], accepted: NDArray[np.uint8]) -> tuple[float, float]:
    """(a, b) of sigmoid(a·score + b) by maximum likelihood."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=np.inf).fit(scores[:, None], accepted)
    return float(model.coef_[0, 0]), float(model.intercept_[0])


def load_families(directory: Path) -> dict[str, RejectionPredictor]:
    """Load the predictors written by `train`, by family, or a single one from its own directory.

    Raises:
        BadInput: no predictor found.
    """
    found = {name: load_predictor(directory / name) for name in FAMILIES if (directory / name).is_dir()}
    if found:
        return found
    one = load_predictor(directory)
    return {one.info.model: one}
