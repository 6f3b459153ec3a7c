"""Heads on labelled mismatches: shares counted by hand, and the theorem that the channel cannot order mismatches."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest

from testbed.channel.csi import FEATURES, Csi
from testbed.decision_head.evaluate import under
from testbed.decision_head.head import DecisionHead, save_head
from testbed.decision_head.settings import Relabelling, Training
from testbed.errors import BadInput
from testbed.experiments.head.config import CompareConfig
from testbed.experiments.head.equal_harm import compare_labelled, tradeoff
from testbed.experiments.head.steps import evaluate_on, labelled, train_to
from tests.support.heads import random_head
from tests.support.mismatches import DRAFTER_HIDDEN, TARGET_HIDDEN, labelled_files

GOOD, POOR = Csi(500.0, 500.0, 50.0), Csi(5.0, 5.0, 200.0)


def head(seed: int = 0, **info: object) -> DecisionHead:
    prints = {"drafter_fingerprint": "d" * 16, "target_fingerprint": "e" * 16}
    return random_head(seed, DRAFTER_HIDDEN, TARGET_HIDDEN, **(prints | info))


def test_shares_are_those_of_a_count(tmp_path: Path) -> None:
    data = labelled(labelled_files(tmp_path / "episodes", prompts=40))
    judge = head()
    curve = tradeoff(judge, data, GOOD)
    p = under(judge, *data.found.states("predicting"), GOOD)
    for i in (0, 20, len(curve.thresholds) // 2, len(curve.thresholds) - 1):
        kept = p < curve.thresholds[i]
        assert curve.losses(curve.whole)[0, i] == pytest.approx(100 * kept[data.critical].mean())
        assert curve.gains(curve.whole)[0, i] == pytest.approx(kept[~data.critical].mean())
    for number, prompt in enumerate(np.unique(data.found.prompt)):
        assert curve.lost_of[number] == data.critical[data.found.prompt == prompt].sum()


def test_a_channel_that_only_shifts_the_logit_changes_nothing_at_equal_harm(tmp_path: Path) -> None:
    """Channel features that reach the output past the hidden units move θ alone: both curves are one."""
    files = labelled_files(tmp_path / "episodes", prompts=40)
    blind = head(features=())
    width, inputs = blind.w1.shape
    past = np.eye(1, inputs + 5, inputs, dtype=np.float32)  # a unit that passes the uplink's rate on
    seeing = dataclasses.replace(
        blind,
        info=msgspec.structs.replace(blind.info, features=FEATURES, width=width + 1),
        w1=np.concatenate([np.pad(blind.w1, ((0, 0), (0, 5))), past]),
        b1=np.append(blind.b1, np.float32(9)),
        w2=np.append(blind.w2, np.float32(-0.3)),
        mean=np.append(blind.mean, np.zeros(5, np.float32)),
        scale=np.append(blind.scale, np.ones(5, np.float32)),
    )
    paths = {}
    for name, one in (("blind", blind), ("csi", seeing)):
        save_head(one, tmp_path / name)
        paths[name] = [str(tmp_path / name)]
    rows = compare_labelled(CompareConfig(heads=paths, episodes=str(files), losses=(5.0, 30.0)))["rows"]
    assert len(rows) == 8
    data = labelled(files)
    states = data.found.states("predicting")
    assert not np.allclose(under(seeing, *states, GOOD), under(seeing, *states, POOR))  # it does see the channel
    for row in rows:
        if row["head"] == "csi":
            assert row["difference"] == pytest.approx(0.0, abs=1e-6) and row["verdict"] == "undecided"


def test_labels_of_one_kind_and_other_pairs_are_refused(tmp_path: Path) -> None:
    files = labelled_files(tmp_path / "episodes", prompts=8)
    save_head(random_head(), tmp_path / "other")
    with pytest.raises(BadInput, match="trained for"):
        compare_labelled(CompareConfig(heads={"a": [str(tmp_path / "other")]}, episodes=str(files)))
    with pytest.raises(BadInput, match="at least one head"):
        compare_labelled(CompareConfig(episodes=str(files)))


def test_episodes_that_a_head_was_trained_on_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its figures on them were shown like those on others."""
    pytest.importorskip("torch")
    files = labelled_files(tmp_path / "episodes", prompts=40)
    train_to(files, tmp_path / "head", Training(features=(), epochs=1), Relabelling(), lambda *_: None)
    for where, said in (
        (files, "was trained on these episodes"),
        (labelled_files(tmp_path / "some", prompts=20), "was trained on 20 of these 20 problems"),
        (labelled_files(tmp_path / "more", prompts=20, first=30), "was trained on 10 of these 20 problems"),
        (labelled_files(tmp_path / "next", prompts=20, first=40), ""),
        (labelled_files(tmp_path / "others", prompts=20, dataset="another"), ""),
    ):
        caplog.clear()
        evaluate_on(tmp_path / "head", where, Relabelling(), None)
        compare_labelled(CompareConfig(heads={"a": [str(tmp_path / "head")]}, episodes=str(where)))
        assert caplog.text.count("was trained on") == 2 * bool(said) and said in caplog.text


def test_intervals_of_shares_over_training_seeds_are_of_shares(tmp_path: Path) -> None:
    """Two heads of one kind had 0.174 [-2.60, 2.95]."""
    files = labelled_files(tmp_path / "episodes", prompts=12)
    paths: dict[str, list[str]] = {"one": [], "other": []}
    for seed in range(4):
        save_head(head(seed), tmp_path / str(seed))
        paths["one" if seed < 2 else "other"].append(str(tmp_path / str(seed)))
    rows = compare_labelled(CompareConfig(heads=paths, episodes=str(files), losses=(5.0, 30.0)))["rows"]
    for name, least in (("value", 0.0), ("difference", -1.0)):
        ends = [row[f"{name}_{end}"] for row in rows if name in row for end in ("low", "high")]
        known = [end for end in ends if end is not None]
        assert known and least <= min(known) <= max(known) <= 1
