"""Output directories that belong to one configuration."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

from testbed.channel.spec import parse_channel
from testbed.config import DemoConfig, RunConfig
from testbed.errors import BadInput
from testbed.experiments.results.claims import claimed, kept, reserved, stamps
from testbed.experiments.sweep.points import SweepPoint
from tests.support.refusals import refuse

MINE, OTHER = RunConfig(window=4), RunConfig(window=8)


def enter(config: RunConfig, out: Path) -> None:
    with claimed(config, out, "sweep"):
        pass


def test_a_directory_is_one_configurations_and_one_process_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    (out / ".config.yaml.123").write_text("name: ha")  # left by one that was killed while it wrote
    with claimed(MINE, out, "sweep"):
        refuse(lambda: enter(MINE, out), BadInput, "another process is running the sweep")
    enter(MINE, out)
    refuse(lambda: enter(OTHER, out), BadInput, "holds another sweep")
    (tmp_path / "mine.txt").touch()
    refuse(lambda: enter(MINE, tmp_path), BadInput, "is not empty and holds no sweep")
    refuse(lambda: enter(MINE, tmp_path / "mine.txt"), BadInput, "mine.txt")
    assert not (tmp_path / ".lock").exists()


@pytest.mark.parametrize("made", [[], ["runs/"], ["runs/", "runs/a.json"], ["rows.csv"]])
def test_a_refused_command_leaves_a_new_directory_to_others(made: list[str], tmp_path: Path) -> None:
    def refused() -> None:
        with claimed(MINE, tmp_path, "sweep"):
            for name in made:
                (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
            raise BadInput("unknown profile")

    refuse(refused, BadInput, "unknown profile")
    if made in ([], ["runs/"]):
        enter(OTHER, tmp_path)
        refuse(refused, BadInput, "holds another sweep")
    else:
        refuse(lambda: enter(OTHER, tmp_path), BadInput, "holds another sweep")
        enter(MINE, tmp_path)


def test_a_claim_of_before_outlives_a_refused_command(tmp_path: Path) -> None:
    enter(MINE, tmp_path)

    def refused() -> None:
        with claimed(MINE, tmp_path, "sweep"):
            raise BadInput("a file is gone")

    refuse(refused, BadInput, "a file is gone")
    refuse(lambda: enter(OTHER, tmp_path), BadInput, "holds another sweep")


def test_a_new_directory_is_one_processs_at_a_time_and_empty(tmp_path: Path) -> None:
    def enter_new() -> None:
        with reserved(tmp_path / "out"):
            (tmp_path / "out" / "head.json").touch()

    with reserved(tmp_path / "out"):
        refuse(enter_new, BadInput, "another process writes its results into")
    enter_new()
    refuse(enter_new, BadInput, "is not empty; choose another --out")


def test_results_are_not_resumed_through_links(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    enter(MINE, out)
    (out / ".snapshot").symlink_to(elsewhere)  # hidden: not the run's
    (tmp_path / "linked").symlink_to(out)
    enter(MINE, tmp_path / "linked")
    (out / "points").mkdir()
    (out / "points" / "b378cba99e50").symlink_to(elsewhere)
    refuse(lambda: enter(MINE, out), BadInput, "b378cba99e50 is a link")
    (out / "points" / "b378cba99e50").unlink()
    os.mkfifo(out / "log.jsonl")
    refuse(lambda: enter(MINE, out), BadInput, "log.jsonl is a pipe or a device")
    (out / "log.jsonl").unlink()
    deep = out.joinpath(*["d"] * 40)
    deep.mkdir(parents=True)
    refuse(lambda: enter(MINE, out), BadInput, "nested more than 32 deep")


def test_a_lock_is_made_in_no_other_folder_and_not_waited_for(tmp_path: Path) -> None:
    enter(MINE, tmp_path / "out")
    lock = tmp_path / "out" / ".lock"
    lock.unlink()
    lock.symlink_to(tmp_path / "elsewhere")
    refuse(lambda: enter(MINE, tmp_path / "out"), BadInput, "cannot write", ".lock")
    assert not (tmp_path / "elsewhere").exists()
    lock.unlink()
    os.mkfifo(lock)
    refuse(lambda: enter(MINE, tmp_path / "out"), BadInput, "cannot write", ".lock")


def test_what_agrees_may_differ_and_is_written_down(tmp_path: Path) -> None:
    enter(MINE, tmp_path)

    def agree(before: RunConfig) -> None:
        if before.seed != MINE.seed:
            raise BadInput("another seed")

    with claimed(OTHER, tmp_path, "sweep", agree):
        pass
    enter(OTHER, tmp_path)
    (tmp_path / "config.yaml").write_text("seed: 5")

    def again() -> None:
        with claimed(MINE, tmp_path, "sweep", agree):
            pass

    refuse(again, BadInput, "another seed")


def test_a_result_is_computed_once(tmp_path: Path) -> None:
    path = tmp_path / "loads.json"
    assert kept(path, list[float], lambda: [0.1, 2.0]) == [0.1, 2.0]
    assert kept(path, list[float], list) == [0.1, 2.0]


@pytest.mark.parametrize("content", [b"", b"[0.1", b"{}", b"\xff"])
def test_a_damaged_result_is_an_error_of_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "loads.json"
    path.write_bytes(content)
    refuse(lambda: kept(path, list[float], list), BadInput, f"{path} is damaged", "remove it")
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("named", "file"),
    [
        ("{}/a.csv", "a.csv"),
        ("{}/radio.yaml", "a.csv"),
        ("kind=virtual,file={}/a.csv", "a.csv"),
        ("suffix+{}/a.gguf", "a.gguf"),
        ("{}/head", "head/head.json"),
        ("{}/head", "head/head.safetensors"),
        ("{}/predictor", "predictor/predictor.npz"),
        ("{}/model", "model/generation_config.json"),
        ("{}/model", "model/tokenizer_config.json"),
        ("{}/model", "model/chat_template.jinja"),
        ("{}/sc.py:answer", "sc.py"),
    ],
)
def test_results_are_not_continued_with_other_contents_of_a_file(named: str, file: str, tmp_path: Path) -> None:
    inputs, out = tmp_path / "in", tmp_path / "out"
    described = (f"model/{name}" for name in ("generation_config.json", "tokenizer_config.json", "chat_template.jinja"))
    made = ("a.csv", "a.gguf", "head/head.json", "head/head.safetensors", "predictor/predictor.npz", "sc.py")
    for name in (*made, "model/model.safetensors", *described):
        (inputs / name).parent.mkdir(parents=True, exist_ok=True)
        (inputs / name).write_text(name)
    (inputs / "radio.yaml").write_text(
        f"radio: {{source: {{kind: traces, files: [{inputs}/a.csv, {inputs}/radio.yaml]}}}}"
    )
    config = RunConfig(drafter=named.format(inputs))
    enter(config, out)
    (inputs / file).write_text(file)  # the same contents at another time
    enter(config, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (inputs / file).write_text(file[::-1])
    for _ in range(2):
        refuse(lambda: enter(config, out), BadInput, "has changed since the results", "choose another --out")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    enter(config, tmp_path / "another")
    with claimed(config, out, "sweep", stamped=False):
        pass
    (inputs / file).write_text(file)
    enter(config, out)


@pytest.mark.parametrize(
    ("scorer", "file"), [("o_answers:last", "o_answers.py"), ("o_pack.deep.answers:last", "o_pack/deep/answers.py")]
)
def test_results_are_not_continued_with_another_scorer(
    scorer: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module was not compared, other than a file."""
    monkeypatch.syspath_prepend(tmp_path / "lib")
    path, out, config = tmp_path / "lib" / file, tmp_path / "out", DemoConfig(scorer=scorer)
    enter(config, tmp_path / "without")  # it may be missing
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("def last(text): return text")
    importlib.invalidate_caches()
    enter(config, out)
    enter(config, out)
    point = SweepPoint({}, config, parse_channel("kind=virtual,profile=wisv"))
    before = point.key
    path.write_text("def last(text): return text[-1]")
    refuse(lambda: enter(config, out), BadInput, "has changed since the results", "choose another --out")
    assert point.key != before
    assert stamps({"grid": {"scorer": [scorer, "number"]}}).keys() == {str(path)}


@pytest.mark.parametrize("name", ["a.csv", "a+b.csv"])
def test_files_of_channels_and_drafters_are_stamped_whatever_their_names(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("1")
    for text in (str(path), f"kind=trace,file={path}", f"kind=trace,file={path},via=virtual", f"file={path}:x,a=b"):
        assert (str(path) in stamps({"channel": text})) == (":x" not in text)


def test_a_configuration_without_files_is_stamped_as_well(tmp_path: Path) -> None:
    enter(RunConfig(drafter="x" * 5000), tmp_path)
    assert (tmp_path / "inputs.json").read_bytes() == b"{}"


@pytest.mark.parametrize("resumes", [True, False])
def test_ctrl_c_tells_what_is_kept_where_the_same_command_goes_on(
    resumes: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeyboardInterrupt), claimed(MINE, tmp_path / "out", "sweep", resumes=resumes):
        raise KeyboardInterrupt
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"what the sweep has finished is kept in {tmp_path}/out; the same command goes on"] * resumes
