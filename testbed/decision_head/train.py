"""Offline training of the decision head on labelled mismatches (WISV Section V-A, eq. 26).

Training runs on one CPU thread, so that a seed gives bit-identical heads on a machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from testbed.channel.csi import FEATURES
from testbed.decision_head.episodes import Meta, Mismatches, split
from testbed.decision_head.head import DecisionHead, HeadInfo
from testbed.decision_head.instances import Instances
from testbed.decision_head.platt import platt
from testbed.decision_head.scores import scores
from testbed.decision_head.settings import Training
from testbed.errors import BadInput
from testbed.protocols.quantise import degrade

OnEpoch = Callable[[int, float, float], None]
"""Called after each epoch with its number, training loss and held-out loss."""
Inputs = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]
"""h_d [m, d_d], h_t [m, d_t] and c [m, F]."""
LEAST_SCALE = 1e-6
"""Inputs with a smaller standard deviation are not scaled."""


class Epoch(NamedTuple):
    """One pass over the training instances."""

    train_loss: float
    held_out_loss: float


class Trained(NamedTuple):
    """A trained head and its training history."""

    head: DecisionHead
    history: list[Epoch]
    best: int
    """Index of the epoch whose weights were kept."""
    held_out: NDArray[np.bool_]
    """[n] mask of mismatches of held-out prompts."""


class _Data(NamedTuple):
    """Standardised inputs: hidden states per mismatch, channel features and labels per instance."""

    hidden: NDArray[np.float32]
    """[n, d_d + d_t]"""
    channel: NDArray[np.float32]
    """[m, F]"""
    row: NDArray[np.int32]
    """[m]"""
    label: NDArray[np.bool_]
    """[m]"""
    held_out: NDArray[np.bool_]
    """[m]"""
    mean: NDArray[np.float32]
    scale: NDArray[np.float32]


def train_head(
    found: Mismatches,
    instances: Instances,
    meta: Meta,
    config: Training,
    on_epoch: OnEpoch = lambda *_: None,
    about: str = "",
) -> Trained:
    """Train a head and calibrate its probabilities on the held-out prompts.

    Class balancing shifts probabilities; Platt scaling, folded into the last layer, corrects this.

    Raises:
        BadInput: fewer than two prompts, training or held-out prompts without both classes, or hidden states that
            are not finite.
    """
    held_out = split(found.prompt, config.held_out, config.seed)
    if not all(np.isfinite(states).all() for states in found.states(config.states)):
        raise BadInput("hidden states in the episodes are not finite: collect them again")
    data = _prepare(found, instances, config, held_out)
    for part, rows in (("training", ~data.held_out), ("held-out", data.held_out)):
        if len(np.unique(data.label[rows])) < 2:
            raise BadInput(f"the {part} prompts need harmless and critical mismatches: collect and label more")
    weights, history, best = _fit(data, config, on_epoch)
    info = HeadInfo(
        drafter_hidden=meta.drafter_hidden, target_hidden=meta.target_hidden, width=config.width,
        features=config.features, drafter_fingerprint=meta.drafter_fingerprint,
        target_fingerprint=meta.target_fingerprint, drafter_quantisation=meta.drafter_quantisation,
        hidden_bits=config.hidden_bits, states=config.states, about=about,
    )  # fmt: skip
    head = DecisionHead(info, **weights, mean=data.mean, scale=data.scale)
    seen = instances.take(data.held_out)
    return Trained(_calibrate(head, inputs(found, seen, info), seen.action), history, best, held_out)


def _calibrate(head: DecisionHead, given: Inputs, labels: NDArray[np.bool_]) -> DecisionHead:
    """Fold Platt scaling on labelled inputs [m] into the last layer, and record the scores reached on them."""
    slope, intercept = platt(head.logits(*given), labels)
    w2, b2 = (slope * head.w2).astype(np.float32), (slope * head.b2 + intercept).astype(np.float32)
    head = replace(head, w2=w2, b2=b2)
    reached = scores(labels, head.reject_probability(*given))
    metrics = {name: value for name, value in reached.items() if value is not None}
    return replace(head, info=msgspec.structs.replace(head.info, calibration=(slope, intercept), metrics=metrics))


def inputs(found: Mismatches, instances: Instances, info: HeadInfo) -> Inputs:
    """Inputs (h_d, h_t, c) of a head for instances: drafter states at the head's bits, its channel features."""
    drafter, target = found.states(info.states)
    rows = instances.row
    return degrade(drafter[rows], info.hidden_bits), target[rows], instances.features[:, info.columns]


def _prepare(found: Mismatches, instances: Instances, config: Training, held_out: NDArray[np.bool_]) -> _Data:
    """Inputs, standardised on the training prompts."""
    drafter, target = found.states(config.states)
    hidden = np.concatenate([degrade(drafter, config.hidden_bits), target], axis=1, dtype=np.float32)
    channel = instances.features[:, [FEATURES.index(name) for name in config.features]]
    held = held_out[instances.row]
    parts, moments = (hidden, channel), []
    for part, rows in zip(parts, (~held_out, ~held), strict=True):
        mean, deviation = (f(part[rows], axis=0, dtype=np.float64).astype(np.float32) for f in (np.mean, np.std))
        moments.append((mean, np.where(deviation > LEAST_SCALE, deviation, np.float32(1))))
    hidden, channel = ((part - mean) / scale for part, (mean, scale) in zip(parts, moments, strict=True))
    mean, scale = (np.concatenate(both) for both in zip(*moments, strict=True))
    return _Data(hidden, channel, instances.row, instances.action, held, mean, scale)


def _fit(data: _Data, config: Training, on_epoch: OnEpoch) -> tuple[dict[str, NDArray[np.float32]], list[Epoch], int]:
    """Weights of the epoch with the lowest held-out loss, losses of all epochs, and the index of that epoch."""
    import torch
    from torch import nn

    with _seeded(config.seed):
        size = data.hidden.shape[1] + data.channel.shape[1]
        net = nn.Sequential(
            nn.Linear(size, config.width), nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(config.width, 1)
        )
        optimizer = torch.optim.AdamW(net.parameters(), config.learning_rate, weight_decay=config.weight_decay)
        passes = _Passes(net, data, config.balanced)
        train_rows, held_rows = (torch.from_numpy(np.flatnonzero(rows)) for rows in (~data.held_out, data.held_out))
        history: list[Epoch] = []
        best, kept = 0, {}
        for number in range(config.epochs):
            net.train()
            total = 0.0
            for batch in train_rows[torch.randperm(len(train_rows))].split(config.batch):
                loss = passes.loss(batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() * len(batch)
            net.eval()
            with torch.no_grad():
                held = sum(passes.loss(batch).item() * len(batch) for batch in held_rows.split(4096)) / len(held_rows)
            history.append(Epoch(total / len(train_rows), held))
            on_epoch(number, *history[-1])
            if held <= min(epoch.held_out_loss for epoch in history):
                best, kept = number, {name: value.numpy().copy() for name, value in net.state_dict().items()}
            if number - best >= config.patience:
                break
    names = {"w1": "0.weight", "b1": "0.bias", "b2": "3.bias"}
    return {name: kept[key] for name, key in names.items()} | {"w2": kept["3.weight"][0]}, history, best


class _Passes:
    """Forward passes and loss over instances."""

    def __init__(self, net: Any, data: _Data, balanced: bool) -> None:
        import torch

        self._net = net
        self._hidden, self._channel = torch.from_numpy(data.hidden), torch.from_numpy(data.channel)
        self._row, self._label = torch.from_numpy(data.row), torch.from_numpy(data.label.astype(np.float32))
        share = float(data.label[~data.held_out].mean()) if balanced else 0.5
        self._weight = torch.where(self._label > 0, 0.5 / share, 0.5 / (1 - share))

    def loss(self, chosen: Any) -> Any:
        """Mean binary cross-entropy of instances [b] (eq. 26)."""
        import torch

        x = torch.cat([self._hidden[self._row[chosen]], self._channel[chosen]], dim=1)
        return torch.nn.functional.binary_cross_entropy_with_logits(
            self._net(x)[:, 0], self._label[chosen], self._weight[chosen]
        )


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Run with one CPU thread and seeded generators; restore both afterwards."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)
