"""Distillation of tiny random targets, whole: acceptance, resuming, a vocabulary of its own, refusals."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from testbed.errors import BadInput
from testbed.experiments.distill import run as distilling
from testbed.experiments.distill import training
from testbed.experiments.distill.answering import TransformersAnswers
from testbed.experiments.distill.answers import CHUNK_LANES, AnswerTaking, take_answers
from testbed.experiments.distill.config import DistillConfig
from testbed.experiments.distill.prepare import prepared
from testbed.experiments.distill.run import distill
from testbed.models.bundle import bundled
from testbed.models.distill.train import save_state
from testbed.protocols.vocabulary import token_ids
from tests.support.models import make_model

ROWS, SAID = 1024, 32
SMALL: dict[str, Any] = {
    "engine": "transformers", "prompts": "bundled:chat", "limit": 16, "held_out": 4, "max_tokens": 16, "top": 8,
    "concurrency": 2, "layers": "1", "steps": 24, "rows": 8, "every": 12, "rate": 3e-3, "device": "cpu", "threads": 1,
    "min_agreement": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random targets with the bundled tokenizer, whose next token follows from the last one, and is one of few: what
    can be learned in a few steps, but is not known without its last layer.
    """
    return {
        kind: _chain(kind, tmp_path_factory.mktemp(kind), seed) for seed, kind in enumerate(("llama", "qwen2", "qwen3"))
    }


def _chain(kind: str, directory: Path, seed: int) -> Path:
    model = AutoModelForCausalLM.from_pretrained(make_model(kind, directory, seed, vocab_size=ROWS))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "o_proj" in name:
                weight.zero_()
            elif "lm_head" in name:
                weight[SAID:] *= 0.1
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled().require("tokenizer") / name, directory)
    return directory


def quiet(line: str) -> None:
    pass


def untold(done: int, total: int, text: str) -> None:
    pass


def run(target: Path, out: Path, **changed: Any) -> dict[str, Any]:
    return distill(DistillConfig(target=str(target), **{**SMALL, **changed}), out, quiet, untold)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_training_raises_acceptance(targets: dict[str, Path], tmp_path: Path, kind: str) -> None:
    card = run(targets[kind], tmp_path / "out")
    untrained, *later = (look["acceptance"] for look in card["looks"])
    assert later[-1] > untrained + 0.2
    assert card["acceptance"] > untrained + 0.2 and abs(card["acceptance"] - later[-1]) < 0.05  # q8_0 beside float32
    assert card["acceptance_by_position"] == sorted(card["acceptance_by_position"], reverse=True)
    assert (tmp_path / "out" / "drafter.gguf").stat().st_size == card["bytes"]
    assert "| position | 1 | 2 | 3 | 4 |" in (tmp_path / "out" / "card.md").read_text(encoding="utf-8")


def test_a_head_over_few_ids_drafts_the_targets_ids(targets: dict[str, Path], tmp_path: Path) -> None:
    card = run(targets["llama"], tmp_path, vocabulary=400)
    own, theirs = token_ids(tmp_path), token_ids(targets["llama"])
    assert len(own) == card["vocabulary"] == 400 and own.keys() < theirs.keys()
    assert own != {token: theirs[token] for token in own}
    assert 0.5 < card["coverage"] <= 1
    assert card["acceptance"] > card["looks"][0]["acceptance"] + 0.2
    assert abs(card["acceptance"] - card["looks"][-1]["acceptance"]) < 0.05  # as the UE maps ids, and as it was trained
    assert json.loads((tmp_path / "model" / "config.json").read_text())["vocab_size"] == 400


def test_a_narrower_net_learns_from_nothing(targets: dict[str, Path], tmp_path: Path) -> None:
    card = run(targets["qwen3"], tmp_path, hidden=64, layers="1", steps=48, gguf="f16")
    assert card["hidden"] == 64 and card["looks"][-1]["acceptance"] > card["looks"][0]["acceptance"] + 0.2


def test_an_interrupted_distillation_ends_the_same(
    targets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(targets["llama"], tmp_path / "whole")
    monkeypatch.setattr(distilling, "take_answers", first_chunk)
    with pytest.raises(KeyboardInterrupt):
        run(targets["llama"], tmp_path / "half")
    monkeypatch.setattr(distilling, "take_answers", take_answers)
    monkeypatch.setattr(training, "save_state", first_checkpoint)
    with pytest.raises(KeyboardInterrupt):
        run(targets["llama"], tmp_path / "half")
    monkeypatch.setattr(training, "save_state", save_state)
    again = run(targets["llama"], tmp_path / "half")
    for key in ("looks", "acceptance", "acceptance_by_position", "trained_tokens", "answer_tokens", "parity"):
        assert again[key] == whole[key], key
    files = [tmp_path / name / "drafter.gguf" for name in ("whole", "half")]
    assert files[0].read_bytes() == files[1].read_bytes() or same_tensors(*files)


def same_tensors(one: Path, other: Path) -> bool:
    from gguf import GGUFReader

    pairs = zip(GGUFReader(one).tensors, GGUFReader(other).tensors, strict=True)
    return all(np.array_equal(a.data, b.data) for a, b in pairs)


def first_chunk(prompts: Any, taking: AnswerTaking, *given: Any) -> Any:
    """A generation of answers that is interrupted after its first chunk."""
    take_answers(prompts[: taking.lanes * CHUNK_LANES], taking, *given)
    raise KeyboardInterrupt


def first_checkpoint(*given: Any) -> None:
    """Interrupt after the first checkpoint."""
    save_state(*given)
    raise KeyboardInterrupt


def test_a_killed_process_goes_on(targets: dict[str, Path], tmp_path: Path) -> None:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    command = [
        sys.executable,
        "-m",
        "testbed",
        "models",
        "distill",
        f"--target={targets['qwen2']}",
        f"--out={tmp_path}",
    ]
    process = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    while not (tmp_path / "work" / "training.pt").exists() and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.wait()
    stamps = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "work" / "answers").iterdir()}
    command = [part for part in command if "--target" not in part]  # the directory knows it
    done = subprocess.run([*command, "--resume", "--json"], capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    assert document["steps"] == SMALL["steps"] and document["config"]["limit"] == SMALL["limit"]
    assert stamps == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "work" / "answers").iterdir()}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"layers": "3"}, "layers must lie in 1..2"),
        ({"layers": "x"}, "layers are a number"),
        ({"hidden": 100}, "multiple of 32"),
        ({"vocabulary": 100}, "vocabulary must lie in"),
        ({"vocabulary": 4000}, "vocabulary must lie in"),
        ({"prompts": "nowhere.jsonl"}, "cannot read the data set"),
        ({"held_out": 100_000}, "none is left"),
        ({"max_tokens": 600}, "lower --max-tokens"),
        ({"length": 2}, "raise --length"),
        ({"device": "cuda"}, "no GPU"),
        ({"engine": "nothing"}, "nothing"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    targets: dict[str, Path], tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadInput, match=says) as refused:
        run(targets["llama"], tmp_path / "out", **{"steps": 1, "limit": 4, "held_out": 2, "max_tokens": 2, **changed})
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out" / "card.json").exists()


def test_no_prompt_that_is_held_out_is_trained_on(targets: dict[str, Path], tmp_path: Path) -> None:
    """Logs of chats repeat themselves, and a target invents what people ask."""
    path = tmp_path / "log.jsonl"
    asked = ["hello", "help me", "hello", "what now?", "help me", "thanks", "hello"]
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in asked))
    config = DistillConfig(**{**SMALL, "target": str(targets["llama"]), "prompts": str(path), "held_out": 2})
    work = prepared(config)
    assert len(work.held_out) == 2 and len(work.prompts) == 2
    assert not set(map(tuple, work.held_out)) & set(map(tuple, work.prompts))
    with pytest.raises(BadInput, match="4 different prompts among the first 7"):
        prepared(msgspec.structs.replace(config, held_out=4))


def test_another_distillation_in_the_directory_is_refused(targets: dict[str, Path], tmp_path: Path) -> None:
    quick = {"steps": 1, "limit": 4, "held_out": 2, "max_tokens": 2}
    run(targets["llama"], tmp_path, **quick)
    with pytest.raises(BadInput, match="another distillation"):
        run(targets["llama"], tmp_path, **{**quick, "rate": 1e-4})
    with pytest.raises(BadInput, match="another distillation"):
        run(targets["llama"], tmp_path, **{**quick, "limit": 3})
    with pytest.raises(BadInput, match="ended after 1 steps; give more"):
        run(targets["llama"], tmp_path, **{**quick, "limit": 5})
    run(targets["llama"], tmp_path, **quick, threads=None)


def test_a_finished_distillation_goes_on_with_more_prompts_and_steps(
    targets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(targets["llama"], tmp_path, vocabulary=400, limit=8)
    ids = (tmp_path / "work" / "ids.json").read_bytes()
    answered: list[int] = []
    answers_of = TransformersAnswers.__call__

    def counted(self: TransformersAnswers, prompts: Any, *rest: Any) -> Any:
        answered.append(len(prompts))
        return answers_of(self, prompts, *rest)

    monkeypatch.setattr(TransformersAnswers, "__call__", counted)
    more = run(targets["llama"], tmp_path, vocabulary=400, limit=16, steps=36)
    assert sum(answered) == 16 - 8 and more["prompts"] == 16
    assert (tmp_path / "work" / "ids.json").read_bytes() == ids
    assert [look["step"] for look in more["looks"]] == [0, 12, 24, 36] and more["looks"][:3] == first["looks"]
    assert more["trained_tokens"] > first["trained_tokens"] and more["held_out"] == first["held_out"]


def test_prompts_that_the_target_invents_are_learned_as_well(targets: dict[str, Path], tmp_path: Path) -> None:
    """A message of this format ends with a space, which the random target writes now and then."""
    first = run(targets["qwen2"], tmp_path, prompt_format="Q {question} A", invented=64, limit=8)
    assert 0 < first["invented"] < 64 and first["held_out"] == 4
    assert f"{first['invented']} prompts that the target invented" in (tmp_path / "card.md").read_text(encoding="utf-8")
    again = run(targets["qwen2"], tmp_path, prompt_format="Q {question} A", invented=64, limit=8)
    assert {**again, "draft_ms": first["draft_ms"]} == first
    more = run(targets["qwen2"], tmp_path, prompt_format="Q {question} A", invented=128, limit=8, steps=36)
    assert more["invented"] > first["invented"]
    with pytest.raises(BadInput, match="another distillation"):
        run(targets["qwen2"], tmp_path, prompt_format="Q {question} A", invented=32, limit=8, steps=36)


def test_a_format_without_text_around_the_message_invents_nothing(targets: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="before and after"):
        run(targets["llama"], tmp_path, prompt_format="{question}", invented=4)


def test_targets_without_what_it_takes_are_refused(targets: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="tokenizer"):
        run(make_model("llama", tmp_path / "bare", 1), tmp_path / "out")
    with pytest.raises(BadInput, match="cannot export"):
        run(moe(tmp_path / "moe"), tmp_path / "out")


def moe(directory: Path) -> Path:
    target = make_model("qwen3-moe", directory, 1, vocab_size=ROWS)
    shutil.copy(bundled().require("tokenizer") / "tokenizer.json", target)
    return target
