"""Trains decision heads together with their threshold, with and without the channel, and compares them at equal harm.

    python benchmarks/joint_head.py EPISODES [--csv FILE] [--seeds 5] [--split 50]

`head train` fits labels that were drawn for channel states. Here nothing is relabelled: a kept mismatch is worth 1 if
it is harmless and costs λ(q) if it is critical, where q is the channel's quality, and a head learns to make the mean of
this over channel states large, at a θ of 1/2. Heads are trained on the problems before --split of a
labelled collection and compared on the others, then the other way round: harmless mismatches kept where 10 and 25 % of
the critical ones are.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from testbed.channel.csi import FEATURES, Csi, quality
from testbed.decision_head.head import DecisionHead, HeadInfo
from testbed.experiments.head.equal_harm import tradeoff
from testbed.experiments.head.equal_loss import at_equal_loss
from testbed.experiments.head.steps import Labelled, labelled
from testbed.experiments.results.csv_file import write_csv

WIDTH, EPOCHS, PATIENCE, BATCH, STATES = 64, 200, 30, 64, 256
CHANNELS = (Csi(20.0, 20.0, 50.0), Csi(500.0, 500.0, 50.0))
LEAST_COST, MOST_COST = 1.0, 15.0
"""λ at qualities 0 and 1."""
KINDS = {"joint, blind": (True, False), "joint, sees the channel": (True, True), "cross-entropy, blind": (False, False)}
"""Whether a head is trained for its threshold, and whether it sees the channel."""


def main() -> None:
    """Print the comparison, and write its rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("episodes", type=Path)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--split", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = labelled(options.episodes)
    first = data.found.prompt < options.split
    rows: list[dict[str, Any]] = []
    for name, train in (("first", first), ("second", ~first)):
        parts = [Labelled(data.meta, data.found.take(some), data.critical[some]) for some in (train, ~train)]
        heads = {kind: [trained(parts[0], *how, seed) for seed in range(options.seeds)] for kind, how in KINDS.items()}
        for csi in CHANNELS:
            curves = {kind: [tradeoff(head, parts[1], csi) for head in ours] for kind, ours in heads.items()}
            for points in (10.0, 25.0):
                found = at_equal_loss(curves, points, most=1.0)
                rows += [{"trained": name, "rate_mbps": csi.uplink_mbps, **row} for row in found]
    for row in rows:
        print(", ".join(f"{key} {value:.3f}" if isinstance(value, float) else f"{value}" for key, value in row.items()))
    if options.csv is not None:
        write_csv(options.csv, rows)


def trained(data: Labelled, joint: bool, sees: bool, seed: int) -> DecisionHead:
    """A head; a fifth of the problems decides when its training ends."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    hidden = np.concatenate([data.found.drafter_hidden, data.found.target_hidden], axis=1, dtype=np.float32)
    states = [drawn(rng) for _ in range(STATES)]
    channel = np.stack([csi.features for csi in states]) if sees else np.zeros((STATES, 0), np.float32)
    moments = [(part.mean(axis=0), np.maximum(part.std(axis=0), 1e-6)) for part in (hidden, channel)]
    x, c = (
        torch.from_numpy(((part - mean) / scale).astype(np.float32))
        for part, (mean, scale) in zip((hidden, channel), moments, strict=True)
    )
    costs = torch.tensor([LEAST_COST + (MOST_COST - LEAST_COST) * quality(csi, "goodput") for csi in states])
    net = fitted(x, c, costs, torch.from_numpy(data.critical.astype(np.float32)), held(data, rng), joint)
    mean, scale = (np.concatenate([pair[i] for pair in moments]).astype(np.float32) for i in (0, 1))
    weights = {name: value.numpy() for name, value in net.items()}
    info = HeadInfo(
        drafter_hidden=data.meta.drafter_hidden, target_hidden=data.meta.target_hidden, width=WIDTH,
        features=FEATURES if sees else (), drafter_fingerprint=data.meta.drafter_fingerprint,
        target_fingerprint=data.meta.target_fingerprint, drafter_quantisation=data.meta.drafter_quantisation,
    )  # fmt: skip
    return DecisionHead(
        info, w1=weights["0.weight"], b1=weights["0.bias"], w2=weights["3.weight"][0], b2=weights["3.bias"],
        mean=mean, scale=scale,
    )  # fmt: skip


def drawn(rng: np.random.Generator) -> Csi:
    """A channel state of the range that `head relabel` draws from."""
    up, down = np.exp(rng.uniform(np.log(5.0), np.log(1000.0), 2))
    per_up, per_down = rng.uniform(0, 0.1, 2)
    return Csi(float(up), float(down), float(np.exp(rng.uniform(0, np.log(200.0)))), float(per_up), float(per_down))


def held(data: Labelled, rng: np.random.Generator) -> NDArray[np.bool_]:
    """[n] mismatches of the problems that are not trained on."""
    problems = np.unique(data.found.prompt)
    return np.isin(data.found.prompt, rng.choice(problems, max(1, len(problems) // 5), replace=False))


def fitted(
    x: torch.Tensor, c: torch.Tensor, costs: torch.Tensor, critical: torch.Tensor, apart: NDArray[np.bool_], joint: bool
) -> dict[str, torch.Tensor]:
    """Weights with the lowest loss on the mismatches `apart`."""
    net = torch.nn.Sequential(
        torch.nn.Linear(x.shape[1] + c.shape[1], WIDTH), torch.nn.ReLU(), torch.nn.Dropout(0.1),
        torch.nn.Linear(WIDTH, 1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)

    def loss(rows: Sequence[int] | torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        logits = net(torch.cat([x[rows], c[states]], dim=1))[:, 0]
        if not joint:
            weight = torch.where(critical[rows] > 0, 0.5 / critical.mean(), 0.5 / (1 - critical.mean()))
            return torch.nn.functional.binary_cross_entropy_with_logits(logits, critical[rows], weight)
        kept = torch.sigmoid(-logits)
        return (kept * (critical[rows] * costs[states] - (1 - critical[rows]))).mean()

    ours, others = (torch.from_numpy(np.flatnonzero(some)) for some in (~apart, apart))
    fixed = torch.randint(STATES, (len(others),))
    best, since, kept = np.inf, 0, {}
    for _ in range(EPOCHS):
        net.train()
        for rows in ours[torch.randperm(len(ours))].split(BATCH):
            optimizer.zero_grad()
            loss(rows, torch.randint(STATES, (len(rows),))).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            now = loss(others, fixed).item()
        since += 1
        if now < best:
            best, since, kept = now, 0, {name: value.clone() for name, value in net.state_dict().items()}
        if since >= PATIENCE:
            break
    return kept


if __name__ == "__main__":
    main()
