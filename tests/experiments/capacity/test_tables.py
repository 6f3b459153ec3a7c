"""The paper's tables, from rows and runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.experiments.capacity import tables as capacity_tables
from testbed.experiments.capacity.systems import CapacityConfig
from testbed.experiments.capacity.tables import acceptance_of, attributed, regimes, table_1, table_3, table_5
from testbed.optim.pass_time import Coefficients, RequestWork


@given(st.floats(0.01, 0.99), st.integers(1, 12))
def test_the_acceptance_behind_a_share(alpha: float, window: int) -> None:
    share = sum(alpha**i for i in range(1, window + 1)) / window
    assert acceptance_of(share, window) == pytest.approx(alpha, abs=1e-6)


def test_the_predictor_does_to_acceptance_what_the_paper_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_tables, "WINDOWS", 20_000)
    rows = table_5(CapacityConfig())
    assert [row["on"] for row in rows] == pytest.approx([0.48, 0.63, 0.66, 0.71], rel=0.06)
    assert rows[2]["acceptance"] == pytest.approx(0.758, abs=0.001)


def test_violations_are_put_down_to_the_pass_only_where_it_was_a_spike() -> None:
    events = [(0.0, 0.04, False)] * 3 + [(0.5, 0.041, True), (0.0, 0.2, True), (0.0, 0.2, False)]
    assert [row["cause"] for row in attributed(events)] == ["", "", "", "queue", "compute", ""]


def test_an_estimator_that_began_wrong_learns_and_passes_have_their_regimes() -> None:
    truth = Coefficients(3e-5, 3e-8, 5e-6, 0.015)
    batches = [
        [(150 + i, 0)] if i % 3 == 0 else [(6, 200 + i)] if i % 3 == 1 else [(120, 0), (6, 300)] for i in range(300)
    ]
    passes = [(batch, truth.batch_s([RequestWork(*work) for work in batch])) for batch in batches]
    rows = regimes(passes, Coefficients(1.4e-4, 2.5e-9, 2.7e-6, 0.015))
    assert [row["regime"] for row in rows[:3]] == ["compute", "memory", "mixed"]
    assert abs(rows[0]["error_s"]) > 10 * max(abs(row["error_s"]) for row in rows[-3:])


def test_table_1_is_read_where_first_come_first_served_fails_as_printed() -> None:
    rows = [
        {"system": system, "ues": ues, "class_tps": 8.0, "violation": share}
        for system, shares in (("fcfs-cache", (0.2, 0.985, 1.0)), ("wisp", (0.0, 0.4, 0.9)))
        for ues, share in zip((100, 120, 140), shares, strict=True)
    ]
    assert [(row["system"], row["violation"]) for row in table_1(rows)] == [("fcfs-cache", 0.985), ("wisp", 0.4)]
    assert table_1(rows[:1]) == []


def test_table_3_is_read_at_the_fastest_class() -> None:
    rows = [{"system": "sled", "class_tps": s, "capacity": 10, "goodput_tps": 7.0 * s} for s in (2.0, 8.0)]
    assert table_3(rows) == [{"system": "sled", "ues": 10, "goodput_tps": 56.0, "goodput_paper": 170.82}]
