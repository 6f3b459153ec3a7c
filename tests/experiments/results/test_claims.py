"""Output directories that belong to one configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.config import RunConfig
from testbed.errors import BadInput
from testbed.experiments.results.claims import claimed, kept
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


@pytest.mark.parametrize("resumes", [True, False])
def test_ctrl_c_tells_what_is_kept_where_the_same_command_goes_on(
    resumes: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeyboardInterrupt), claimed(MINE, tmp_path / "out", "sweep", resumes=resumes):
        raise KeyboardInterrupt
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"what the sweep has finished is kept in {tmp_path}/out; the same command goes on"] * resumes
