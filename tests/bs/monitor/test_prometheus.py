"""The metrics, read by Prometheus's own parser."""

from __future__ import annotations

import math

import numpy as np
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from testbed.bs.metrics import Metrics
from testbed.bs.monitor.prometheus import SIZES, exposition
from testbed.bs.monitor.recent import BOUNDS_S, Recent
from testbed.bs.observer import FinishedPass
from testbed.bs.scheduling.estimator_online import OnlineEstimator
from testbed.bs.scheduling.pass_ledger import PassLedger
from testbed.bs.scheduling.slo import Slo
from testbed.bs.sessions import SessionTable
from testbed.optim.pass_time import Coefficients, RequestWork
from testbed.protocols import protocol
from tests.bs.monitor.test_recent import one, opened, told

ABOUT = {"model": 'a "quoted"\nname\\', "engine": "synthetic", "scheduler": "slo", "judge": "strict"}


def families(text: bytes) -> dict[str, Metric]:
    found = list(text_string_to_metric_families(text.decode()))
    assert len({family.name for family in found}) == len(found)
    return {family.name: family for family in found}


def counted() -> dict[str, Metric]:
    """A base station that has done a few things."""
    table = SessionTable()
    table.open((b"a", 0), np.zeros(5, np.int32), protocol("greedy"), 0.0, 8, 0, speed_tps=8.0)
    table.open((b"b", 0), np.zeros(5, np.int32), protocol("greedy"), 0.0, 8, 0, speed_tps=2.5)
    coefficients = Coefficients(0.0, 0.0, 0.0, 0.1)
    ledger = PassLedger(table, Slo(coefficients=coefficients), OnlineEstimator(coefficients))
    metrics = Metrics()
    for size in (1, 3, 3, 400):
        metrics.add_pass(FinishedPass([RequestWork(5, 100)] * size, size, size, 0, 0.0, 0.25, None))
    metrics.add_promised(8.0, True)
    metrics.add_promised(8.0, False)
    recent = Recent(table)
    session = opened(table, 1)
    for bs_s in (0.0005, 0.001, 0.03, 60.0):
        recent.round(session, one(), told(3, bs_s))
    return families(exposition("serving", ABOUT, 2, (metrics.snapshot() | ledger.snapshot(), recent.tally())))


def value(found: dict[str, Metric], name: str, **labels: str) -> float:
    (sample,) = [s for f in found.values() for s in f.samples if s.name == name and s.labels == labels]
    return float(sample.value)


def test_names_types_and_help_are_as_they_should_be() -> None:
    for name, family in counted().items():
        assert name.startswith("testbed_") and family.documentation.endswith(".")
        assert family.type in ("counter", "gauge", "histogram")
        names = {sample.name for sample in family.samples}
        assert all(one.endswith("_total") == (family.type == "counter") for one in names)
        assert not any(unit in name for unit in ("_ms", "_millis", "_kb", "_mb"))


def test_values_are_those_that_were_counted() -> None:
    found = counted()
    assert value(found, "testbed_bs_info", **ABOUT) == 1
    assert value(found, "testbed_ready") == 1 and value(found, "testbed_viewers") == 2
    assert value(found, "testbed_passes_total") == 4 and value(found, "testbed_rounds_total") == 407
    assert value(found, "testbed_pass_seconds_total") == 1.0
    assert value(found, "testbed_computed_tokens_total") == 5 * 407
    assert value(found, "testbed_sessions") == 3 and value(found, "testbed_promised_sessions") == 2
    assert value(found, "testbed_promised_tokens_per_second") == 10.5
    assert value(found, "testbed_promised_rounds_total", speed_tps="8") == 2
    assert value(found, "testbed_late_rounds_total", speed_tps="8") == 1
    assert value(found, "testbed_accepted_tokens_total") == 12 and value(found, "testbed_committed_tokens_total") == 16


@pytest.mark.parametrize(
    ("name", "bounds", "seen", "total"),
    [
        ("testbed_batch_requests", SIZES, (1, 3, 3, 400), 407),
        ("testbed_round_seconds", BOUNDS_S, (0.0005, 0.001, 0.03, 60.0), 60.0315),
    ],
)
def test_classes_hold_all_that_is_no_larger(
    name: str, bounds: tuple[float, ...], seen: tuple[float, ...], total: float
) -> None:
    samples = counted()[name].samples
    below = {float(s.labels["le"]): s.value for s in samples if s.name == f"{name}_bucket"}
    assert below == {bound: sum(one <= bound for one in seen) for bound in (*bounds, math.inf)}
    assert next(s.value for s in samples if s.name == f"{name}_sum") == pytest.approx(total)
    assert next(s.value for s in samples if s.name == f"{name}_count") == len(seen)


def test_before_the_engine_is_loaded_there_is_little_to_say() -> None:
    found = families(exposition("loading", {}, 0, None))
    assert set(found) == {"testbed_bs_info", "testbed_ready", "testbed_viewers"}
    assert value(found, "testbed_ready") == 0
