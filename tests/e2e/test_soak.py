"""Hours in minutes: UEs under random faults, and a base station process whose memory and tables stay what they are.

`make soak` takes half an hour; SOAK_S, SOAK_UES and SOAK_SEED change that, SOAK_OUT names the report's file. The
default run has a sample of a few seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from testbed.config import ServeConfig
from testbed.experiments.runs.processes import base_station
from tests.support.soak.plan import TRICKS, Plan
from tests.support.soak.run import Soak
from tests.support.soak.seen import table

FLAT = 1.05
SPARE_FILES = 3
SECONDS = float(os.environ.get("SOAK_S", "1800"))


def soak(plan: Plan, scratch: Path, idle_s: float) -> dict[str, Any]:
    """Run it; returns the report, which is printed too."""
    metrics = scratch / "bs.jsonl"
    config = ServeConfig(
        engine="synthetic", bind="tcp://127.0.0.1:*", idle_s=idle_s, max_model_len=512, metrics=str(metrics),
        metrics_interval_s=0.5,
    )  # fmt: skip
    with base_station(config) as ready:

        async def run() -> dict[str, Any]:
            seen = await Soak(plan, ready["bind"], ready["pid"], metrics).run()
            return seen.document(plan)

        document = asyncio.run(run())
    print(f"\n{table(document)}")
    return document


def check(document: dict[str, Any], plan: Plan) -> None:
    """Nothing lost, nothing different, nothing left."""
    assert document["failures"] == [] and document["differing"] == 0
    assert document["prompts"] > plan.ues
    assert set(document["faults"]) == set(TRICKS)
    assert document["after"]["sessions"] == 0 and document["after"]["waiting"] <= 1  # of the last pass
    assert document["after"]["files"] <= document["files_before"] + SPARE_FILES


def test_a_few_seconds_of_faults_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    plan = Plan(seconds=3.0, ues=6, jobs=12, fault_every_s=0.1, draft_s=0.01)
    check(soak(plan, tmp_path, idle_s=1.5), plan)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_half_an_hour_of_faults_loses_nothing_and_memory_stays_flat(tmp_path: Path) -> None:
    plan = Plan(SECONDS, int(os.environ.get("SOAK_UES", "32")), int(os.environ.get("SOAK_SEED", "0")))
    document = soak(plan, tmp_path, idle_s=4.0)
    if out := os.environ.get("SOAK_OUT"):
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(json.dumps(document))
    check(document, plan)
    trends = document["trends"]
    assert trends["rss_mb"]["last"] <= FLAT * trends["rss_mb"]["first"], trends
    assert trends["files"]["last"] <= FLAT * trends["files"]["first"] + SPARE_FILES, trends
    assert trends["sessions"]["last"] <= 2 * trends["sessions"]["first"] + plan.ues, trends
