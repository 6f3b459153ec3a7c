"""Training of heads on labels that follow from hidden states and channel, reproducible from a seed."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from testbed.channel.csi import FEATURES, Csi
from testbed.decision_head.instances import base_instances
from testbed.decision_head.relabel import relabel
from testbed.decision_head.settings import Relabelling, Training
from testbed.decision_head.train import inputs, train_head
from testbed.errors import BadInput
from testbed.protocols.quantise import degrade
from tests.support.mismatches import some_meta, some_mismatches

FAST = Training(width=32, dropout=0.1, learning_rate=5e-3, epochs=15, patience=4)
BLIND = msgspec.structs.replace(FAST, features=())
META = some_meta()


def test_a_head_learns_calibrated_probabilities() -> None:
    found, critical, _ = some_mismatches(900, 0)
    unseen, labels, p = some_mismatches(400, 1)
    told: list[Any] = []
    trained = train_head(found, base_instances(critical), META, BLIND, lambda *heard: told.append(heard), "a line")
    info = trained.head.info
    assert (info.features, info.width, info.about) == ((), 32, "a line")
    assert info.target_fingerprint == META.target_fingerprint and info.drafter_quantisation == "F32"
    predicted = trained.head.reject_probability(*inputs(unseen, base_instances(labels), info))
    assert roc_auc_score(labels, predicted) > roc_auc_score(labels, p) - 0.04
    assert log_loss(labels, predicted.astype(float)) < log_loss(labels, p) + 0.1
    assert predicted.mean() == pytest.approx(labels.mean(), abs=0.03)  # balanced classes alone would give about 0.5
    assert [number for number, *_ in told] == list(range(len(trained.history)))
    assert trained.history[trained.best].held_out_loss == min(epoch.held_out_loss for epoch in trained.history)
    assert trained.history[-1].train_loss < trained.history[0].train_loss


def test_held_out_prompts_only_affect_the_last_layers_scale() -> None:
    """Inverting the labels of held-out prompts only changes which epoch is kept and the calibration."""
    found, critical, _ = some_mismatches(60, 2)
    config = msgspec.structs.replace(BLIND, epochs=1)
    trained = train_head(found, base_instances(critical), META, config)
    turned = train_head(found, base_instances(critical ^ trained.held_out), META, config)
    assert 0 < trained.held_out.sum() < len(found)
    assert not set(found.prompt[trained.held_out]) & set(found.prompt[~trained.held_out])
    for name in ("w1", "b1", "mean", "scale"):
        assert (getattr(trained.head, name) == getattr(turned.head, name)).all()
    assert (trained.head.w2 != turned.head.w2).any()


def test_early_stopping_ends_what_only_memorises() -> None:
    found, *_ = some_mismatches(80, 3)
    noise = np.random.default_rng(0).random(len(found)) < 0.5
    config = msgspec.structs.replace(BLIND, epochs=200, patience=3, width=128, dropout=0.0, weight_decay=0.0)
    trained = train_head(found, base_instances(noise), META, config)
    assert len(trained.history) == trained.best + 4 < 200


def test_the_same_seed_gives_the_same_head_and_leaves_torch_as_it_was() -> None:
    import torch

    found, critical, _ = some_mismatches(50, 4)
    made = relabel(found, critical, Relabelling())
    config = msgspec.structs.replace(FAST, epochs=3)
    torch.manual_seed(1)
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    one = train_head(found, made, META, config).head
    assert torch.get_num_threads() == threads and torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(2)
    same = train_head(found, made, META, config).head
    other = train_head(found, made, META, msgspec.structs.replace(config, seed=1)).head
    assert one.info == same.info
    assert all((getattr(one, name) == getattr(same, name)).all() for name in one.info.shapes)
    assert (one.w1 != other.w1).any()


def test_a_channel_aware_head_is_more_permissive_on_a_poor_channel() -> None:
    found, critical, _ = some_mismatches(700, 5)
    unseen, labels, _ = some_mismatches(200, 6)
    made = relabel(found, critical, Relabelling(least_share=0.1, draws=6))
    head = train_head(found, made, META, FAST).head
    assert head.info.features == FEATURES

    def p(csi: Csi) -> Any:
        channel = np.tile(csi.features, (len(unseen), 1))
        return head.reject_probability(unseen.drafter_hidden, unseen.target_hidden, channel)[labels].mean()

    good, poor, poorest = p(Csi(800.0, 800.0, 5.0)), p(Csi(20.0, 20.0, 50.0)), p(Csi(6.0, 6.0, 150.0))
    assert good - 0.15 > poor > poorest + 0.1


def test_drafter_states_are_learned_as_they_arrive() -> None:
    found, critical, _ = some_mismatches(40, 7)
    made = base_instances(critical)
    config = msgspec.structs.replace(BLIND, hidden_bits=4, epochs=2)
    head = train_head(found, made, META, config).head
    assert head.info.hidden_bits == 4
    arrived = degrade(found.drafter_hidden, 4)
    assert (inputs(found, made, head.info)[0] == arrived).all()
    learned = ~train_head(found, made, META, config).held_out
    np.testing.assert_allclose(head.mean[:6], arrived[learned].mean(axis=0), rtol=1e-5)
    assert not np.allclose(head.mean[:6], found.drafter_hidden[learned].astype(float).mean(axis=0), rtol=1e-4)


def test_an_input_that_never_changes_does_no_harm() -> None:
    found, critical, _ = some_mismatches(40, 8)
    found.target_hidden[:, 3] = 4.0
    head = train_head(found, base_instances(critical), META, msgspec.structs.replace(BLIND, epochs=2)).head
    assert head.scale[6 + 3] == 1 and head.mean[6 + 3] == 4


def test_labels_of_one_kind_or_a_single_prompt_are_refused() -> None:
    found, critical, _ = some_mismatches(30, 9)
    with pytest.raises(BadInput, match="harmless and critical"):
        train_head(found, base_instances(np.zeros_like(critical)), META, BLIND)
    found.prompt[:] = 3
    with pytest.raises(BadInput, match="at least 2 prompts"):
        train_head(found, base_instances(critical), META, BLIND)


@pytest.mark.parametrize("side", ["drafter_hidden", "target_hidden"])
def test_states_that_are_not_finite_are_refused(side: str) -> None:
    found, critical, _ = some_mismatches(30, 10)
    getattr(found, side)[0, 0] = np.inf
    with pytest.raises(BadInput, match="not finite"):
        train_head(found, base_instances(critical), META, BLIND)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 0}, "width"),
        ({"patience": 0}, "patience"),
        ({"dropout": 1.0}, "dropout"),
        ({"learning_rate": 0.0}, "learning-rate"),
        ({"weight_decay": -1.0}, "weight-decay"),
        ({"held_out": 1.0}, "held-out must"),
        ({"seed": -1}, "seed"),
        ({"hidden_bits": 3}, "16, 8, 4 bits"),
    ],
)
def test_bad_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Training(**changes)
