"""Repeating a run from its directory: equal results in virtual time, and every difference reported."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from testbed.assets.hub import may_download
from testbed.config import DemoConfig, RunConfig, save
from testbed.errors import BadInput
from testbed.experiments.results import directory as results
from testbed.experiments.results.compare import compare
from testbed.experiments.runs.uerun import GIVEN
from testbed.experiments.sweep import rerun as again
from testbed.experiments.sweep.grid import run_sweep
from testbed.experiments.sweep.points import SweepConfig, points
from testbed.experiments.sweep.report import load_all
from testbed.experiments.sweep.rerun import _given, config_of, point_of, rerun
from tests.support.refusals import refuse

RUN = DemoConfig(
    channel="kind=virtual,profile=wisv,rtt_ms=50", methods=("greedy",), prompts=2, engine="transformers", max_tokens=24
)
CONFIG = SweepConfig(run=RUN, grid={"window": [4, 8]})


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "sweep"
    run_sweep(CONFIG, out, lambda *_: None)
    return out


def test_a_point_and_a_sweep_repeat(sweep: Path, tmp_path: Path) -> None:
    point = next((sweep / "points").iterdir())
    for run, out, kind in ((sweep, tmp_path / "sweep", "sweep"), (point, tmp_path / "point", "point")):
        found = rerun(run, out, lambda _: None)
        assert found["kind"] == kind
        assert found["same"], found
        assert found["outputs"]["compared"] == (4 if kind == "sweep" else 2)


def test_a_point_is_known_by_its_own_file_or_by_its_sweep(sweep: Path, tmp_path: Path) -> None:
    for point in points(CONFIG):
        directory = sweep / "points" / point.key
        assert point_of(directory) == point
        moved = shutil.copytree(directory, tmp_path / point.key)
        assert point_of(moved) == point
        (directory / "point.yaml").unlink()
        assert point_of(directory) == point  # as runs of older versions have it
        shutil.copy(moved / "point.yaml", directory)
    assert point_of(sweep) is None


def test_differences_are_named(sweep: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(sweep, tmp_path / "changed")
    document = results.read_summary(changed)
    document["rows"][0] |= {"latency_s": document["rows"][0]["latency_s"] * 1.5, "lossless": False}
    extra = {**document["rows"][1], "point": "elsewhere"}
    results.write_summary(changed, {**document, "rows": [document["rows"][0], extra]})
    found = compare(sweep, changed)
    assert not found["same"]
    assert {(d["column"], d["change"] and round(d["change"], 9)) for d in found["differences"]} == {
        ("latency_s", 0.5), ("lossless", None),
    }  # fmt: skip
    assert len(found["missing"]) == len(found["more"]) == 1
    assert found["more"][0].endswith("elsewhere")


def test_other_outputs_are_named(sweep: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    changed = shutil.copytree(sweep, tmp_path / "changed")
    path = next(changed.glob("points/*/requests.parquet"))
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    rows[1]["token_ids"][3] += 1
    results.write_parquet(path, rows)
    found = compare(sweep, changed)["outputs"]
    assert found["compared"] == 4
    assert found["different"] == [{"row": path.parent.name, "method": "greedy", "request": rows[1]["request"]}]


@pytest.mark.parametrize("content", [b"no parquet", None])
def test_outputs_that_cannot_be_read_are_not_the_same(sweep: Path, content: bytes | None, tmp_path: Path) -> None:
    """They were left out of the comparison, which found no difference."""
    damaged = shutil.copytree(sweep, tmp_path / "damaged")
    path = next(damaged.glob("points/*/requests.parquet"))
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    for two in ((sweep, damaged), (damaged, sweep)):
        refuse(lambda two=two: compare(*two), BadInput, str(path.parent), path.name)


def test_a_demo_and_a_ue_run_are_told_apart(tmp_path: Path) -> None:
    save(RUN, tmp_path / "config.yaml")
    assert config_of(tmp_path) == ("demo", RUN)
    save(RunConfig(window=4), tmp_path / "config.yaml")
    assert config_of(tmp_path) == ("ue run", RunConfig(window=4))


def test_the_prompt_of_a_command_line_comes_back(tmp_path: Path) -> None:
    row = {"method": "greedy", "requests": 1}
    results.write_summary(tmp_path, results.summary({}, 0, {}, [row]))
    with pytest.raises(BadInput, match="older version did not save"):
        _given(tmp_path, RunConfig())
    assert _given(tmp_path, RunConfig(limit=1)) is None
    (tmp_path / GIVEN).write_text(json.dumps([1, 2, 3]))
    assert _given(tmp_path, RunConfig()) == [1, 2, 3]


def test_a_scorer_that_is_code_runs_only_if_the_user_says_so(sweep: Path, tmp_path: Path) -> None:
    code, mark = tmp_path / "scorer.py", tmp_path / "ran"
    code.write_text(f"open({str(mark)!r}, 'w').close()\n\ndef answer(text):\n    return text\n")
    given = shutil.copytree(sweep, tmp_path / "given")
    for file in (given / "config.yaml", *given.glob("points/*/point.yaml")):
        document = msgspec.yaml.decode(file.read_bytes())
        document["run" if "run" in document else "config"]["scorer"] = f"{code}:answer"
        file.write_bytes(msgspec.yaml.encode(document))
    point = next((given / "points").iterdir())
    for run in (given, point):
        refuse(lambda: rerun(run, tmp_path / "out", print), BadInput, "names code as its scorer", "--own-scorer")  # noqa: B023
    (point / "point.yaml").unlink()
    refuse(lambda: rerun(point, tmp_path / "out", print), BadInput, "names code as its scorer")
    (given / results.SUMMARY).unlink()
    refuse(lambda: load_all([given]), BadInput, "names code as its scorer")
    assert not mark.exists()
    rerun(next(one for one in (given / "points").iterdir() if one != point), tmp_path / "out", print, own_scorer=True)
    assert mark.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bs": "tcp://203.0.113.5:5555", "insecure": True}, "the base station tcp://203.0.113.5:5555, and"),
        ({"local_bs": "tcp://127.0.0.1:5555,tcp://203.0.113.5:5555"}, "the base station tcp://203.0.113.5:5555, and"),
        ({"dataset": "private.jsonl"}, "the data set private.jsonl, and"),
        ({"bs": "tcp://203.0.113.5:5555", "dataset": "hf:a"}, "203.0.113.5:5555 and the data set hf:a, and"),
    ],
)
def test_what_leaves_this_machine_is_for_the_user_to_say(
    options: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory of somebody else's must not send a local file to a base station that it names."""
    ran: list[RunConfig] = []
    monkeypatch.setattr(again, "run_ue", lambda config, *_: ran.append(config))
    monkeypatch.setattr(again, "compare", lambda *_: {})
    row = {"method": "greedy", "requests": 2}
    results.write_summary(tmp_path, results.summary({}, 0, {}, [row]))
    save(RunConfig(limit=2, **options), tmp_path / "config.yaml")
    refuse(lambda: rerun(tmp_path, tmp_path / "out", print), BadInput, words, "--as-configured")
    assert not ran
    said: list[str] = []
    rerun(tmp_path, tmp_path / "out", said.append, as_configured=True)
    assert ran[0].dataset in said[0] and ran[0].bs in said[0]
    save(RunConfig(limit=2, bs="tcp://localhost:5555,ipc:///tmp/bs"), tmp_path / "config.yaml")
    rerun(tmp_path, tmp_path / "out", print)
    assert len(ran) == 2


def test_a_directory_does_not_choose_what_is_downloaded(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: list[bool] = []
    monkeypatch.setattr(again, "run_demo", lambda *_: allowed.append(may_download()))
    monkeypatch.setattr(again, "run_sweep", lambda *_: allowed.append(may_download()))
    monkeypatch.setattr(again, "compare", lambda *_: {})
    demo = tmp_path / "demo"
    demo.mkdir()
    results.write_summary(demo, results.summary({}, 0, {}, []))
    save(RUN, demo / "config.yaml")
    for run in (sweep, demo):
        rerun(run, tmp_path / "out", print)
        rerun(run, tmp_path / "out", print, as_configured=True)
    assert allowed == [False, True] * 2 and may_download()


def test_hidden_files_of_the_output_folder_stay(sweep: Path, tmp_path: Path) -> None:
    """A folder that holds nothing else counts as empty: a new repository, say."""
    out = tmp_path / "repository"
    (out / ".git").mkdir(parents=True)
    (out / ".git" / "HEAD").write_text("ref")
    (out / ".env").write_text("secret")
    assert rerun(next((sweep / "points").iterdir()), out, lambda _: None)["same"]
    assert (out / ".env").read_text() == "secret" and (out / ".git" / "HEAD").read_text() == "ref"


@pytest.mark.parametrize("name", ["config.yaml", "point.yaml", "profile.yaml", "../../config.yaml"])
def test_a_pipe_in_a_directory_is_not_waited_for(name: str, sweep: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(sweep, tmp_path / "sweep")
    run = next((copied / "points").iterdir())
    if name != "point.yaml":  # which would tell the rest
        (run / "point.yaml").unlink()
    if name == "profile.yaml":
        save(replace(RUN, channel="kind=virtual,rtt_ms=50"), run / "config.yaml")
        run = run.rename(tmp_path / "run")
    if name == "config.yaml":
        run = copied
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    reason = "neither a file" if name == "profile.yaml" else "not a regular file"
    refuse(lambda: rerun(run, tmp_path / "out", print), BadInput, reason)


def test_what_cannot_be_run_again_is_refused(sweep: Path, tmp_path: Path) -> None:
    refuse(lambda: rerun(tmp_path, tmp_path / "out", print), BadInput, "not a run directory")
    refuse(lambda: rerun(sweep, sweep, print), BadInput, "is not empty")
    results.write_summary(tmp_path, results.summary({}, 0, {}, []))
    for config, words in (
        ({"systems": ["wisp"]}, "testbed capacity --config"),
        ({"a": 1}, "known: sweep, demo, ue run"),
    ):
        (tmp_path / "config.yaml").write_bytes(msgspec.yaml.encode(config))
        refuse(lambda: rerun(tmp_path, tmp_path / "out", print), BadInput, words)
    assert not (tmp_path / "out").exists()
