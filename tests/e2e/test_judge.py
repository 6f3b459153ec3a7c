"""A decision head at work between processes, with the bundled pair and a random head."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.assets.fingerprints import model_fingerprint
from testbed.config import ServeConfig
from testbed.experiments.runs.processes import base_station
from testbed.models.bundle import bundled
from tests.support.heads import head_files


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", "testbed", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random head for the bundled pair."""
    bundle = bundled()
    target, drafter = bundle.require("target"), bundle.require("drafter_hf")
    sizes = [json.loads((path / "config.json").read_text())["hidden_size"] for path in (drafter, target)]
    return head_files(
        tmp_path_factory.mktemp("head"),
        drafter_hidden=sizes[0],
        target_hidden=sizes[1],
        drafter_fingerprint=model_fingerprint(bundle.require("drafter")),
        target_fingerprint=model_fingerprint(target),
    )


@pytest.fixture(scope="module")
def station(head: Path) -> Iterator[str]:
    target = str(bundled().require("target"))
    config = ServeConfig(engine="transformers", model=target, head=str(head), bind="tcp://127.0.0.1:*")
    with base_station(config) as ready:
        yield ready["bind"]


def decoded(station: str, threshold: float) -> dict[str, list[dict[str, Any]]]:
    link = "uplink_mbps=20,downlink_mbps=20,rtt_ms=50"  # measured, it would differ from one method to the other
    arguments = ["--bs", station, "--limit", "2", "--protocol", "fh,sh", "--threshold", str(threshold), "--csi", link]
    done = run("ue", "run", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    outputs = {m: [o for o in document["outputs"] if o["method"] == m] for m in ("fh", "sh")}
    assert [o["token_ids"] for o in outputs["fh"]] == [o["token_ids"] for o in outputs["sh"]]
    return {row["method"]: row for row in document["rows"]}


def test_the_threshold_goes_from_lossless_to_everything(station: str) -> None:
    strict, between, all_kept = (decoded(station, theta)["fh"] for theta in (0.0, 0.5, 1.0))
    assert strict["lossless"] and not between["lossless"] and not all_kept["lossless"]
    assert all_kept["acceptance"] == 1.0
    assert strict["aal"] < between["aal"] < all_kept["aal"]


def test_another_drafter_is_refused_where_it_would_be_judged(station: str, tmp_path: Path) -> None:
    bundle = bundled()
    other = tmp_path / "other.gguf"
    shutil.copy(bundle.require("drafter"), other)
    with other.open("r+b") as stream:  # one weight of the last tensor
        stream.seek(-2, 2)
        stream.write(b"\1")
    models = ["--drafter", str(other), "--tokenizer", str(bundle.require("tokenizer"))]
    common = ["ue", "run", "--bs", station, "--limit", "1", "--protocol", "sh", *models]
    done = run(*common, "--threshold", "0.5")
    assert done.returncode == 1
    assert "trained for drafter" in done.stderr and len(done.stderr.splitlines()) == 1
    assert run(*common, "--threshold", "0").returncode == 0


def test_another_targets_head_ends_the_start_in_one_line(tmp_path: Path) -> None:
    head_files(tmp_path / "head", target_fingerprint="0123456789abcdef")
    model = str(bundled().require("target"))
    for command in (
        ["bs", "serve", "--engine", "transformers", "--model", model, "--head", str(tmp_path / "head")],
        ["demo", "--threshold", "0.5", "--head", str(tmp_path / "head"), "--out", str(tmp_path / "run")],
    ):
        done = run(*command)
        assert done.returncode == 2
        assert "0123456789abcdef" in done.stderr and len(done.stderr.splitlines()) == 1
        assert not (tmp_path / "run").exists()


def test_a_demo_in_virtual_time_says_by_what_it_was_judged(head: Path, tmp_path: Path) -> None:
    done = run(
        "demo", "--engine", "transformers", "--prompts", "3", "--methods", "greedy,fh,sh", "--threshold", "0.5",
        "--head", str(head), "--channel", "kind=virtual,uplink_mbps=20,downlink_mbps=20,rtt_ms=50,profile=wisv",
        "--out", str(tmp_path / "run"), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = {row["method"]: row for row in json.loads(done.stdout)["rows"]}
    assert (rows["greedy"]["judge"], rows["greedy"]["lossless"]) == (None, True)
    assert rows["fh"]["judge"] == rows["sh"]["judge"] == "head" and rows["fh"]["head"] == str(head)
    assert rows["greedy"]["aal"] < rows["fh"]["aal"] == rows["sh"]["aal"]
    assert rows["fh"]["accuracy"] == rows["sh"]["accuracy"]
    assert rows["fh"]["judge_s"] > 0
