"""Which protocol `auto` takes: the paper's rule, and the expected latency against an average over drawn rounds."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.channel.cost import Sizes
from testbed.channel.csi import Csi
from testbed.errors import BadInput
from testbed.protocols import protocol
from testbed.protocols.adaptive import ByLatency, by_rtt

LLAMA = Sizes(hidden_size=2048, id_bits=17)


@pytest.mark.parametrize(("rtt_ms", "kind"), [(0.2, "sh"), (9.99, "sh"), (10.0, "sh"), (10.01, "fh"), (80.0, "fh")])
def test_the_papers_rule(rtt_ms: float, kind: str) -> None:
    choice = by_rtt(rtt_ms)
    assert choice.kind == kind
    assert f"{rtt_ms:.3g} ms" in choice.reason


@given(st.lists(st.integers(0, 8), max_size=30), st.floats(1, 1000), st.floats(0, 200), st.floats(0, 0.5))
def test_the_expected_time_is_the_mean_over_the_rounds_seen(
    seen: list[int], rate_mbps: float, rtt_ms: float, per: float
) -> None:
    rule = ByLatency(8, LLAMA)
    for candidates in seen:
        rule.observe(candidates)
    csi = Csi(rate_mbps, rate_mbps, rtt_ms, per, per)
    selective = [protocol("sh").cost(8, m, LLAMA, csi).latency_s for m in [1, *seen]]  # the assumed round first
    full_s = protocol("fh").cost(8, 0, LLAMA, csi).latency_s
    # positions asked for travel down too, some bits each, which the rule leaves out
    slack_s = 8 * 4 / (rate_mbps * 1e6 * (1 - per))
    assert rule.expected_s("sh", csi) == pytest.approx(sum(selective) / len(selective), rel=1e-9, abs=slack_s)
    assert rule.expected_s("fh", csi) == full_s
    assert rule.choose(csi).kind == ("fh" if full_s < rule.expected_s("sh", csi) else "sh")


def test_low_rates_and_short_round_trips_speak_for_selective_upload() -> None:
    rng = random.Random(0)
    rule = ByLatency(32, LLAMA)
    for _ in range(100):
        rule.observe(rng.choice([0, 1, 2]))
    assert rule.choose(Csi(20.0, 20.0, 5.0)).kind == "sh"  # WISV Section VI-B-2: low rate, low RTT
    assert rule.choose(Csi(500.0, 500.0, 50.0)).kind == "fh"  # high rate, high RTT
    assert rule.mean_candidates == pytest.approx(1.0, abs=0.2)


def test_a_window_without_tokens_is_refused() -> None:
    with pytest.raises(BadInput, match="1 token or more"):
        ByLatency(0, LLAMA)
