"""A base station process that keeps promises: started, asked, counted, stopped."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from testbed.config import ServeConfig
from testbed.errors import AdmissionError
from testbed.experiments.runs.processes import base_station
from testbed.protocols import protocol
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from tests.support.stations import VOCAB, client


@pytest.mark.parametrize("coefficients", ["probe", "a100-qwen3-32b"])
async def test_promises_between_processes(tmp_path: Path, coefficients: str) -> None:
    path = tmp_path / "bs.jsonl"
    config = ServeConfig(
        engine="synthetic", bind="tcp://127.0.0.1:*", scheduler="slo", metrics=str(path), metrics_interval_s=0.1,
        coefficients=coefficients,
    )  # fmt: skip
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.8)
    with base_station(config) as ready:
        async with client(ready["bind"]) as ue:
            session = DecodingSession(ue, drafter, protocol("sh"), FixedWindow(5), speed_tps=2.0)
            record = await session.decode([1, 2, 3], 40, ())
            with pytest.raises(AdmissionError, match="cannot be promised"):
                await DecodingSession(ue, drafter, protocol("sh"), FixedWindow(5), speed_tps=1e9).decode(
                    [1, 2, 3], 40, ()
                )
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows and all(before["passes"] <= after["passes"] for before, after in itertools.pairwise(rows))
    last = rows[-1]
    assert last["promised_rounds"] == {"2": len(record.rounds)} and last["missed_deadlines"] == {"2": 0}
    assert last["refused_sessions"] == {"1e+09": 1}
    assert last["estimate_mape"] is not None and set(last["coefficients"]) == {"a", "b_compute", "b_read", "c"}
