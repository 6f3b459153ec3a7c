"""Training: the same data and weights for a seed, with and without interruption."""

from __future__ import annotations

import itertools
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from testbed.errors import BadInput
from testbed.models import problems, train
from testbed.models.net import Net
from testbed.models.tokenizer import END, train_tokenizer
from testbed.models.train import Recipe, batches

TINY = Recipe("drafter", hidden=16, layers=1, heads=2, ffn=24, steps=4, warmup=2)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(seed=1, problems=60)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small batches, a save every other step, one thread."""
    monkeypatch.setattr(train, "ROWS", 4)
    monkeypatch.setattr(train, "CHUNK", 2)
    monkeypatch.setattr(train, "SAVE_EVERY", 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Killed(Exception):
    pass


def run(
    tokenizer: Tokenizer, checkpoint: Path, recipe: Recipe = TINY, seed: int = 3, die_at: int = 0
) -> tuple[Net, dict[int, float]]:
    losses: dict[int, float] = {}

    def progress(step: int, loss: float) -> None:
        if step == die_at:
            raise Killed
        losses[step] = loss

    return train.train(recipe, tokenizer, checkpoint, seed, progress), losses


def assert_same_weights(one: Net, other: Net) -> None:
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, other.state_dict()[name]), name


def test_a_resumed_training_ends_with_the_same_weights(tokenizer: Tokenizer, tmp_path: Path) -> None:
    straight, losses = run(tokenizer, tmp_path / "straight.ckpt")
    assert list(losses) == [1, 2, 3, 4]
    with pytest.raises(Killed):
        run(tokenizer, tmp_path / "killed.ckpt", die_at=3)
    torch.manual_seed(99)
    random.seed(99)
    resumed, rest = run(tokenizer, tmp_path / "killed.ckpt")
    assert rest == {3: losses[3], 4: losses[4]}
    assert_same_weights(straight, resumed)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["killed.ckpt", "straight.ckpt"]


def test_a_finished_training_is_loaded_and_not_continued(tokenizer: Tokenizer, tmp_path: Path) -> None:
    first, _ = run(tokenizer, tmp_path / "a.ckpt")
    again, losses = run(tokenizer, tmp_path / "a.ckpt")
    assert losses == {}
    assert_same_weights(first, again)


def test_training_moves_every_weight_and_lowers_the_loss(tokenizer: Tokenizer, tmp_path: Path) -> None:
    longer = Recipe("drafter", hidden=16, layers=1, heads=2, ffn=24, steps=30, warmup=2)
    torch.manual_seed(3)
    start = Net(longer.config(tokenizer.get_vocab_size(), end_id=0))
    net, losses = run(tokenizer, tmp_path / "a.ckpt", longer)
    assert sum(losses[i] for i in range(26, 31)) < sum(losses[i] for i in range(1, 6)) - 2.5
    for name, weight in start.named_parameters():
        assert not torch.equal(weight, net.state_dict()[name]), name


@pytest.mark.parametrize(
    ("recipe", "seed"),
    [
        (Recipe("target", hidden=16, layers=1, heads=2, ffn=24, steps=4, warmup=2), 3),
        (Recipe("drafter", hidden=16, layers=1, heads=2, ffn=24, steps=6, warmup=2), 3),
        (Recipe("drafter", hidden=16, layers=1, heads=2, ffn=32, steps=4, warmup=2), 3),
        (TINY, 4),
    ],
)
def test_a_checkpoint_of_another_recipe_or_seed_is_refused(
    recipe: Recipe, seed: int, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        run(tokenizer, tmp_path / "a.ckpt", die_at=3)
    with pytest.raises(BadInput, match="another recipe or seed"):
        run(tokenizer, tmp_path / "a.ckpt", recipe, seed)


def test_a_damaged_checkpoint_is_refused_in_one_line(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """It left a traceback."""
    (tmp_path / "a.ckpt").write_bytes(b"garbage\n")
    with pytest.raises(BadInput, match=r"a\.ckpt is damaged .*; remove it"):
        run(tokenizer, tmp_path / "a.ckpt")


def test_a_checkpoint_with_a_flipped_bit_or_a_step_too_far_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Most flipped bits were weights of the model from then on; with step 10^9 it counted as trained to its end."""
    checkpoint = tmp_path / "a.ckpt"
    with pytest.raises(Killed):
        run(tokenizer, checkpoint, die_at=3)
    whole = checkpoint.read_bytes()
    with zipfile.ZipFile(checkpoint) as archive:
        weights = archive.read(max(archive.infolist(), key=lambda one: one.file_size))
    damaged = bytearray(whole)
    damaged[whole.index(weights) + len(weights) // 2] ^= 1
    checkpoint.write_bytes(damaged)
    with pytest.raises(BadInput, match=r"a\.ckpt is damaged \(.* does not have its checksum\)"):
        run(tokenizer, checkpoint)
    for step in (10**9, -1, float("inf")):
        checkpoint.write_bytes(whole)
        state = torch.load(checkpoint, weights_only=True)
        torch.save(state | {"step": step}, checkpoint)
        with pytest.raises(BadInput, match=r"is damaged \(step .* of 4\)"):
            run(tokenizer, checkpoint)


# ---------------------------------------------------------------- data


def steps(
    tokenizer: Tokenizer, first: int, count: int, narrator: str = "target", seed: int = 3
) -> list[list[list[list[int]]]]:
    taken = itertools.islice(batches(tokenizer, narrator, seed, first), count)
    return [[ids.tolist(), labels.tolist()] for ids, labels in taken]


def test_a_batch_depends_on_seed_narrator_and_step_alone(tokenizer: Tokenizer) -> None:
    straight = steps(tokenizer, 0, 6)
    for first in range(6):
        random.seed(first)
        torch.manual_seed(first)
        assert steps(tokenizer, first, 6 - first) == straight[first:]
    assert len({str(batch) for batch in straight}) == 6
    assert steps(tokenizer, 0, 1, narrator="drafter") != straight[:1]
    assert steps(tokenizer, 0, 1, seed=4) != straight[:1]


def test_rows_teach_answers_and_never_questions(tokenizer: Tokenizer) -> None:
    end_id = tokenizer.token_to_id(END)
    kinds = set()
    for ids, labels in steps(tokenizer, 0, 8):
        width = len(ids[0])
        assert width % 32 == 0
        assert all(len(row) == width for row in [*ids, *labels])
        assert any(
            any(label != -100 for label in row[-32:]) for row in labels
        )  # padded to the next multiple of 32 only
        for row, wanted in zip(ids, labels, strict=True):
            assert all(label in (token, -100) for token, label in zip(row, wanted, strict=True))
            learned = tokenizer.decode([t for t in wanted if t != -100], skip_special_tokens=False)
            given = tokenizer.decode([t for t, label in zip(row, wanted, strict=True) if label == -100 and t != end_id])
            if given.startswith("Question: "):
                kinds.add("problem")
                question, _, rest = given.partition("\nAnswer:")
                assert rest == ""
                source = [p for p in told("target", 3) if f"Question: {p.question}" == question]
                assert learned == f" {source[0].answer}{END}"
            else:
                kinds.add("drill")
                assert learned.count("\n") == train.DRILLS_PER_ROW
                assert END not in learned
    assert kinds == {"problem", "drill"}


def told(narrator: str, seed: int) -> list[problems.WordProblem]:
    """The training problems of the first chunks."""
    chunks = (problems.generate("train", seed * 1_000_003 + chunk, narrator) for chunk in range(4))
    return [problem for chunk in chunks for problem in itertools.islice(chunk, 8)]


def test_the_learning_rate_warms_up_holds_and_decays() -> None:
    recipe = Recipe("target", hidden=8, layers=1, heads=1, ffn=8, steps=100, warmup=10, decay_share=0.25)
    by_hand = {0: 0.1, 4: 0.5, 9: 1.0, 10: 1.0, 50: 1.0, 75: 1.0, 76: 0.96, 95: 0.2, 99: 0.04, 100: 0.0}
    assert {step: recipe.rate(step) for step in by_hand} == pytest.approx(by_hand)
