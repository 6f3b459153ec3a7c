"""Recorded drafts against the drafter that they were recorded from, window by window."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.errors import BadInput, ModelError
from testbed.experiments.lockstep.drafts import DraftsConfig, record_all
from testbed.synthetic import next_token
from testbed.ue.drafters.recorded import DraftRecording, Recorded, RecordedDrafter, load_recording
from testbed.ue.drafters.synthetic import SyntheticDrafter
from tests.support.refusals import refuse

VOCAB, ENDS = 64, (7, 11)
PROMPTS = [[1 + i, 2, 3 + i] for i in range(20)]


def real(alpha: float) -> SyntheticDrafter:
    return SyntheticDrafter(vocab_size=VOCAB, alpha=alpha)


def recording(alpha: float = 0.6, depth: int = 5, max_tokens: int = 40) -> DraftRecording:
    config = DraftsConfig(prompts=len(PROMPTS), depth=depth, max_tokens=max_tokens)
    told: list[int] = []
    engine = SyntheticEngine(vocab_size=VOCAB)
    found = record_all(real(alpha), engine, PROMPTS, config, ENDS, lambda done, _: told.append(done))
    assert told == list(range(1, len(PROMPTS) + 1))
    return DraftRecording(
        drafter="d", target="t", tokenizer="v", vocab_size=VOCAB, depth=depth, end_ids=list(ENDS), prompts=found
    )


def own(prompt: list[int], max_tokens: int) -> list[int]:
    """The target's output, computed from the synthetic language."""
    ids = list(prompt)
    while len(ids) - len(prompt) < max_tokens and (ids == prompt or ids[-1] not in ENDS):
        ids.append(next_token(ids, VOCAB, 0))
    return ids[len(prompt) :]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_outputs_are_the_targets_own(alpha: float) -> None:
    found = recording(alpha)
    assert [one.prompt for one in found.prompts] == PROMPTS
    outputs = [own(prompt, 40) for prompt in PROMPTS]
    assert [one.output for one in found.prompts] == outputs
    assert len({len(output) for output in outputs}) > 2, "some end by themselves, some by their length"


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([0.0, 0.3, 0.8, 1.0]), st.integers(1, 6), st.randoms(use_true_random=False))
def test_any_windows_are_drafted_as_by_the_drafter_itself(
    alpha: float, depth: int, random: np.random.Generator
) -> None:
    replay, drafter = RecordedDrafter(recording(alpha, depth, 25)), real(alpha)
    for prompt in PROMPTS:
        output, place = own(prompt, 25), 0
        mine, theirs = replay.open(prompt), drafter.open(prompt)
        while place < len(output):
            window = []
            for _ in range(min(random.randint(1, depth), len(output) - place)):
                one, other = mine.draft_one(), theirs.draft_one()
                assert one.id == other.id and one.top1 == pytest.approx(other.top1)
                assert (one.entropy, one.margin, one.logit_std) == pytest.approx(
                    (other.entropy, other.margin, other.logit_std)
                )
                window.append(one.id)
                if one.id in ENDS:
                    break
            rest = output[place : place + len(window) + 1]
            kept = next((i for i, (w, o) in enumerate(zip(window, rest, strict=False)) if w != o), len(window))
            place += kept + 1
            if place >= len(output) or output[place - 1] in ENDS:
                break
            for sequence in (mine, theirs):
                sequence.commit(kept, output[place - 1])
            assert mine.length == theirs.length == len(prompt) + place
        mine.close()
        theirs.close()


def test_it_keeps_on_disk(tmp_path: Path) -> None:
    found = recording()
    found.save(tmp_path / "drafts.msgpack")
    assert load_recording(tmp_path / "drafts.msgpack") == found
    (tmp_path / "half.msgpack").write_bytes((tmp_path / "drafts.msgpack").read_bytes()[:-9])
    for name in ("half.msgpack", "none.msgpack"):
        with pytest.raises(BadInput, match="no recording"):
            load_recording(tmp_path / name)


def test_what_it_cannot_do_is_refused() -> None:
    found = recording(0.0)
    drafter = RecordedDrafter(found)
    with pytest.raises(BadInput, match="prompts that are in it"):
        drafter.open([9, 9])
    with pytest.raises(BadInput, match="distributions"):
        drafter.open(PROMPTS[0], distributions=True)
    sequence = drafter.open(PROMPTS[0])
    first = found.prompts[0].output[0]
    wrong = sequence.draft_one().id
    assert wrong != first
    with pytest.raises(ValueError, match="accepted"):
        sequence.commit(2, first)
    with pytest.raises(ValueError, match="another"):
        sequence.commit(1, first)
    for _ in range(found.depth - 1):
        sequence.draft_one()
    with pytest.raises(ModelError, match="record longer windows"):
        sequence.draft_one()


def test_parts_that_do_not_belong_together_are_refused() -> None:
    token = (1, 0.5, 0.1, 0.2, 0.3)
    with pytest.raises(BadInput, match="one drafted token for each"):
        Recorded(prompt=[1], output=[1, 2], drafted=[token], branches={})
    with pytest.raises(BadInput, match="a branch wherever"):
        Recorded(prompt=[1], output=[2], drafted=[token], branches={})
    for bad in ({"prompts": 0}, {"depth": 0}, {"max_tokens": 0}, {"drafter": "d.gguf"}):
        with pytest.raises(BadInput):
            DraftsConfig(**bad)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 2}, "schema 2"),
        ({"schema": -1}, "schema -1"),
        ({"prompts": []}, "has prompts"),
        ({"depth": 0}, "has prompts"),
        ({"depth": 70_000}, "at most 60000 tokens"),
        ({"vocab_size": 3}, "outside the vocabulary"),
        ({"colour": 1}, "colour"),
    ],
)
def test_a_file_that_no_recording_can_be_is_one_line(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    written(tmp_path, lambda document: document | change)
    refuse(lambda: load_recording(tmp_path / "drafts.msgpack"), BadInput, "no recording of drafts", words)


def test_a_prompt_with_two_outputs_is_one_line(tmp_path: Path) -> None:
    """Cells ended with a traceback."""

    def change(document: dict[str, Any]) -> dict[str, Any]:
        one, *others = document["prompts"]
        return document | {"prompts": [one, *(other | {"prompt": one["prompt"]} for other in others)]}

    written(tmp_path, change)
    refuse(lambda: load_recording(tmp_path / "drafts.msgpack"), BadInput, "no recording of drafts", "there twice")
    written(tmp_path, lambda document: document | {"prompts": document["prompts"] + document["prompts"][:1]})
    load_recording(tmp_path / "drafts.msgpack")


def test_branches_that_are_too_short_are_one_line(tmp_path: Path) -> None:
    """They ended cells only once a window was drafted over one, without the name of the file."""

    def change(document: dict[str, Any]) -> dict[str, Any]:
        return document | {
            "prompts": [one | {"branches": {i: [] for i in one["branches"]}} for one in document["prompts"]]
        }

    written(tmp_path, change)
    refuse(lambda: load_recording(tmp_path / "drafts.msgpack"), BadInput, "no recording of drafts", "a branch ends")
    written(tmp_path, lambda document: document | {"depth": 50})
    refuse(lambda: load_recording(tmp_path / "drafts.msgpack"), BadInput, "no recording of drafts", "a branch ends")


@pytest.mark.parametrize(
    "token",
    [(1, float("nan"), 0.1, 0.1, 1.0), (1, 0.5, float("inf"), 0.1, 1.0), (1, 0.5, 0.1, -0.5, 1.0),
     (1, 0.5, 0.1, 0.1, 1e308), (1, 7.0, 0.1, 0.1, 1.0), (-1, 0.5, 0.1, 0.1, 1.0)],
)  # fmt: skip
def test_statistics_that_no_token_has_are_one_line(token: tuple[float, ...], tmp_path: Path) -> None:
    def change(document: dict[str, Any]) -> dict[str, Any]:
        one = document["prompts"][0]
        place = next(iter(one["branches"]))
        return document | {"prompts": [one | {"branches": one["branches"] | {place: [token]}}]}

    written(tmp_path, change)
    refuse(lambda: load_recording(tmp_path / "drafts.msgpack"), BadInput, "no recording of drafts")


def test_no_pipe_is_read_as_a_recording(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refuse(lambda: load_recording(tmp_path / "pipe"), BadInput, "no recording of drafts")


def written(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """A recording with something changed in its document."""
    document = msgspec.msgpack.decode(msgspec.msgpack.encode(recording(0.3)), strict=False)
    (folder / "drafts.msgpack").write_bytes(msgspec.msgpack.encode(change(document)))


def test_equal_prompts_are_recorded_once() -> None:
    """Their outputs may differ by rounding, and a recording with two outputs of a prompt is refused."""
    told: list[tuple[int, int]] = []
    config, engine = DraftsConfig(prompts=3), SyntheticEngine(vocab_size=VOCAB)
    prompts = [PROMPTS[0], PROMPTS[1], PROMPTS[0]]
    found = record_all(real(0.5), engine, prompts, config, ENDS, lambda done, of: told.append((done, of)))
    assert [one.prompt for one in found] == prompts and found[0] is found[2]
    assert told == [(1, 2), (2, 2)]
