"""Configured against measured links, with real iperf3 through the real relay; and the tolerance of a row."""

from __future__ import annotations

import shutil

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
    ("via", "measured", "agrees"),
    [
        ("proxy", (19.1, 20.9, 50.0), True),
        ("proxy", (18.9, 20.0, 50.0), False),
        ("proxy", (20.0, 21.1, 50.0), False),
        ("proxy", (20.0, 20.0, 52.4), True),
        ("proxy", (20.0, 20.0, 52.6), False),
        ("tc", (19.1, 19.1, 50.0), True),
        ("tc", (20.5, 19.1, 50.0), False),
    ],
)
def test_what_counts_as_agreement(via: str, measured: tuple[float, float, float], agrees: bool) -> None:
    assert validate._row(via, 20.0, 50.0, 0.0, measured)["agrees"] is agrees


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
