"""Bisection, and many searches at once."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import BadInput
from testbed.experiments.capacity import search as capacity_search
from testbed.experiments.capacity.config import CapacityConfig
from testbed.experiments.capacity.search import (
    CapacityPoint,
    CapacityResult,
    capacity_of,
    guessed,
    knees_of,
    largest,
    run_jobs,
    run_point,
)  # fmt: skip
from testbed.experiments.capacity.systems import SYSTEMS
from testbed.experiments.capacity.tally import CapacityRun
from testbed.options import replaced
from tests.support.refusals import refuse

SMALL = CapacityConfig(
    horizon_s=3.0,
    warmup_s=1.5,
    judged=60,
    judged_class=60,
    prompt=(10, 30),
    response=(8, 16),
    kv_tokens=2000,
    max_batch=1,
)


@given(st.integers(0, 300), st.integers(1, 400))
def test_the_search_finds_the_threshold_from_any_guess(threshold: int, guess: int) -> None:
    asked = []

    def holds(ues: int) -> Generator[CapacityPoint, CapacityRun, bool]:
        asked.append(ues)
        return ues <= threshold
        yield

    search = largest(holds, guess)
    with pytest.raises(StopIteration) as end:
        next(search)
    assert end.value.value == threshold
    assert len(set(asked)) == len(asked)
    assert min(asked) >= 1


@given(st.integers(0, 300), st.integers(1, 400), st.integers(1, 100), st.floats(0, 0.2))
def test_a_search_with_a_resolution_ends_within_it(threshold: int, guess: int, step: int, resolution: float) -> None:
    def holds(ues: int) -> Generator[CapacityPoint, CapacityRun, bool]:
        return ues <= threshold
        yield

    with pytest.raises(StopIteration) as end:
        next(largest(holds, guess, step, resolution))
    found = end.value.value
    assert found <= threshold < found + max(1, resolution * found)


def test_what_never_ends_is_refused() -> None:
    def holds(ues: int) -> Generator[CapacityPoint, CapacityRun, bool]:
        return True
        yield

    with pytest.raises(BadInput, match="are sustained"):
        next(largest(holds, 10))


def test_a_capacity_is_where_a_scan_finds_it_and_is_found_again_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    jobs = [capacity_of(SMALL, "sled", 10.0)]
    found = run_jobs(jobs, 1, tmp_path, lambda done, total, text: told.append(text))[0]
    assert isinstance(found, CapacityResult)
    assert [run.complete for run in found.runs] == [True]

    def kept(ues: int) -> bool:
        return run_point(CapacityPoint(SMALL, "sled", (10.0,) * ues, 0)).holds(SMALL.epsilon)

    assert kept(found.ues)
    assert not kept(found.ues + 1)
    assert any("sled" in text for text in told)
    monkeypatch.setattr(capacity_search, "run_capacity", None)
    assert run_jobs([capacity_of(SMALL, "sled", 10.0)], 1, tmp_path, lambda *_: None) == [found]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"accepted": 10**9}, "damaged"),
        ({"goodput_tps": 1e18}, "damaged"),
        ({"virtual_s": 1e308}, "damaged"),
        ({"busy_share": 2.5}, "damaged"),
        ({"classes": {"10": {"judged": 60, "kept": 10**9}}}, "damaged"),
        ({"classes": {"10": {"judged": 60, "violated": -1}}}, "damaged"),
        ({"seed": 7}, "another run"),
        ({"ues": 3}, "another run"),
        ({"system": "wisp"}, "another run"),
    ],
)
def test_a_kept_run_that_cannot_be_is_refused(change: dict[str, object], said: str, tmp_path: Path) -> None:
    point = CapacityPoint(SMALL, "sled", (10.0, 10.0), 0)
    found = run_point(point, tmp_path)
    assert run_point(point, tmp_path) == found
    (path,) = tmp_path.iterdir()
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | change))
    refuse(lambda: run_point(point, tmp_path), BadInput, path.name, said, "remove it")


def test_workers_find_what_one_process_finds() -> None:
    def jobs() -> list[Generator[CapacityPoint, CapacityRun, object]]:
        return [capacity_of(SMALL, system, 10.0) for system in ("sled", "centralized")]

    alone, both = (run_jobs(jobs(), workers, None, lambda *_: None) for workers in (1, 2))
    assert [f.ues for f in alone if isinstance(f, CapacityResult)] == [
        f.ues for f in both if isinstance(f, CapacityResult)
    ]


def test_knees_are_those_of_each_class_in_one_load() -> None:
    config = replaced(SMALL, {"mix": {5: 1, 10: 1}})
    knees = run_jobs([knees_of(config, "fcfs-cache")], 1, None, lambda *_: None)[0]
    assert isinstance(knees, dict)
    assert knees[10.0].ues < knees[5.0].ues
    assert set(knees[10.0].runs[0].classes) == {"5", "10"}


def test_repeats_give_the_median() -> None:
    found = run_jobs([capacity_of(replaced(SMALL, {"repeats": 3}), "sled", 10.0)], 1, None, lambda *_: None)[0]
    assert isinstance(found, CapacityResult)
    assert len(found.by_seed) == 3
    assert found.ues == sorted(found.by_seed)[1]


@pytest.mark.parametrize("system", SYSTEMS)
def test_guesses_are_numbers_of_ues(system: str) -> None:
    for values in ({}, {"acceptance": 1.0, "tpr": 1.0}, {"kv_tokens": 1000}):
        assert 1 <= guessed(replaced(CapacityConfig(), values), SYSTEMS[system], 8.0) < 1000


def test_a_points_name_is_its_conditions() -> None:
    point = CapacityPoint(SMALL, "wisp", (8.0,) * 4, 0)
    assert point.key == CapacityPoint(replaced(SMALL, {"systems": ("sled",), "repeats": 4}), "wisp", (8.0,) * 4, 0).key
    others = [point._replace(seed=1), point._replace(system="sled"), point._replace(classes=(8.0,) * 5)]
    others += [point._replace(until="clear"), point._replace(config=replaced(SMALL, {"epsilon": 0.1}))]
    assert len({point.key, *(other.key for other in others)}) == 6
