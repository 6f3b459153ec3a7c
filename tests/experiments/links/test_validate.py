"""Configured against measured links, with real iperf3 through the real relay; and the tolerance of a row."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from testbed.errors import BadInput
from testbed.experiments.links import validate
from testbed.experiments.links.validate import ValidateConfig
from tests.support.refusals import refuse


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")
def test_the_relay_does_what_it_is_asked() -> None:
    told: list[tuple[int, int]] = []
    config = ValidateConfig(rates_mbps=(20.0,), rtts_ms=(20.0,), losses=(0.2,), seconds=2)
    (row,) = validate.validate(config, lambda *done: told.append(done))
    assert row["expected_mbps"] == 16.0
    assert row["uplink_mbps"] == pytest.approx(16, rel=0.1)
    assert row["downlink_mbps"] == pytest.approx(16, rel=0.1)
    assert row["echo_ms"] == pytest.approx(20, abs=6)
    assert told == [(1, 1)]


@pytest.mark.parametrize(
    ("via", "up", "down", "echo_ms", "agrees"),
    [
        ("proxy", 19.1, 20.9, 50.0, True),
        ("proxy", 18.9, 20.0, 50.0, False),
        ("proxy", 20.0, 21.1, 50.0, False),
        ("proxy", 20.0, 20.0, 52.4, True),
        ("proxy", 20.0, 20.0, 52.6, False),
        ("tc", 19.1, 19.1, 50.0, True),
        ("tc", 20.5, 19.1, 50.0, False),
    ],
)
def test_what_counts_as_agreement(via: str, up: float, down: float, echo_ms: float, agrees: bool) -> None:
    link = ValidateConfig(via=via).link(20.0, 50.0, 0.0, 0.0)
    row = validate._row(link, up, down, [echo_ms] * 20)
    assert (row["agrees"], row["measured_jitter_ms"]) == (agrees, None)


@pytest.mark.parametrize(("actual_ms", "agrees"), [(10.0, True), (7.0, False), (14.0, False)])
def test_jitter_is_estimated_from_echoes(actual_ms: float, agrees: bool) -> None:
    random = np.random.default_rng(2)
    echoes_ms = 50.0 + random.uniform(-actual_ms, actual_ms, (2, validate.JITTER_ECHOES)).sum(axis=0)
    row = validate._row(ValidateConfig().link(20.0, 50.0, 0.0, 10.0), 20.0, 20.0, echoes_ms.tolist())
    assert row["measured_jitter_ms"] == pytest.approx(actual_ms, rel=0.15)
    assert row["agrees"] is agrees


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")
def test_the_relay_has_the_jitter_that_is_configured() -> None:
    config = ValidateConfig(rates_mbps=(50.0,), rtts_ms=(20.0,), jitters_ms=(9.0,), seconds=1)
    (row,) = validate.validate(config, lambda *_: None)
    assert row["measured_jitter_ms"] == pytest.approx(9.0, rel=0.3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"via": "pigeon"}, "known: proxy, tc"),
        ({"rates_mbps": ()}, "one rate"),
        ({"rates_mbps": (0.0,)}, "uplink_mbps"),
        ({"rtts_ms": (-1.0,)}, "rtt_ms"),
        ({"losses": (1.0,)}, "[0, 1)"),
        ({"seconds": 0}, "at least 1 s"),
    ],
)
def test_grids_that_cannot_be(arguments: dict[str, object], words: str) -> None:
    refuse(lambda: ValidateConfig(**arguments), BadInput, words)  # type: ignore[arg-type]


def test_without_iperf3_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    refuse(lambda: validate.validate(ValidateConfig(), lambda *_: None), BadInput, "iperf3 is not installed")
