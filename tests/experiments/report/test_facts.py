"""Facts above the tables of a report: the grid of a sweep, its common settings, and the pair."""

from __future__ import annotations

from testbed.config import DemoConfig, resolved
from testbed.experiments.report.facts import facts_html, settings_of


def test_a_sweep_shows_its_grid_and_no_default_that_did_not_run() -> None:
    run = resolved(DemoConfig(methods=("greedy", "fh"), window=3, prompts=7))
    config = {"name": "rates", "run": run, "grid": {"window": [4, 8], "rate_mbps": [20, 500]}}
    page = facts_html({"config": config, "seed": 0})
    assert "window: 4, 8; rate_mbps: 20, 500" in page and "bundled pair (" in page
    assert "window" not in settings_of(config) and settings_of(config)["prompts"] == 7
    for mark in ("None", "True", "False", "&#x27;", "('", "['"):
        assert mark not in page
