"""Comparing heads with the bundled pair, against runs in virtual time; resuming, and what cannot be compared."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from testbed.decision_head.head import load_head, save_head
from testbed.errors import BadInput
from testbed.experiments.head.compare import compare
from testbed.experiments.head.config import CompareConfig, ConstantLink, Goal, TuneConfig
from testbed.experiments.head.equal_harm import compare_labelled
from testbed.experiments.head.tune import _try, load_problems
from testbed.models.bundle import head_directory
from tests.support.refusals import refuse

THRESHOLDS = (1 / 64, 1 / 4)
SMALL = {"first": 20, "calibration_prompts": 4, "prompts": 2, "engine": "transformers", "threads": 1}


@pytest.fixture(scope="module")
def config() -> CompareConfig:
    heads = {"blind": ["bundled:blind"], "csi": ["bundled"]}
    return CompareConfig(heads=heads, thresholds=THRESHOLDS, losses=(100.0,), **SMALL)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def out(config: CompareConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("compare") / "out"
    compare(config, directory, lambda *_: None)
    return directory


def test_the_chosen_theta_has_the_figures_of_a_run_in_virtual_time(config: CompareConfig, out: Path) -> None:
    """Any loss is allowed, so that the largest θ is chosen; the calibration problems are those of `head tune`."""
    document = compare(config, out, lambda *_: None)
    tuning = TuneConfig(first=20, prompts=4, engine="transformers")
    problems = load_problems(tuning, lambda _: None)
    try:
        for row in document["chosen"]:
            assert row["threshold"] == THRESHOLDS[-1]
            head = load_head(head_directory(config.heads[row["head"]][0]))
            goal = Goal(row["rate_mbps"], row["rtt_ms"], 100.0)
            trial = _try(head, tuning, problems, goal, THRESHOLDS[-1])
            assert row["lost_calibration"] == pytest.approx(trial.lost)
    finally:
        problems.models.close()
    assert [(r["head"], r["rate_mbps"]) for r in document["rows"]] == [
        (head, rate) for rate in (20.0, 500.0) for head in ("blind", "csi")
    ]
    blind = [row for row in document["rows"] if row["head"] == "blind"]
    assert blind[0]["value"] == blind[1]["value"]  # it does the same on both channels


def test_an_unfinished_comparison_resumes_and_another_one_is_refused(config: CompareConfig, out: Path) -> None:
    whole, kept = compare(config, out, lambda *_: None), (out / "test-00000.json").read_bytes()
    (out / "test-00000.json").unlink()
    steps: list[tuple[int, int, str]] = []
    assert compare(config, out, lambda *step: steps.append(step)) == whole
    assert steps == [(1, 2, "blocks")] and (out / "test-00000.json").read_bytes() == kept
    with pytest.raises(BadInput, match="another comparison"):
        compare(msgspec.structs.replace(config, window=16), out, lambda *_: None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"heads": {"a": []}}, "at least one"),
        ({"channels": ()}, "at least one"),
        ({"thresholds": (0.5, 0.25)}, "must increase"),
        ({"thresholds": (0.0, 0.25)}, "must increase"),
        ({"channels": (ConstantLink(-1.0, 50.0),)}, "positive"),
    ],
)
def test_what_cannot_be_compared_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        CompareConfig(**({"heads": {"a": ["bundled"]}} | given))


@pytest.mark.parametrize(
    "harm",
    [
        lambda found: found[:100],
        lambda found: found.replace(b"strict", b"other"),
        lambda found: found.replace(b'"strict":[[', b'"strict":[[true,'),
        lambda found: re.sub(rb'("strict":.*?\]),\[(\d+),(\d+)\],\[\d+,', rb"\1,[\2,\3],[0,", found, count=1),
        lambda found: re.sub(rb'("strict":.*?\]),\[\d+,', rb"\1,[-5,", found, count=1),
        lambda found: re.sub(rb'("strict":.*?\]),\[\d+,', rb"\1,[" + b"9" * 30 + b",", found, count=1),
    ],
)
def test_a_damaged_block_is_an_error_of_one_line(config: CompareConfig, out: Path, harm: Any, tmp_path: Path) -> None:
    """Figures were not numbers, or a traceback ended the comparison."""
    shutil.copytree(out, tmp_path / "out")
    path = tmp_path / "out" / "test-00000.json"
    before = path.read_bytes()
    path.write_bytes(harm(before))
    assert path.read_bytes() != before
    with pytest.raises(BadInput, match=r"test-00000\.json is damaged"):
        compare(config, tmp_path / "out", lambda *_: None)


def test_a_training_seed_has_a_directory_of_its_own(tmp_path: Path) -> None:
    """However it is spelled, and where nothing is decoded, too."""
    (tmp_path / "link").symlink_to(head_directory("bundled"))
    for other in ("bundled", f"{head_directory('bundled')}/", str(tmp_path / "link")):
        twice = CompareConfig(heads={"a": ["bundled", other]}, episodes=str(tmp_path), **SMALL)  # type: ignore[arg-type]
        for run in (lambda: compare(twice, tmp_path / "a", lambda *_: None), lambda: compare_labelled(twice)):  # noqa: B023
            refuse(run, BadInput, "a names a directory twice")


def test_theta_is_not_chosen_on_problems_that_it_is_reported_on(tmp_path: Path) -> None:
    """The same data set was taken for both, and nothing said so."""
    both = CompareConfig(heads={"a": ["bundled"]}, **(SMALL | {"dataset": "bundled:calibration", "prompts": 22}))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="2 of the 22 problems are calibration problems, too"):
        compare(both, tmp_path / "a", lambda *_: None)


def test_heads_of_another_pair_and_missing_problems_are_refused(tmp_path: Path) -> None:
    head = load_head(head_directory("bundled"))
    save_head(dataclasses.replace(head, info=msgspec.structs.replace(head.info, target_fingerprint="0" * 16)), tmp_path)
    small: dict[str, Any] = SMALL
    with pytest.raises(BadInput, match="trained for target"):
        compare(CompareConfig(heads={"a": [str(tmp_path)]}, **small), tmp_path / "a", lambda *_: None)
    few = tmp_path / "few.jsonl"
    few.write_text('{"question": "What is 1 + 1?", "answer": "#### 2"}\n')
    far = CompareConfig(heads={"a": ["bundled"]}, **(small | {"first": 0, "dataset": str(few)}))
    with pytest.raises(BadInput, match="fewer than 2 problems"):
        compare(far, tmp_path / "b", lambda *_: None)
    assert not np.any([(tmp_path / name).exists() for name in "ab"])
