"""Reference decoding in lockstep, checked against transformers and against token-by-token speculation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from testbed.models.evaluate import BatchDecoder, Keep, speculate
from tests.support.models import TOKENS, make_model
from tests.support.reference import Reference

PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3], [5], [8, 9, 7, 9], [3, 2, 3, 8, 4, 6]]
LENGTH = 18
NO_END = TOKENS - 1
"""Id that the models below never choose, since its row of the output head is zero."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("target"), seed=11)


@pytest.fixture(scope="module")
def own(directory: Path) -> list[list[int]]:
    """Outputs of transformers' own generation, one prompt at a time."""
    reference = Reference(directory, TOKENS)
    silence(reference.model)
    return [reference.greedy(prompt, LENGTH) for prompt in PROMPTS]


def silence(model: Any) -> None:
    with torch.no_grad():
        model.lm_head.weight[NO_END] = 0


def decoder(directory: Path, end_id: int = NO_END, noise: float = 0.0) -> BatchDecoder:
    """The model; with perturbed weights for a drafter that agrees sometimes."""
    found = BatchDecoder.load(directory, end_id)
    found.batch = 2
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in found.model.parameters():
            weight += noise * weight.std() * torch.randn(weight.shape, generator=generator)
    silence(found.model)
    return found


def strict(_: list[int], asked: list[list[int]]) -> list[bool]:
    return [False] * len(asked)


def lenient(_: list[int], asked: list[list[int]]) -> list[bool]:
    return [True] * len(asked)


def picky(_: list[int], asked: list[list[int]]) -> list[bool]:
    return [ids[-1] % 3 > 0 for ids in asked]


def test_completions_and_argmaxes_are_those_of_one_prompt_at_a_time(directory: Path, own: list[list[int]]) -> None:
    target = decoder(directory)
    assert target.complete(PROMPTS, LENGTH) == own
    texts = [prompt + output for prompt, output in zip(PROMPTS, own, strict=True)]
    for prompt, output, row in zip(PROMPTS, own, target.argmax(texts), strict=True):
        assert len(row) == len(prompt) + len(output)
        assert row[len(prompt) - 1 : -1] == output


def test_an_end_id_ends_a_completion_and_is_part_of_it(directory: Path, own: list[list[int]]) -> None:
    end_id = own[0][5]
    expected = [output[: output.index(end_id) + 1] if end_id in output else output for output in own]
    assert decoder(directory, end_id).complete(PROMPTS, LENGTH) == expected
    assert len(expected[0]) <= 6


@pytest.mark.parametrize(("window", "noise"), [(1, 0.1), (4, 0.0), (4, 0.1), (4, 3.0), (9, 0.1)])
def test_a_strict_judge_gives_the_targets_own(window: int, noise: float, directory: Path, own: list[list[int]]) -> None:
    drafter = decoder(directory, noise=noise)
    found = speculate(drafter, decoder(directory), PROMPTS, window, LENGTH, strict)
    assert [state.output for state in found] == own
    assert all(sum(state.committed) == LENGTH for state in found)
    drafted, accepted = sum(s.drafted for s in found), sum(s.accepted for s in found)
    if noise == 0.0:
        assert accepted == drafted
    else:
        assert accepted < drafted
    if noise == 0.1:
        assert accepted > 0


def test_a_strict_judge_ends_where_the_target_ends(directory: Path, own: list[list[int]]) -> None:
    end_id = own[0][5]
    target = decoder(directory, end_id)
    found = speculate(decoder(directory, end_id, 0.1), target, PROMPTS, 4, LENGTH, strict)
    assert [state.output for state in found] == target.complete(PROMPTS, LENGTH)


@pytest.mark.parametrize("noise", [0.1, 3.0])
def test_a_lenient_judge_makes_rounds_as_long_as_the_window(noise: float, directory: Path) -> None:
    found = speculate(decoder(directory, noise=noise), decoder(directory), PROMPTS, 5, LENGTH, lenient)
    for state in found:
        assert state.committed == [6, 6, 6]  # five drafted tokens and the bonus token
        assert (state.drafted, state.accepted, state.rejections) == (15, 15, 0)


def by_hand(
    drafter: BatchDecoder, target: BatchDecoder, prompt: list[int], window: int, keep: Keep
) -> tuple[list[int], list[int]]:
    """Output and tokens per round of one prompt, with one forward pass per token."""

    def best(decoder: BatchDecoder, ids: list[int]) -> int:
        with torch.inference_mode():
            return int(decoder.model(torch.tensor([ids])).logits[0, -1].argmax())

    ids = list(prompt)
    committed: list[int] = []
    while sum(committed) < LENGTH:
        draft: list[int] = []
        while len(draft) < window:
            draft.append(best(drafter, ids + draft))
        added: list[int] = []
        for token in draft:
            wanted = best(target, ids + added)
            if token != wanted and not keep([0], [[*ids, *added, token]])[0]:
                added.append(wanted)
                break
            added.append(token)
        else:
            added.append(best(target, ids + added))
        added = added[: LENGTH - sum(committed)]
        ids += added
        committed.append(len(added))
    return ids[len(prompt) :], committed


@pytest.mark.parametrize("keep", [strict, picky, lenient])
def test_any_judge_gives_what_a_slow_speculation_gives(keep: Keep, directory: Path) -> None:
    drafter, target = decoder(directory, noise=0.3), decoder(directory)
    prompts = PROMPTS[:3]
    found = speculate(drafter, target, prompts, 4, LENGTH, keep)
    for state, prompt in zip(found, prompts, strict=True):
        assert (state.output, state.committed) == by_hand(drafter, target, prompt, 4, keep)
    assert any(state.rejections for state in found) == (keep is not lenient)
