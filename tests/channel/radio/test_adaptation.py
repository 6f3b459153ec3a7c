"""Link adaptation and the channel model, against values that Sionna computed, Shannon's bound, and formulas."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import j0

from testbed.channel.radio.adaptation import Adaptation, AdaptedAir, SinrSeries
from testbed.channel.radio.config import RadioConfig
from testbed.channel.radio.mac import RadioCell
from testbed.channel.radio.model import ModelSource, RadioUe, Spectrum
from testbed.errors import BadInput
from testbed.virtual_time import run_virtually
from tests.channel.radio.test_mac import proportional_fair
from tests.support.refusals import refuse

SIONNA: dict[str, Any] = json.loads((Path(__file__).parent / "sionna.json").read_text())
"""Written by scripts/radio_tables.py, with Sionna."""
GENIE = Adaptation(report_ms=0, delay_ms=0, step_db=0, outer_db=0, overhead=0)
SPECTRUM = Spectrum(20e6, 1e-3, False)


def flat(sinr_db: float) -> SinrSeries:
    return SinrSeries(np.array([sinr_db]), 1.0)


@pytest.mark.parametrize("way", ["uplink", "downlink"])
def test_mcs_bler_and_throughput_are_those_of_sionnas_inner_loop(way: str) -> None:
    up = way == "uplink"
    for row in SIONNA[way]:
        ours = AdaptedAir(GENIE, [(flat(row["sinr_db"]),) * 2]).state(0, up, 0.0)
        assert ours.bits_per_s_per_hz == row["bits_per_symbol"], row
        assert ours.bler == pytest.approx(row["block_bler"], abs=0.01)
        theirs = row["bits_per_symbol"] * (1 - row["transport_bler"])
        assert ours.bits_per_s_per_hz * (1 - ours.loss(4000)) == pytest.approx(theirs, rel=0.01)


def test_a_transport_block_is_lost_with_any_of_its_code_blocks() -> None:
    state = AdaptedAir(GENIE, [(flat(8.0),) * 2]).state(0, True, 0.0)
    assert 0.01 < state.bler < 0.1
    assert state.loss(3 * 8448) == pytest.approx(1 - (1 - state.bler) ** 3)


def test_the_recursion_of_proportional_fairness_chooses_as_sionnas_scheduler() -> None:
    found = SIONNA["proportional_fair"]
    rates = np.random.default_rng(found["seed"]).uniform(0.2, 5, (found["slots"], found["ues"])) * 20e3
    assert proportional_fair(rates, lambda metric: int(metric.argmax())) == found["chosen"]


@given(st.floats(-40, 60), st.booleans(), st.floats(1e-3, 0.5))
def test_shannons_bound_is_never_passed(sinr_db: float, up: bool, target: float) -> None:
    air = AdaptedAir(Adaptation(report_ms=0, step_db=0, overhead=0, bler_target=target), [(flat(sinr_db),) * 2])
    state = air.state(0, up, 0.0)
    assert state.bits_per_s_per_hz * (1 - state.bler) <= math.log2(1 + 10 ** (sinr_db / 10))


def test_the_outer_loop_reaches_its_target_with_reports_that_are_wrong() -> None:
    """Reports are 3 dB too high on average: without the outer loop nearly every block is lost."""
    rng, target = np.random.default_rng(0), 0.1
    series = (SinrSeries(12 + 2 * rng.standard_normal(50_000), 1e-3),) * 2
    losses = {}
    for outer_db in (0.0, 0.5):
        known = Adaptation(bler_target=target, outer_db=outer_db, report_ms=1, delay_ms=4, step_db=0)
        air, lost = AdaptedAir(known, series=[series]), []
        for slot in range(40_000):
            state = air.state(0, True, slot * 1e-3)
            lost.append(rng.random() < state.bler)
            air.learn(0, True, lost[-1])
        losses[outer_db] = float(np.mean(lost[5000:]))
    assert losses[0.0] > 0.3
    assert losses[0.5] == pytest.approx(target, abs=0.01)


def test_reports_are_old_and_quantised() -> None:
    series = SinrSeries(np.arange(100, dtype=float) / 2, 1e-3)
    air = AdaptedAir(Adaptation(report_ms=10, delay_ms=4, step_db=2), [(series, series)])
    assert air.sinr_db(0, True, 0.037) == 18.5
    assert air.reported_db(0, True, 0.037) == 14  # sampled at 30 ms: 15 dB
    assert air.reported_db(0, True, 0.033) == 10  # the report of 30 ms is not yet there
    genie = AdaptedAir(GENIE, [(series, series)])
    assert genie.reported_db(0, True, 0.037) == 18.5


def test_a_ue_out_of_range_gets_no_slot_and_others_go_on() -> None:
    async def run() -> list[str]:
        air = AdaptedAir(GENIE, [(flat(-30.0),) * 2, (flat(10.0),) * 2])
        radio, arrived = RadioCell(RadioConfig(), air), []
        for ue in range(2):
            radio.port(ue, True).carry(1000, lambda ue=ue: arrived.append(ue))  # type: ignore[misc]
        await asyncio.sleep(5)
        return arrived

    assert run_virtually(run()) == [1]


# ---------------------------------------------------------------- the model


def snr_db(source: ModelSource, ue: RadioUe, seconds: float = 1.0, seed: int = 0) -> np.ndarray[Any, Any]:
    air = source.air([ue], SPECTRUM, seconds, seed)
    return np.array([air.sinr_db(0, True, t) for t in np.arange(0, seconds, 0.01)])


def test_a_ue_without_fading_has_its_link_budget() -> None:
    source = ModelSource(fading="none", shadowing_db=0)
    found = snr_db(source, RadioUe(0, (100.0, 100.0)))
    noise_dbm = -174 + 10 * math.log10(20e6) + 5
    assert found == pytest.approx(23 - 34 - 10 * 3.53 * 2 - noise_dbm, abs=1e-3)


def test_fading_has_clarkes_correlation_and_shadowing_its_spread() -> None:
    moving = ModelSource(shadowing_db=0)
    air = moving.air([RadioUe(0, (100.0, 100.0 + 1e6), 1.5)], SPECTRUM, 60.0, 3)
    lag_s = 0.012
    t_s = np.arange(0, 59, lag_s)
    power = 10 ** (np.array([air.sinr_db(0, True, t) for t in t_s]) / 10)
    power /= np.convolve(power, np.ones(101) / 101, "same")  # the UE moves: remove the path loss
    got = float(np.corrcoef(power[100:-101], power[101:-100])[0, 1])
    assert got == pytest.approx(j0(2 * math.pi * 1.5 * 3.5e9 / 299792458 * lag_s) ** 2, abs=0.12)
    still = ModelSource(fading="none", shadowing_db=6)
    levels = [snr_db(still, RadioUe(0, (100.0, 100.0)), 0.02, seed)[0] for seed in range(400)]
    assert np.std(levels) == pytest.approx(6, rel=0.15)


def test_interference_is_that_of_six_cells_at_their_load() -> None:
    quiet = ModelSource(fading="none", shadowing_db=0, neighbour_m=300.0)
    busy = ModelSource(fading="none", shadowing_db=0, neighbour_m=300.0, load=0.5)
    airs = [source.air([RadioUe(0, (1.0, 1.0))], SPECTRUM, 1.0, 0) for source in (quiet, busy)]
    signal, both = (10 ** (air.sinr_db(0, False, 0.0) / 10) for air in airs)
    noise_w = 10 ** ((-174 + 9) / 10 - 3) * 20e6
    from_cells_w = 0.5 * 6 * 10 ** (43 / 10 - 3) * 10**-3.4 * 300**-3.53  # at the centre all are as far
    assert signal / both == pytest.approx(1 + from_cells_w / noise_w, rel=0.02)


def test_tdd_fades_alike_in_both_directions_and_fdd_does_not() -> None:
    ue, source = RadioUe(0, (100.0, 100.0)), ModelSource()
    for tdd in (True, False):
        air = source.air([ue], Spectrum(20e6, 1e-3, tdd), 10.0, 0)
        ways = np.array([[air.sinr_db(0, up, t) for t in np.arange(0, 10, 0.05)] for up in (True, False)])
        assert (float(np.std(ways[0] - ways[1])) < 1e-3) == tdd


def test_distances_are_checked() -> None:
    refuse(lambda: ModelSource().air([RadioUe(0, (50.0, 10.0))], SPECTRUM, 1.0, 0), BadInput, "least <= most")
    refuse(lambda: ModelSource(noise_figure_db=(5.0, 99.0)), BadInput, "[0, 50] dB")
