"""The loss of a distillation against its definition, batches, and a training that goes on where it was."""

from __future__ import annotations

import itertools
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from testbed.errors import BadInput, TestbedError
from testbed.models.distill.lesson import UNKNOWN, Lesson
from testbed.models.distill.student import StudentShape, make_student
from testbed.models.distill.train import (
    TrainingPlan,
    TrainingState,
    batches,
    begin,
    loss_of,
    matches,
    restore,
    save_state,
    step_with,
)

PLAN = TrainingPlan(steps=8, rows=3, rate=1e-3, kl=0.5, seed=1)


def lesson(seed: int, length: int = 12, rows: int = 300, top: int = 4) -> Lesson:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, rows, length)
    places = np.arange(length // 2, length - 1)
    chosen = np.stack([rng.permutation(rows)[:top] for _ in places])
    logprobs = np.log(rng.dirichlet(np.ones(top), len(places))).astype(np.float32)
    return Lesson(ids, places, ids[places + 1], chosen, logprobs)


LESSONS = [lesson(i, 8 + i % 5) for i in range(20)]


class Fixed:
    """A model whose logits depend on the token alone."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits
        self.model = lambda ids: SimpleNamespace(last_hidden_state=ids[..., None])

    def parameters(self) -> Any:
        return iter([self._logits])

    def eval(self) -> None:
        pass

    def lm_head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._logits[hidden[:, 0]]


def test_the_loss_is_divergence_and_cross_entropy_over_what_the_student_knows() -> None:
    logits = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).double().float()
    one = Lesson(
        ids=np.array([1, 2, 3, 4]), places=np.array([1, 2]), labels=np.array([3, UNKNOWN]),
        top=np.array([[3, UNKNOWN, 5], [UNKNOWN, UNKNOWN, UNKNOWN]]),
        logprobs=np.log(np.array([[0.5, 0.3, 0.1], [0.6, 0.2, 0.1]], np.float32)),
    )  # fmt: skip
    logs = torch.log_softmax(logits[2], 0)
    p = np.array([0.5, 0.1]) / 0.6
    divergence = sum(p[i] * (np.log(p[i]) - float(logs[token])) for i, token in enumerate((3, 5)))
    model: Any = Fixed(logits)
    assert float(loss_of(model, [one], kl=1.0)) == pytest.approx(divergence, abs=1e-5)
    assert float(loss_of(model, [one], kl=0.0)) == pytest.approx(-float(logs[3]), abs=1e-5)
    assert float(loss_of(model, [one], kl=0.25)) == pytest.approx(0.25 * divergence - 0.75 * float(logs[3]), abs=1e-5)
    best = int(logits[2].argmax())
    assert matches(model, [one._replace(labels=np.array([best, UNKNOWN]))], 4)[0].tolist() == [True, False]


def test_a_batch_of_which_nothing_is_known_teaches_nothing() -> None:
    one = LESSONS[0]._replace(
        labels=np.full_like(LESSONS[0].labels, UNKNOWN), top=np.full_like(LESSONS[0].top, UNKNOWN)
    )
    model: Any = Fixed(torch.randn(300, 300))
    assert float(loss_of(model, [one], kl=0.5)) == 0.0


def test_every_epoch_has_every_lesson_once_and_goes_on_anywhere() -> None:
    per_epoch = 7
    whole = list(itertools.islice(batches(LESSONS, PLAN, 0), 2 * per_epoch))
    for epoch in range(2):
        seen = [id(one) for group in whole[epoch * per_epoch : (epoch + 1) * per_epoch] for one in group]
        assert sorted(seen) == sorted(id(one) for one in LESSONS)
    assert [len(group) for group in whole[:per_epoch]].count(3) == 6
    again = list(itertools.islice(batches(LESSONS, PLAN, 5), 3))
    assert [[id(one) for one in group] for group in again] == [[id(one) for one in group] for group in whole[5:8]]


def test_padding_changes_nothing(random_models: dict[str, Path]) -> None:
    model = make_student(random_models["qwen3"], StudentShape((0,)))
    short, long = lesson(1, 6), lesson(2, 30)
    together = matches(model, [short, long], 2)
    assert np.array_equal(together[0], matches(model, [short], 1)[0])
    alone = [float(loss_of(model, [one], 0.5).item()) * len(one.places) for one in (short, long)]
    both = float(loss_of(model, [short, long], 0.5).item())
    assert both == pytest.approx(sum(alone) / (len(short.places) + len(long.places)), rel=1e-4)


def trained(target: Path, state: TrainingState | None = None, until: int = 8) -> TrainingState:
    state = state or begin(make_student(target, StudentShape((0,))), PLAN, "cpu")
    for group in itertools.islice(batches(LESSONS, PLAN, state.step), until - state.step):
        step_with(state, group, PLAN)
    return state


def test_training_that_was_interrupted_ends_with_the_same_weights(
    random_models: dict[str, Path], tmp_path: Path
) -> None:
    target = random_models["llama"]
    whole = trained(target)
    save_state(trained(target, until=5), PLAN, tmp_path / "half.pt")
    resumed = begin(make_student(target, StudentShape((0,))), PLAN, "cpu")
    restore(resumed, PLAN, tmp_path / "half.pt")
    assert resumed.step == 5
    trained(target, resumed)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name])
    assert whole.tokens == resumed.tokens


def test_a_training_can_be_given_other_numbers_of_steps(random_models: dict[str, Path], tmp_path: Path) -> None:
    target = random_models["llama"]
    save_state(trained(target), PLAN, tmp_path / "done.pt")
    longer = TrainingPlan(12, PLAN.rows, PLAN.rate, PLAN.kl, PLAN.seed)
    resumed = begin(make_student(target, StudentShape((0,))), longer, "cpu")
    restore(resumed, longer, tmp_path / "done.pt")
    before = resumed.model.model.norm.weight.clone()
    step_with(resumed, LESSONS[:3], longer)
    assert resumed.step == 9 and not torch.equal(before, resumed.model.model.norm.weight)


def test_a_checkpoint_that_cannot_be_written_is_one_line_and_the_old_one_stays(
    random_models: dict[str, Path], tmp_path: Path
) -> None:
    state, checkpoint = trained(random_models["llama"], until=1), tmp_path / "training.pt"
    save_state(state, PLAN, checkpoint)
    before = checkpoint.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(TestbedError, match=f"cannot write {checkpoint}: File too large"):
            save_state(state, PLAN, checkpoint)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert checkpoint.read_bytes() == before


def test_checkpoints_of_others_and_damaged_ones_are_refused(random_models: dict[str, Path], tmp_path: Path) -> None:
    state = begin(make_student(random_models["llama"], StudentShape((0,))), PLAN, "cpu")
    save_state(state, TrainingPlan(8, 4, 1e-3, 0.5, 1), tmp_path / "other.pt")
    with pytest.raises(BadInput, match="another training"):
        restore(state, PLAN, tmp_path / "other.pt")
    (tmp_path / "damaged.pt").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(BadInput, match="damaged"):
        restore(state, PLAN, tmp_path / "damaged.pt")
    restore(state, PLAN, tmp_path / "missing.pt")


@pytest.mark.parametrize(
    "change",
    [
        {"step": -(10**9)}, {"step": "x"}, {"tokens": 1.5}, {"looks": [1]}, {"seconds": -1.0}, {"plan": None},
        {"optimizer": 3}, {"model": [1]}, {"looks": None},
    ],
)  # fmt: skip
def test_checkpoints_with_other_things_in_them_are_refused(
    change: dict[str, Any], random_models: dict[str, Path], tmp_path: Path
) -> None:
    state, path = begin(make_student(random_models["llama"], StudentShape((0,))), PLAN, "cpu"), tmp_path / "x.pt"
    save_state(state, PLAN, path)
    torch.save({**torch.load(path, weights_only=True), **change}, path)
    with pytest.raises(BadInput, match=r"damaged \(.*begins again$|another training"):
        restore(state, PLAN, path)
    assert (state.step, state.tokens, state.looks) == (0, 0, [])


def test_a_checkpoint_that_is_a_list_or_holds_code_is_refused(random_models: dict[str, Path], tmp_path: Path) -> None:
    state, path = begin(make_student(random_models["llama"], StudentShape((0,))), PLAN, "cpu"), tmp_path / "x.pt"
    for content in ([1, 2], {"plan": print}):
        torch.save(content, path)
        with pytest.raises(BadInput, match="damaged"):
            restore(state, PLAN, path)
    assert state.step == 0
