"""`testbed models onboard`: everything that a new pair needs, step by step, resumable, with a card at the end."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.inputs.scorers import answer_scorer
from testbed.experiments.onboard.card import write_onboarding
from testbed.experiments.onboard.config import OnboardConfig
from testbed.experiments.onboard.steps import EndedStep, Step, steps
from testbed.experiments.results.claims import claimed
from testbed.experiments.runs.processes import command as testbed
from testbed.experiments.runs.processes import environment
from testbed.files import file_bytes, make_folder, whole_file

DONE = "steps"
"""Folder with a file for each step that has ended: its document, what it took, or why it failed."""
LOGS = "logs"
STOP_S = 30.0
"""Time that an interrupted command has to write what it must."""
Say = Callable[[str], None]


def onboard(config: OnboardConfig, out: Path, say: Say) -> dict[str, Any]:
    """Run every step that has not succeeded in this directory yet; returns the card's document.

    A step that fails does not stop those that do not need it.

    Raises:
        BadInput: unusable settings, or `out` holds another onboarding.
    """
    answer_scorer(config.scorer)
    for dataset in (config.dataset, config.test):
        load_dataset(dataset, 1)
    todo = steps(config, out)
    with claimed(config, out, "onboarding"):
        for folder in (DONE, LOGS):
            make_folder(out / folder)
        records: dict[str, EndedStep] = {}
        for number, step in enumerate(todo, 1):
            records[step.name] = _ended(step, records, out, lambda line, n=number: say(f"[{n}/{len(todo)}] {line}"))  # type: ignore[misc]
        return write_onboarding(config, todo, records, out)


def _ended(step: Step, records: Mapping[str, EndedStep], out: Path, say: Say) -> EndedStep:
    """A step that has ended: before, or now."""
    path = out / DONE / f"{step.name}.json"
    command = shlex.join(("testbed", *step.command))
    if (before := _read(path)) is not None and before.failure is None and before.command == command:
        say(f"{step.name}: done before, in {before.seconds:.0f} s")
        return before
    lacking = [name for name in step.needs if name not in records or records[name].failure is not None]
    if lacking:
        say(f"{step.name}: left out, since it needs {', '.join(lacking)}")
        return EndedStep(step.name, command, 0.0, f"needs {', '.join(lacking)}")
    say(f"{step.name}: {step.about}\n  {command}")
    start_s = time.monotonic()
    document, failure = _command(step, out)
    record = EndedStep(step.name, command, time.monotonic() - start_s, failure, document)
    with whole_file(path) as part:
        part.write_bytes(msgspec.json.encode(record))
    say(f"{step.name}: {'done' if failure is None else f'failed: {failure}'}, {record.seconds:.0f} s")
    return record


def _read(path: Path) -> EndedStep | None:
    """A record that was written; None: there is none that can be read, and the step runs again."""
    try:
        return msgspec.json.decode(file_bytes(path), type=EndedStep)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _command(step: Step, out: Path) -> tuple[Any, str | None]:
    """Run a step's command; returns its document, and why it failed."""
    if step.makes is not None and step.makes.is_dir():
        shutil.rmtree(step.makes)
    log = out / LOGS / f"{step.name}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            testbed(*step.command, "--json"), stdout=subprocess.PIPE, stderr=errors, env=environment()
        )
        try:
            answer, _ = process.communicate()
        except BaseException:
            _stop(process)
            raise
    if process.returncode:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        return None, lines[-1] if lines else f"exit code {process.returncode}"
    try:
        return json.loads(answer), None
    except (ValueError, RecursionError):
        return None, "its document is not JSON"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a command that an interrupt reached too, or that it did not."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
