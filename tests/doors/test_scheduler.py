"""A scheduler from an installed package: a base station process, capacity in virtual time, report."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from testbed.config import ServeConfig
from testbed.experiments.runs.processes import base_station
from testbed.protocols import protocol
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from tests.support.plugin import REPOSITORY, Installed
from tests.support.stations import VOCAB, client

pytestmark = [pytest.mark.slow]


def test_what_the_page_shows(tmp_path: Path) -> None:
    outside = Installed(tmp_path, "A scheduler")
    outside.run_page()
    rows = {row["system"]: row for row in outside.rows("capacity")}
    assert set(rows) == {"fcfs-cache", "shortest-cache"}
    assert "shortest-cache" in outside.report("report")


async def test_a_base_station_process_serves_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Installed(tmp_path, "A scheduler")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(REPOSITORY)]))
    path = tmp_path / "bs.jsonl"
    config = ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*", scheduler="shortest", metrics=str(path))
    with base_station(config) as ready:
        async with client(ready["bind"]) as ue:
            session = DecodingSession(
                ue, SyntheticDrafter(vocab_size=VOCAB, alpha=0.8), protocol("greedy"), FixedWindow(5)
            )
            record = await session.decode([1, 2, 3], 20, ())
    last = json.loads(path.read_text().splitlines()[-1])
    assert last["rounds"] == len(record.rounds) and last["shortest"] == 6
