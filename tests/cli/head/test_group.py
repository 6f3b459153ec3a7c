"""`testbed head collect` and `label` on the command line, with the bundled pair."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.cli.main import main
from testbed.decision_head.episodes import EpisodeStore
from testbed.llama.origin import STATES_TOLERANCE
from testbed.models.bundle import bundled
from testbed.models.scoring import final_number
from testbed.ue.prompts import Prompter
from tests.support.reference import Reference

ENGINE = ["--engine", "transformers"]


def document(*arguments: str) -> dict[str, Any]:
    """The document of a command with `--json`, in a process of its own since the command claims stdout."""
    command = [sys.executable, "-m", "testbed", "head", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.count("\n") == 1
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def printed(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["head", *arguments]) == 0
    captured = capfd.readouterr()
    return captured.out + captured.err


def refusal(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["head", *arguments]) == 2
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err


@pytest.mark.slow
def test_collect_label_and_collect_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Labels are held against transformers' own generation of both outputs."""
    out = str(tmp_path / "episodes")
    collect = ["collect", "--out", out, "--prompts", "2", "--first", "3", "--policy", "strict", *ENGINE]
    said = printed(capfd, *collect)
    assert "mismatches of 2 prompts in 1 chunks, 0 labelled" in said and "critical" not in said and out in said
    found = document("label", out, *ENGINE)
    assert found["prompts"] == 2 and found["chunks"] == 1 and found["requests"] > 0
    assert found["labelled"] == found["mismatches"] > 4
    assert found["completions"] == found["mismatches"] + 2

    target = bundled().require("target")
    prompter = Prompter(target)
    reference = Reference(target, prompter.vocab_size)
    mismatches, critical = EpisodeStore(Path(out)).load()
    assert set(mismatches.prompt) == {3, 4}
    rows = range(0, len(mismatches), 3)
    for row in rows:
        prefix, start = mismatches.prefix(row).tolist(), int(mismatches.prompt_len[row])
        answers = []
        for token in (int(mismatches.draft_id[row]), int(mismatches.target_id[row])):
            whole = [*prefix, token, *reference.greedy([*prefix, token], 256 - (len(prefix) + 1 - start))]
            answers.append(final_number(prompter.text(whole[start:])))
        assert critical[row] == (answers[0] != answers[1])
    assert found["critical"] == pytest.approx(float(np.mean(critical)))

    for again in (collect, ["label", out, *ENGINE]):
        said = printed(capfd, *again)
        assert f"{found['mismatches']} mismatches of 2 prompts in 1 chunks, {found['labelled']} labelled" in said
        assert f"critical: all {found['critical']:.1%}" in said and "0 requests" in said
    assert "holds another collection" in refusal(capfd, *collect, "--window", "4")
    assert "by scorer number" in refusal(capfd, "label", out, "--scorer", "exact", *ENGINE)


@pytest.mark.slow
def test_a_collection_on_llama_is_that_on_transformers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stores = []
    for name in ("llama", "transformers"):
        out = tmp_path / name
        few = ["--prompts", "2", "--max-tokens", "64", "--policy", "strict", "--engine", name]
        assert "mismatches of 2 prompts in 1 chunks" in printed(capfd, "collect", "--out", str(out), *few)
        stores.append(EpisodeStore(out))
    llama, reference = (store.open() for store in stores)
    assert (llama.engine, reference.engine) == ("llama F32", "transformers float32")
    assert llama.target_fingerprint == reference.target_fingerprint and llama.target_hidden == reference.target_hidden
    one, other = (store.read(0) for store in stores)
    assert len(other) > 2
    for name in ("prompt", "position", "draft_id", "target_id", "prefix_ids"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    most = float(np.abs(other.target_hidden).max())
    assert float(np.abs(one.target_hidden - other.target_hidden).max()) < STATES_TOLERANCE * most
    for name, other_engine in (("llama", "transformers"), ("transformers", "llama")):
        printed(capfd, "label", str(tmp_path / name), "--engine", other_engine)
    assert np.array_equal(*(store.read_labels(0)[0] for store in stores))


def test_a_directory_is_no_target_for_llama(
    tmp_path: Path, random_models: dict[str, Path], random_ggufs: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    pair = ["--model", str(random_models["llama"]), "--drafter", str(random_ggufs["llama"])]
    said = refusal(capfd, "collect", "--out", str(tmp_path / "x"), "--engine", "llama", *pair)
    assert "is a directory, and llama.cpp takes a GGUF file" in said and "models export" in said
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["collect", "--out", "x", "--policy", "guess"], "oracle, explore, strict"),
        (["collect", "--out", "x", "--explore", "2"], "[0, 1]"),
        (["collect", "--out", "x", "--window", "0"], "1..256"),
        (["collect", "--out", "x", "--scorer", "bleu"], "number, exact"),
        (["collect", "--out", "x", "--model", "m", "--drafter", "none.gguf"], "none.gguf"),
        (["collect", "--out", "x", "--dataset", "bundled:none"], "bundled:calibration"),
        (["collect", "--out", "x", "--max-tokens", "0"], "1..1048576"),
        (["collect", "--out", "x", "--max-tokens", "100000"], "the target's context of 4096"),
        (["collect"], "--out"),
        (["label", "nowhere"], "head collect"),
        (["label"], "DIR"),
    ],
)
def test_refusals(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refusal(capfd, *arguments)
    assert not list(tmp_path.iterdir())


def test_fewer_prompts_than_are_passed_over(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "two.jsonl"
    data.write_text('{"question": "one?"}\n{"question": "two?"}\n')
    line = refusal(capfd, "collect", "--out", str(tmp_path / "x"), "--dataset", str(data), "--first", "2", *ENGINE)
    assert "has 2 prompts" in line


@pytest.mark.parametrize("command", ["collect", "label"])
def test_help_has_examples(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["head", command, "--help"]) == 0
    assert f"testbed head {command}" in capfd.readouterr().out
