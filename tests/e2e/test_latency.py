"""Real base stations under open-loop load, to the end: `testbed latency measure` and a ramp for real."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import pytest

from testbed.experiments.latency.load import Series, measure
from testbed.experiments.latency.load_config import LoadConfig
from testbed.experiments.latency.ramp.config import HINTS, RampConfig
from testbed.experiments.latency.ramp.measure import measure as climb

TINY = LoadConfig(engine="llama", windows=(2,), rates=1, requests=9, at_once=4, max_tokens=16, repeats=1)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def at_one_load(found: list[Series], out: Path) -> None:
    """One series of one load, in the files as in what was returned."""
    (series,) = found
    (point,) = series.points
    assert 0 < series.synchronous_rps < series.ceiling_rps and point.rps > 0
    assert point.requests == 6 and 1 <= point.decode <= TINY.max_tokens
    assert point.latency_s > 0 and point.latency_p95_s is None  # too few requests
    (row,) = rows_of(out / "all.csv")
    assert float(row["rps"]) == pytest.approx(point.rps) and int(row["k"]) == 2
    assert len(rows_of(out / "points.csv")) == 1 - point.saturated


def test_loads_with_acceptance_imposed(tmp_path: Path) -> None:
    """Every drafted token is right, the warm-up's too; a second call measures nothing again."""
    config = msgspec.structs.replace(TINY, alphas=(1.0,), draft_ms=20.0)  # slower than passes on a busy machine
    found = measure(config, tmp_path / "load", lambda _: None)
    at_one_load(found, tmp_path / "load")
    assert found[0].alpha == 1.0 and found[0].points[0].alpha == 1.0
    told = list[str]()
    assert measure(config, tmp_path / "load", told.append) == found and not told


@pytest.mark.long
def test_loads_with_the_real_drafter(tmp_path: Path) -> None:
    config = msgspec.structs.replace(TINY, alphas=())
    found = measure(config, tmp_path / "load", lambda _: None)
    at_one_load(found, tmp_path / "load")
    assert found[0].alpha is None and 0 < (found[0].points[0].alpha or 0) < 1


@pytest.mark.long
@pytest.mark.parametrize("loads", [(6.0, 12.0), ()], ids=["given", "found"])
def test_a_ramp_for_real(loads: tuple[float, ...], tmp_path: Path) -> None:
    """The same requests for every window; hints reach the UEs."""
    config = RampConfig(
        kind="real", engine="transformers", windows=(2,), alpha=1.0, loads=loads, steps=2, requests=8, step_s=0.0,
        seeds=(3,), ues=4, max_tokens=16,
    )  # fmt: skip
    fixed, hinted = climb(config, tmp_path / "ramp", lambda _: None)
    assert (fixed.policy, hinted.policy) == ("2", HINTS) and fixed.loads == hinted.loads
    assert fixed.loads[1] == pytest.approx(2 * fixed.loads[0], rel=0.01)
    for run in (fixed, hinted):
        assert [a.step for a in run.answered] == [0] * 8 + [1] * 8
        assert all(a.latency_s > 0 and a.accepted == a.drafted and not a.rejections for a in run.answered)
    assert [a.at_s for a in fixed.answered] == [a.at_s for a in hinted.answered]
    assert [a.tokens for a in fixed.answered] == [a.tokens for a in hinted.answered]
    assert all(a.drafted <= 2 * a.rounds for a in fixed.answered) and sum(a.drafted for a in hinted.answered) > 0
