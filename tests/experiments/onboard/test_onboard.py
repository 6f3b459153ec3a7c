"""Onboarding of a random Qwen3 pair with the commands that anybody runs, and how it goes on after failures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed.assets.model_names import named
from testbed.errors import BadInput, ModelError
from testbed.experiments.onboard import run as onboarding
from testbed.experiments.onboard.config import OnboardConfig
from testbed.experiments.onboard.run import onboard
from testbed.experiments.onboard.steps import Step
from testbed.models.bundle import bundled
from testbed.models.distill.student import StudentShape, make_student
from testbed.models.export import export_gguf
from tests.support.models import make_model

PARITY = "import sys\n\n\ndef answer(text: str) -> str:\n    return str(sum(map(ord, text)) % 3)\n"
"""A scorer that finds an answer in any text."""
PROGRAMS = {
    "good": "import json, sys; json.dump({'rows': []}, sys.stdout)",
    "bad": "import sys; print('first line'); print('it cannot work', file=sys.stderr); sys.exit(2)",
    "mute": "pass",
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A random Qwen3 target with the bundled tokenizer, and one of its two layers as a drafter."""
    folder = tmp_path_factory.mktemp("pair")
    target = make_model("qwen3", folder / "target", 5, vocab_size=1024)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled().require("tokenizer") / name, target)
    make_student(target, StudentShape((0,))).save_pretrained(folder / "small")
    export_gguf(folder / "small", folder / "drafter.gguf", "f16")
    return target, folder / "drafter.gguf"


def onboarded(tmp_path: Path, *options: str) -> dict[str, Any]:
    """The card of a pair, which is onboarded with the commands that anybody runs; nothing is run twice."""
    (tmp_path / "scorer.py").write_text(PARITY)
    command = [
        sys.executable, "-m", "testbed", "models", "onboard", "--scorer", f"{tmp_path / 'scorer.py'}:answer",
        "--window", "4", "--trials", "1", "--out", str(tmp_path / "out"), "--json", *options,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    card: dict[str, Any] = json.loads(done.stdout)
    assert [one["step"] for one in card["steps"]] == [
        "parity", "profile", "passes", "episodes", "head", "theta", "traces", "predictor", "check",
    ]  # fmt: skip
    assert card["lossless"] is True and card["parity"]["ok"] and card["thresholds"]
    assert {row["method"] for row in card["rows"]} == {"target-only", "greedy", "fh"}
    for name in ("head/head.json", "predictor/predictor.json", "profile/profile.yaml", "passes.csv", "card.md"):
        assert (tmp_path / "out" / name).is_file()
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stderr.count("done before") == 9
    return card


@pytest.mark.timeout(900)
def test_a_random_qwen3_pair(pair: tuple[Path, Path], tmp_path: Path) -> None:
    onboarded(
        tmp_path, "--target", str(pair[0]), "--drafter", str(pair[1]), "--engine", "transformers", "--prompts", "12",
        "--tuning", "4", "--tested", "2", "--max-tokens", "10", "--largest", "100", "--thin", "24",
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_smollm2_with_its_drafter_of_another_vocabulary(tmp_path: Path) -> None:
    try:
        named("smollm2", "target")
    except ModelError:
        pytest.skip("SmolLM2 is not here: testbed models fetch smollm2")
    card = onboarded(
        tmp_path, "--target", "smollm2", "--drafter", "smollm2-draft", "--dataset", "bundled:chat", "--test",
        "bundled:chat", "--prompts", "24", "--tuning", "6", "--tested", "3", "--max-tokens", "32", "--largest", "200",
        "--thin", "16",
    )  # fmt: skip
    acceptance = {row["method"]: row["acceptance"] for row in card["rows"]}["greedy"]
    assert 0.2 < acceptance < 0.7


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Steps that run small programs in place of the testbed's commands."""
    run = subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        return run([sys.executable, "-c", PROGRAMS[command[5]]], **options)

    monkeypatch.setattr(subprocess, "Popen", popen)

    def chosen(**named: tuple[str, tuple[str, ...]]) -> None:
        made = [Step(name, name, (program,), needs) for name, (program, needs) in named.items()]
        monkeypatch.setattr(onboarding, "steps", lambda config, out: made)

    return chosen


CONFIG = OnboardConfig(target="bundled", drafter="none")


def test_a_failed_step_stops_only_what_needs_it(tmp_path: Path, programs: Callable[..., None]) -> None:
    lines: list[str] = []
    programs(first=("bad", ()), second=("good", ("first",)), third=("good", ()), fourth=("mute", ()))
    card = onboard(CONFIG, tmp_path, lines.append)
    failures = {one["step"]: one["failure"] for one in card["steps"]}
    assert failures == {
        "first": "it cannot work", "second": "needs first", "third": None, "fourth": "its document is not JSON",
    }  # fmt: skip
    assert "it cannot work" in (tmp_path / "card.md").read_text(encoding="utf-8")
    assert any("testbed bad" in line for line in lines), "the command is printed"


def test_what_succeeded_is_not_run_again(
    tmp_path: Path, programs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(first=("bad", ()), second=("good", ()))
    onboard(CONFIG, tmp_path, lambda line: None)
    monkeypatch.setitem(PROGRAMS, "bad", PROGRAMS["good"])
    monkeypatch.setitem(PROGRAMS, "good", "raise SystemExit(3)")
    monkeypatch.setitem(PROGRAMS, "bad", "print('{}')")
    lines: list[str] = []
    card = onboard(CONFIG, tmp_path, lines.append)
    assert [one["failure"] for one in card["steps"]] == [None, None]
    assert sum("done before" in line for line in lines) == 1


def test_another_onboarding_in_the_directory_is_refused(tmp_path: Path, programs: Callable[..., None]) -> None:
    programs(first=("good", ()))
    onboard(CONFIG, tmp_path, lambda line: None)
    with pytest.raises(BadInput, match="another onboarding"):
        onboard(OnboardConfig(target="bundled", drafter="other"), tmp_path, lambda line: None)


def test_unknown_steps_and_targets_are_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    config = OnboardConfig(target=str(pair[0]), drafter=str(pair[1]), skip=("heads",))
    with pytest.raises(BadInput, match="unknown step 'heads'; known: parity, profile"):
        onboard(config, tmp_path, lambda line: None)
    with pytest.raises(BadInput, match="no model at"):
        onboard(OnboardConfig(target="nowhere", drafter="x.gguf"), tmp_path, lambda line: None)
    for changed, says in (({"scorer": "code"}, "unknown scorer 'code'"), ({"test": "nowhere.jsonl"}, "nowhere")):
        config = OnboardConfig(**{"target": str(pair[0]), "drafter": str(pair[1]), **changed})  # type: ignore[arg-type]
        with pytest.raises(BadInput, match=says):
            onboard(config, tmp_path, lambda line: None)
    assert not list(tmp_path.iterdir())


def test_steps_run_no_module_of_the_current_directory_and_end_with_their_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "testbed").mkdir()
    (tmp_path / "testbed" / "__init__.py").touch()
    (tmp_path / "testbed" / "__main__.py").write_text("print(1)")
    (tmp_path / onboarding.LOGS).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    seen: list[str] = []
    start = subprocess.Popen

    def popen(*arguments: Any, **options: Any) -> Any:
        seen.append((options.get("env") or {}).get("TESTBED_PARENT"))
        return start(*arguments, **options)

    monkeypatch.setattr(onboarding.subprocess, "Popen", popen)
    document, failure = onboarding._command(Step("one", "it cannot work", ("nonsense",)), tmp_path)
    assert document is None and failure
    assert seen == [str(os.getpid())]
