"""Baselines of the field by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.config import DemoConfig
from testbed.errors import BadInput
from testbed.experiments.sweep.baselines import BASELINES, Baseline, expanded
from testbed.experiments.sweep.points import KNOWN, SweepConfig, load_sweep, points

RUN = DemoConfig(channel="kind=virtual,profile=wisv", engine="llama", temperature=1.0, prompts=2)
SWEEPS = Path(__file__).parents[3] / "sweeps"


@pytest.mark.parametrize("entry", BASELINES.values(), ids=lambda entry: entry.kind)
def test_every_baseline_makes_a_run(entry: Baseline) -> None:
    (point,) = points(SweepConfig(run=RUN, series=[{"baseline": entry.kind}]))
    assert point.values["name"] == entry.kind
    for key, value in entry.settings.items():
        assert key in KNOWN
        assert (point.config.methods == (value,)) if key == "protocol" else (getattr(point.config, key) == value)


def test_a_series_may_change_what_it_takes() -> None:
    given = {"baseline": "pearl", "name": "mine", "window": 5}
    assert expanded(given) == {
        "name": "mine", "protocol": "greedy", "lookahead": 1, "window_rule": "parallel", "window": 5
    }  # fmt: skip
    assert expanded({"window": 4}) == {"window": 4}
    made = points(SweepConfig(run=RUN, series=[{"baseline": "specedge"}, given], grid={"window": [2, 3]}))
    assert [(p.values["name"], p.config.window) for p in made] == [("specedge", 2), ("specedge", 3), ("mine", 5)]


def test_an_unknown_baseline_is_refused() -> None:
    with pytest.raises(BadInput, match="unknown baseline 'perl'; known: specedge, pearl"):
        points(SweepConfig(run=RUN, series=[{"baseline": "perl"}]))


@pytest.mark.parametrize("path", sorted(SWEEPS.glob("frontier-*.yaml")), ids=lambda path: path.stem)
def test_sweeps_of_the_frontier_can_run(path: Path) -> None:
    assert len(points(load_sweep(path))) > 7
