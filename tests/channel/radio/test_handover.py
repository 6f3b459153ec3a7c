"""Event A3 against the text of 3GPP TS 38.331, cell by cell and UE by UE; places and received powers by hand."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from testbed.channel.radio.handover import A3Events, Handover
from testbed.channel.radio.model import ModelSource, Spectrum
from testbed.channel.radio.network import FARTHEST_M, CellPlace, NetworkChannels, NetworkUe
from testbed.errors import BadInput

PLAIN = ModelSource(shadowing_db=0.0, fading="none")
SPECTRUM = Spectrum(20e6, 1e-3, False)


def test_the_filter_halves_what_is_left_at_coefficient_4() -> None:
    events = A3Events(Handover(filter_coefficient=4.0), 1, 2)
    serving = np.array([0])
    events.measure(0.0, np.array([[-80.0, -100.0]]), serving)
    events.measure(0.04, np.array([[-80.0, -80.0]]), serving)
    assert events.filtered_dbm[0].tolist() == [-80.0, -90.0]
    events.measure(0.08, np.array([[-80.0, -80.0]]), serving)
    assert events.filtered_dbm[0, 1] == -85.0


@pytest.mark.parametrize("better_db", [3.9, 4.1])
def test_a_neighbour_triggers_above_offset_and_hysteresis_after_the_time_to_trigger(better_db: float) -> None:
    events = A3Events(Handover(a3_offset_db=3.0, hysteresis_db=1.0, time_to_trigger_ms=160.0), 1, 2)
    powers = np.array([[-90.0, -90.0 + better_db]])
    found = [events.measure(step * 0.04, powers, np.array([0])) for step in range(6)]
    if better_db < 4:
        assert found == [{}] * 6
    else:
        assert found == [{}, {}, {}, {}, {0: 1}, {0: 1}]


def test_a_dip_starts_the_time_to_trigger_again() -> None:
    events = A3Events(Handover(filter_coefficient=0.0, time_to_trigger_ms=80.0), 1, 2)
    good, bad = np.array([[-90.0, -80.0]]), np.array([[-90.0, -90.0]])
    found = [events.measure(n * 0.04, p, np.array([0])) for n, p in enumerate([good, good, bad, good, good, good])]
    assert found == [{}, {}, {}, {}, {}, {0: 1}]


def scalar_events(config: Handover, powers: np.ndarray, serving: list[int]) -> list[tuple[int, int, int]]:
    """The same for one UE and one neighbour at a time: (step, UE, cell)."""
    weight, found = 1 / 2 ** (config.filter_coefficient / 4), []
    steps, ues, cells = powers.shape
    filtered = [[math.nan] * cells for _ in range(ues)]
    since: list[dict[int, float]] = [{} for _ in range(ues)]
    for step in range(steps):
        now_s = step * config.measure_s
        for ue in range(ues):
            for cell in range(cells):
                old, new = filtered[ue][cell], float(powers[step, ue, cell])
                filtered[ue][cell] = new if step == 0 else (1 - weight) * old + weight * new
            ready = []
            for cell in range(cells):
                enters = filtered[ue][cell] - config.hysteresis_db > filtered[ue][serving[ue]] + config.a3_offset_db
                if cell == serving[ue] or not enters:
                    since[ue].pop(cell, None)
                    continue
                since[ue].setdefault(cell, now_s)
                if now_s - since[ue][cell] >= config.time_to_trigger_ms / 1e3 - 1e-9:
                    ready.append((filtered[ue][cell], cell))
            if ready:
                found.append((step, ue, max(ready)[1]))
                serving[ue], since[ue] = max(ready)[1], {}
    return found


def test_events_of_many_ues_are_those_of_each_alone() -> None:
    config = Handover(a3_offset_db=2.0, hysteresis_db=0.5, time_to_trigger_ms=120.0, filter_coefficient=3.0)
    powers = np.cumsum(np.random.default_rng(5).normal(0, 2.0, (200, 7, 4)), axis=0) - 90
    events, serving, found = A3Events(config, 7, 4), np.arange(7) % 4, []
    expected = scalar_events(config, powers, serving.tolist())
    for step, measured in enumerate(powers):
        for ue, cell in sorted(events.measure(step * config.measure_s, measured, serving).items()):
            found.append((step, ue, cell))
            serving[ue] = cell
            events.moved(ue)
    assert len(expected) > 20
    assert found == expected


def test_powers_along_a_path_are_those_of_the_distances() -> None:
    """At 10 m/s from (10, 5), after 3 s at (40, 5)."""
    ue = NetworkUe(speed_mps=10.0, path_m=((10.0, 5.0), (110.0, 5.0)))
    channels = NetworkChannels(PLAIN, [CellPlace(0j), CellPlace(200 + 0j)], [ue], SPECTRUM, 30.0, seed=0)
    expected = [43 - 34 - 35.3 * math.log10(math.hypot(x, 5)) for x in (40, 160)]
    assert channels.rsrp_dbm(3.0)[0].tolist() == pytest.approx(expected, abs=1e-4)
    assert channels.rsrp_dbm(17.0)[0].tolist() == pytest.approx(expected, abs=1e-4)  # on its way back


def test_a_ue_alone_has_the_snr_of_its_link_budget() -> None:
    """100 m: 43 - 34 - 70.6 dBm against -174 + 9 + 73.01 dBm."""
    ue = NetworkUe(path_m=((100.0, 0.0), (101.0, 0.0)))
    channels = NetworkChannels(PLAIN, [CellPlace(0j), CellPlace(500 + 0j)], [ue], SPECTRUM, 1.0, seed=0)
    assert channels.sinr_db(0, 0, False, 0.0) == pytest.approx(43 - 104.6 + 174 - 9 - 73.0103, abs=1e-3)
    assert channels.sinr_db(0, 0, True, 0.0) == pytest.approx(23 - 104.6 + 174 - 5 - 73.0103, abs=1e-3)


def test_shadowing_of_two_base_stations_is_independent_and_repeats_with_the_seed() -> None:
    ues = [NetworkUe(path_m=((100.0, 0.0), (100.0, 9.0)))] * 2000
    source = ModelSource(shadowing_db=8.0, fading="none")
    made = [
        NetworkChannels(source, [CellPlace(0j), CellPlace(200 + 0j)], ues, SPECTRUM, 0.1, seed=3).rsrp_dbm(0.0)
        for _ in range(2)
    ]
    assert np.array_equal(*made)
    own, other = made[0].T
    assert np.std(own) == pytest.approx(8.0, rel=0.1)
    assert abs(np.corrcoef(own, other)[0, 1]) < 0.1


@pytest.mark.parametrize("ue", [NetworkUe((0.0, 10.0)), NetworkUe((20.0, 10.0)), NetworkUe(path_m=((1.0, 1.0),))])
def test_places_that_cannot_be_are_refused(ue: NetworkUe) -> None:
    with pytest.raises(BadInput, match=r"distances|path"):
        NetworkChannels(PLAIN, [CellPlace(0j), CellPlace(200 + 0j)], [ue], SPECTRUM, 1.0, seed=0)


@pytest.mark.parametrize(("degrees", "gain_db"), [(30.0, 8.0), (62.5, 5.0), (-2.5, 5.0), (95.0, -4.0), (210.0, -22.0)])
def test_a_sector_has_the_gain_of_its_antenna(degrees: float, gain_db: float) -> None:
    """8 - min(12 (φ / 65°)², 30) dB: half the power at half the beamwidth, at most 30 dB less behind."""
    away = 100 * np.exp(1j * math.radians(degrees))
    ue = NetworkUe(path_m=((away.real, away.imag), (away.real + 1, away.imag)))
    cells = [CellPlace(0j, 30.0), CellPlace(0j, 150.0), CellPlace(0j)]
    found = NetworkChannels(PLAIN, cells, [ue], SPECTRUM, 1.0, seed=0).rsrp_dbm(0.0)[0]
    assert found[0] - found[2] == pytest.approx(gain_db, abs=1e-4)


def test_sectors_of_a_base_station_share_its_shadowing() -> None:
    ues = [NetworkUe(path_m=((100.0, 0.0), (100.0, 9.0)))] * 20
    cells = [CellPlace(0j, 30.0), CellPlace(0j, -30.0), CellPlace(200 + 0j)]
    powers = NetworkChannels(ModelSource(fading="none"), cells, ues, SPECTRUM, 0.1, seed=3).rsrp_dbm(0.0)
    assert powers[:, 0] == pytest.approx(powers[:, 1], abs=1e-4)
    assert np.std(powers[:, 2] - powers[:, 0]) > 3


def test_more_channels_than_memory_should_hold_are_refused() -> None:
    with pytest.raises(BadInput, match="too many"):
        NetworkChannels(PLAIN, [CellPlace(complex(x)) for x in range(200)], [NetworkUe()] * 5000, SPECTRUM, 60.0, 0)


def test_gains_are_computed_in_little_more_memory_than_they_take() -> None:
    """Copies in 64 bits took seven times as much."""
    cells = [CellPlace(complex(100 * (number // 12)), 30.0 * (number % 12)) for number in range(240)]
    channels = NetworkChannels(ModelSource(), cells, [NetworkUe((5.0, 90.0), 5.0)], SPECTRUM, 400.0, 0)
    tracemalloc.start()
    try:
        size, (_, peak) = channels.gains[0].nbytes, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == 4 * 240 * 4000
    assert peak < 1.4 * size


def test_gains_of_a_ue_at_rest_are_those_of_its_first_place_and_kept_once() -> None:
    cells = [CellPlace(0j, 30.0), CellPlace(0j, 150.0), CellPlace(60 + 0j), CellPlace(90j, 270.0)]
    still, moving = (
        NetworkChannels(ModelSource(), cells, [NetworkUe((5.0, 90.0), mps)], SPECTRUM, 50.0, 3, rest_s=2.0).gains[0]
        for mps in (0.0, 4.0)
    )
    assert still.shape == moving.shape == (4, 520)
    assert np.ptp(moving) > 0 and moving[:, 0].tobytes() == still[:, 0].tobytes()
    assert (still == still[:, :1]).all()
    assert still.strides == (4, 0)


def test_powers_from_afar_stay_numbers() -> None:
    source = ModelSource(shadowing_db=0.0, fading="none", exponent=10.0)
    ue = NetworkUe(path_m=((FARTHEST_M, 0.0), (FARTHEST_M / 2, 0.0)))
    channels = NetworkChannels(source, [CellPlace(0j), CellPlace(1j)], [ue], SPECTRUM, 1.0, 0)
    assert np.isfinite(channels.rsrp_dbm(0.0)).all()
    assert channels.sinr_db(0, 0, True, 0.0) < -100


def test_ues_that_rest_at_first_move_as_they_would_have_without_it() -> None:
    cells, ues = [CellPlace(0j), CellPlace(60 + 0j)], [NetworkUe(path_m=((0, 5), (60, 5)), speed_mps=20.0)]
    moving, resting = (
        NetworkChannels(ModelSource(), cells, ues, SPECTRUM, 5.0, seed=4, rest_s=rest_s) for rest_s in (0.0, 2.0)
    )
    gains, rested = moving.gains[0], resting.gains[0]
    rest = rested.shape[1] - gains.shape[1]
    assert resting.at(2.0) == rest > 0 and np.ptp(gains) > 0
    np.testing.assert_array_equal(rested[:, rest:], gains)
    np.testing.assert_array_equal(rested[:, :rest], np.repeat(gains[:, :1], rest, axis=1))
    at_s = np.arange(0.0, 4.9, 0.0123)
    sinr, rested_sinr = (
        [channels.sinr_db(0, 1, up, after_s + t_s) for t_s in at_s for up in (True, False)]
        for channels, after_s in ((moving, 0.0), (resting, 2.0))
    )
    assert sinr == rested_sinr and np.ptp(sinr) > 10, "small-scale fading as well"
    assert resting.sinr_db(0, 1, True, 1.3) == moving.sinr_db(0, 1, True, 0.0)
