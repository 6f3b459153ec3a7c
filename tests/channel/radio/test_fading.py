"""Fading models against textbook moments, simulated durations, and values computed by hand."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from scipy.special import j0
from scipy.stats import kstest

from testbed.channel.radio.cell import Cell, Crowd, Mobility, rounded, scaled
from testbed.channel.radio.fading import (
    Blockage,
    GilbertElliott,
    PathLoss,
    Shadowing,
    SmallScale,
    clarke,
    coherence_time_s,
    shannon_mbps,
)
from testbed.errors import BadInput

STILL = Cell(small_scale=SmallScale("none"))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# ---------------------------------------------------------------- numbers by hand


def test_shannon_by_hand() -> None:
    assert shannon_mbps(20e6, 1.0, 1.0) == pytest.approx(20)  # log2(2) = 1
    assert shannon_mbps(20e6, 0.25, 1023.0) == pytest.approx(50)  # a quarter of 20 MHz, 10 bit/s/Hz
    assert shannon_mbps(1e6, 1.0, np.array([0.0, 3.0, 7.0])).tolist() == pytest.approx([0, 2, 3])


def test_a_still_ue_of_the_paper_by_hand() -> None:
    # 200 m: g = 1e-6 / 4e4 = 2.5e-11; p·g/σ² = 0.2 · 2.5e-11 / 2.5e-14 = 200; 20 MHz · log2(201) = 153.0 Mbit/s
    (trace,) = STILL.traces([Mobility(200.0)], 3.0, 1.0, seed=0)
    assert trace.uplink_mbps.tolist() == pytest.approx([153.02] * 3, abs=0.01)
    assert trace.snr_db.tolist() == pytest.approx([23.0103] * 3, abs=1e-4)
    assert (trace.duration_s, trace.rtt_ms.tolist(), trace.per_up.tolist()) == (3.0, [20] * 3, [0] * 3)
    # the BS has ten times the power: log2(2001) = 10.9665
    assert trace.downlink_mbps[0] == pytest.approx(219.33, abs=0.01)


def test_path_loss_by_hand() -> None:
    assert PathLoss().gains(np.array([1.0, 10.0, 400.0])).tolist() == pytest.approx([1e-6, 1e-8, 6.25e-12])
    assert PathLoss(1e-3, 3.0).gains(np.array([10.0])).tolist() == pytest.approx([1e-6])


def test_coherence_time_by_hand() -> None:
    # 3 m/s at 3 GHz: Doppler 30.02 Hz; 9 / (16 π · 30.02) = 5.964 ms
    assert coherence_time_s(3.0, 3e9) == pytest.approx(5.964e-3, rel=1e-3)


# ---------------------------------------------------------------- small-scale fading


def powers(kind: Any, k_db: float = 0.0, n: int = 40_000) -> np.ndarray[Any, Any]:
    return SmallScale(kind, k_db, coherence_s=0.1).powers(rng(), n, 1.0)[:, 0]


def test_rayleigh_gains_are_exponential_of_mean_one() -> None:
    rho = np.sort(powers("rayleigh"))
    assert rho.mean() == pytest.approx(1, abs=0.02)
    # Kolmogorov-Smirnov against 1 − e^(−x): beyond 1.95 / sqrt(n) one time in a thousand
    theirs, ours = 1 - np.exp(-rho), np.arange(1, rho.size + 1) / rho.size
    assert np.abs(theirs - ours).max() < 1.95 / math.sqrt(rho.size)


@pytest.mark.parametrize(("k_db", "variance"), [(0.0, 3 / 4), (6.0206, 9 / 25), (10.0, 21 / 121), (-40.0, 1.0)])
def test_rician_moments(k_db: float, variance: float) -> None:
    # |h|² of Rice's distribution: mean 1, variance (1 + 2K) / (1 + K)²; K of 1, 4, 10 and next to none
    rho = powers("rician", k_db)
    assert rho.mean() == pytest.approx(1, abs=0.02)
    assert rho.var() == pytest.approx(variance, rel=0.06)


def test_no_fading() -> None:
    assert SmallScale("none").powers(rng(), 5, 0.1).tolist() == [[1.0]] * 5


@pytest.mark.parametrize("doppler", [0.004, 0.05, 0.31, 0.8])
def test_clarke_correlates_as_the_bessel_function(doppler: float) -> None:
    n = 400_000
    lags = np.unique(np.linspace(0, 4 / doppler, 40).astype(int))
    gains = [clarke(rng(seed), n, doppler) for seed in range(3)]
    found = np.mean([[np.vdot(h[: n - lag], h[lag:]) / (n - lag) for lag in lags] for h in gains], axis=0)
    # independent samples in n: about n·f_D/2 of them
    assert np.abs(found - j0(2 * math.pi * doppler * lags)).max() < 5 / math.sqrt(3 * n * min(doppler, 0.5))
    assert kstest(np.abs(gains[0][:: max(1, math.ceil(20 / doppler))]) ** 2, "expon").pvalue > 1e-3


@pytest.mark.parametrize("doppler", [0.0, 5e-324, 1e-200])
def test_who_hardly_moves_has_one_gain(doppler: float) -> None:
    gains = clarke(rng(0), 100, doppler)
    assert np.isfinite(gains).all() and np.abs(np.diff(gains)).max() < 1e-6


def test_a_short_process_is_constant_and_of_variance_one() -> None:
    gains = np.array([clarke(rng(seed), 4, 1e-3) for seed in range(1000)])
    assert np.abs(np.diff(gains, axis=1)).max() < 0.03
    assert (np.abs(gains[:, 0]) ** 2).mean() == pytest.approx(1, abs=5 / math.sqrt(1000))


@pytest.mark.parametrize("coherence_s", [0.5, 2.0])
def test_power_correlates_by_one_half_at_the_coherence_time(coherence_s: float) -> None:
    rho = SmallScale("rayleigh", coherence_s=coherence_s).powers(rng(4), 200_000, 0.1)[:, 0]
    for turns in (1, 2, 4):
        lag = round(turns * coherence_s / 0.1)
        expected = j0(2 * math.pi * 9 / (16 * math.pi) * turns) ** 2
        assert np.corrcoef(rho[:-lag], rho[lag:])[0, 1] == pytest.approx(expected, abs=0.05)
    assert j0(9 / 8) ** 2 == pytest.approx(0.5, abs=0.01)


def test_default_steps_resolve_the_fades_of_a_walk() -> None:
    walk = SmallScale("rayleigh")  # 1.4 m/s at 3.5 GHz: 16.3 Hz, coherence time 10.96 ms
    assert walk.default_step_s(1.4, 60.0, 50_000) == pytest.approx(0.0028)
    assert walk.default_step_s(1.4, 600.0, 50_000) == pytest.approx(0.012)  # as many samples as allowed
    assert (walk.default_step_s(30.0, 10.0, 50_000), walk.default_step_s(0.0, 10.0, 50_000)) == (0.001, 0.1)
    cell, ue = Cell(small_scale=walk), Mobility(100.0, 1.4)
    fine, coarse = (cell.traces([ue], 20.0, step_s, 0)[0].uplink_mbps for step_s in (0.0028, 0.2))
    assert fine.std() > 2.5 * coarse.std()  # what a round of some milliseconds meets, and what an average hides


def test_fdd_fades_apart_and_tdd_together() -> None:
    fdd, tdd = Cell(downlink_w=0.2), Cell(downlink_w=0.2, duplex="tdd", uplink_time=0.2)
    (apart,), (together,) = (cell.traces([Mobility(100.0)], 2000.0, 1.0, 0) for cell in (fdd, tdd))
    assert abs(np.corrcoef(apart.uplink_mbps, apart.downlink_mbps)[0, 1]) < 0.15
    assert (4 * together.uplink_mbps).tolist() == pytest.approx(together.downlink_mbps.tolist())
    assert (5 * together.uplink_mbps).tolist() == pytest.approx(apart.uplink_mbps.tolist())


def test_steps_longer_than_the_coherence_time_are_averages() -> None:
    fast = SmallScale("rayleigh", coherence_s=0.05).powers(rng(1), 2000, 1.0)
    assert fast.shape == (2000, 64)
    assert fast.mean(axis=1).var() < 0.2 * fast.var()
    assert SmallScale("rayleigh").powers(rng(1), 10, 1.0, speed_mps=30.0).shape == (10, 64)


# ---------------------------------------------------------------- shadowing, loss, blockage


def test_shadowing_spreads_in_db_and_fades_over_the_way() -> None:
    db = 10 * np.log10(Shadowing(6.0, 10.0).gains(rng(2), np.full(60_000, 1.0)))
    assert db.mean() == pytest.approx(0, abs=0.5) and db.std() == pytest.approx(6, rel=0.05)
    for metres in (5, 10, 20):
        assert np.corrcoef(db[:-metres], db[metres:])[0, 1] == pytest.approx(math.exp(-metres / 10), abs=0.05)
    still = Shadowing(6.0, 10.0).gains(rng(2), np.zeros(50))
    assert len(set(still.tolist())) == 1 and still[0] != 1


def runs(values: np.ndarray[Any, Any]) -> list[int]:
    """Lengths of the runs of True, without those at the ends."""
    lengths = [(on, len(list(group))) for on, group in groupby(values.tolist())][1:-1]
    return [length for on, length in lengths if on]


@pytest.mark.parametrize(("mean", "good", "bad", "burst_s"), [(0.1, 0.0, 0.5, 1.0), (0.05, 0.01, 0.2, 0.4)])
def test_gilbert_elliott_mean_and_bursts(mean: float, good: float, bad: float, burst_s: float) -> None:
    rates = GilbertElliott(mean, burst_s, good, bad).rates(rng(3), 200_000, 0.1)
    assert set(rates.tolist()) == {good, bad}
    assert rates.mean() == pytest.approx(mean, rel=0.05)
    lengths = runs(rates == bad)
    assert np.mean(lengths) * 0.1 == pytest.approx(burst_s, rel=0.05)
    # geometric: the share of bursts of one step is the chance of leaving
    assert np.mean(np.array(lengths) == 1) == pytest.approx(0.1 / burst_s, abs=0.03)


def test_gilbert_elliott_starts_as_it_goes_on() -> None:
    starts = [GilbertElliott(0.2, 5.0, 0.0, 0.5).rates(rng(seed), 1, 0.1)[0] for seed in range(4000)]
    assert np.mean(starts) == pytest.approx(0.2, abs=0.02)
    assert GilbertElliott(0.1, 1.0, good=0.1).rates(rng(), 50, 9.0).tolist() == [0.1] * 50


def test_blockage_comes_and_goes() -> None:
    gains = Blockage(10.0, 2.0, 30.0).gains(rng(5), 200_000, 0.1)
    assert sorted(set(gains.tolist())) == pytest.approx([1e-3, 1.0])
    assert (gains < 1).mean() == pytest.approx(2 / 12, rel=0.06)
    assert np.mean(runs(gains < 1)) * 0.1 == pytest.approx(2.0, rel=0.06)
    assert np.mean(runs(gains == 1)) * 0.1 == pytest.approx(10.0, rel=0.06)
    assert Blockage().gains(rng(), 3, 0.1).tolist() == [1.0] * 3


# ---------------------------------------------------------------- cells


def test_a_moving_ue_goes_there_and_back() -> None:
    t_s = np.array([0.0, 5.0, 10.0, 12.0, 20.0, 25.0])
    assert Mobility(10.0, 2.0, 30.0).distances(t_s).tolist() == [10, 20, 30, 26, 10, 20]
    assert Mobility(30.0, 2.0, 10.0).distances(t_s).tolist() == [30, 20, 10, 14, 30, 20]
    assert Mobility(7.0).distances(t_s).tolist() == [7] * 6
    (trace,) = STILL.traces([Mobility(10.0, 2.0, 30.0)], 20.0, 1.0, seed=0)
    assert (np.diff(trace.uplink_mbps[:11]) < 0).all() and (np.diff(trace.uplink_mbps[10:]) > 0).all()
    assert trace.snr_db[0] - trace.snr_db[10] == pytest.approx(20 * math.log10(3))


def test_ues_share_the_uplink() -> None:
    (alone,) = STILL.traces([Mobility(50.0)], 2.0, 1.0, seed=0)
    near, far = STILL.traces([Mobility(50.0), Mobility(300.0)], 2.0, 1.0, seed=0)
    assert (near.uplink_mbps * 2).tolist() == pytest.approx(alone.uplink_mbps.tolist())
    assert (far.uplink_mbps < near.uplink_mbps).all()
    more, less = STILL.traces([Mobility(50.0)] * 2, 2.0, 1.0, seed=0, shares=[0.7, 0.1])
    assert (more.uplink_mbps / less.uplink_mbps).tolist() == pytest.approx([7, 7])


def test_the_crowd_is_poisson_takes_its_share_and_queues() -> None:
    sizes = Crowd(20.0, 2.0).sizes(rng(6), 40_000, 0.5)
    assert sizes.mean() == pytest.approx(20, rel=0.02) and sizes.var() == pytest.approx(20, rel=0.1)
    assert np.corrcoef(sizes[:-4], sizes[4:])[0, 1] == pytest.approx(math.exp(-1), abs=0.05)
    cell = Cell(small_scale=SmallScale("none"), crowd=Crowd(5.0), queue_ms=3.0, rtt_ms=10.0)
    (alone,) = STILL.traces([Mobility(50.0)], 60.0, 1.0, seed=1)
    (crowded,) = cell.traces([Mobility(50.0)], 60.0, 1.0, seed=1)
    others = (crowded.rtt_ms - 10) / 3
    assert len(set(others.tolist())) > 3
    assert (crowded.uplink_mbps * (1 + others)).tolist() == pytest.approx(alone.uplink_mbps.tolist())


def test_below_the_least_snr_nothing_gets_through() -> None:
    cell = Cell(small_scale=SmallScale("none"), blockage=Blockage(3.0, 3.0, 80.0))
    (trace,) = cell.traces([Mobility(100.0)], 60.0, 1.0, seed=2)
    blocked = trace.snr_db < -7
    assert 0 < blocked.sum() < 60
    assert ((trace.uplink_mbps == 0) == blocked).all() and ((trace.downlink_mbps == 0) == blocked).all()


def test_the_same_seed_gives_the_same_and_another_another() -> None:
    cell = Cell(shadowing=Shadowing(4.0), loss=GilbertElliott(0.1), jitter_ms=5.0)
    ues = [Mobility(50.0, 1.0), Mobility(60.0, 1.0)]
    first, again, other = (cell.traces(ues, 20.0, 0.5, seed) for seed in (3, 3, 4))
    for name in first[0].columns:
        assert first[1].columns[name].tolist() == again[1].columns[name].tolist()
    assert first[0].snr_db.tolist() != other[0].snr_db.tolist()
    assert np.corrcoef(first[0].rtt_ms, first[1].rtt_ms)[0, 1] < 0.9
    # a use that is switched on leaves the others as they were, and so does a UE that joins
    (plain,) = Cell(shadowing=Shadowing(4.0)).traces(ues[:1], 20.0, 0.5, 3)
    assert plain.snr_db.tolist() == first[0].snr_db.tolist()


def test_scaled_to_a_measured_mean() -> None:
    (trace,) = Cell().traces([Mobility(20.0)], 60.0, 0.5, seed=0)
    found, factor = scaled(trace, 172.0)
    assert rounded(found).means()["uplink_mbps"] == pytest.approx(172.0, abs=1e-3)
    assert (found.downlink_mbps / trace.downlink_mbps).tolist() == pytest.approx([factor] * 120)
    (never,) = Cell(blockage=Blockage(0.5, 1e9, 200.0)).traces([Mobility(20.0)], 60.0, 0.5, seed=0)
    assert not never.uplink_mbps.any()
    with pytest.raises(BadInput, match="always in outage"):
        scaled(never, 172.0)
    with pytest.raises(BadInput, match="must be positive"):
        scaled(trace, 0.0)


def test_rounding_keeps_samples_apart() -> None:
    (trace,) = Cell().traces([Mobility(20.0)], 1.0, 0.001, seed=0)
    assert rounded(trace).t_s[3] == 0.003 and len(rounded(trace)) == 1000


# ---------------------------------------------------------------- refused

NAN = math.nan


@pytest.mark.parametrize(
    ("kind", "wrong", "said"),
    [
        (PathLoss, {"reference_gain": 0.0}, "gain at 1 m"),
        (PathLoss, {"exponent": NAN}, "exponent"),
        (SmallScale, {"kind": "nakagami"}, "unknown fading 'nakagami'; known: none, rayleigh, rician"),
        (SmallScale, {"k_db": NAN}, "K-factor"),
        (SmallScale, {"coherence_s": 0.0}, "coherence time must be positive"),
        (SmallScale, {"carrier_hz": -1.0}, "carrier"),
        (Shadowing, {"sigma_db": -1.0}, "shadowing"),
        (Shadowing, {"decorrelation_m": 0.0}, "decorrelation"),
        (GilbertElliott, {"mean": 0.5}, "0 <= good <= mean < bad < 1"),
        (GilbertElliott, {"mean": 0.1, "good": 0.2}, "0 <= good <= mean < bad < 1"),
        (GilbertElliott, {"mean": NAN}, "0 <= good <= mean < bad < 1"),
        (GilbertElliott, {"burst_s": 0.0}, "burst"),
        (Blockage, {"every_s": 0.0}, "positive times"),
        (Blockage, {"for_s": math.inf}, "positive times"),
        (Blockage, {"loss_db": -3.0}, "blockage must cost"),
        (Mobility, {"distance_m": 0.0}, "distances must be positive"),
        (Mobility, {"distance_m": 5.0, "speed_mps": -1.0}, "speed"),
        (Mobility, {"distance_m": 5.0, "speed_mps": 1.0, "until_m": 5.0}, "an until_m other than 5 m"),
        (Crowd, {"mean": -1.0}, "others"),
        (Crowd, {"stay_s": 0.0}, "stay"),
        (Cell, {"bandwidth_hz": 0.0}, "bandwidth_hz must be positive"),
        (Cell, {"noise_w": NAN}, "noise_w must be positive"),
        (Cell, {"jitter_ms": -1.0}, "jitter_ms must be finite and not negative"),
        (Cell, {"jitter_ms": 11.0}, "needs an RTT of at least 22 ms"),
        (Cell, {"duplex": "half"}, "unknown duplex 'half'; known: fdd, tdd"),
        (Cell, {"uplink_time": 1.0}, "share of the time"),
        (Cell, {"outage_snr_db": NAN}, "SNR of an outage"),
    ],
)
def test_models_that_make_no_sense(kind: Any, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        kind(**wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ues": []}, "at least one UE"),
        ({"seconds": 0.0}, "make no trace"),
        ({"step_s": 0.0}, "make no trace"),
        ({"step_s": 3.0}, "make no trace"),
        ({"seconds": math.inf}, "make no trace"),
        ({"seconds": 1e6}, "exceed 50000 samples"),
        ({"seed": -1}, "seed must not be negative"),
        ({"shares": [0.5, 0.5]}, "1 UEs need 1 positive shares"),
        ({"shares": [1.1]}, "add up to 1 at most"),
        ({"shares": [0.0]}, "positive shares"),
    ],
)
def test_traces_that_cannot_be_made(wrong: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"ues": [Mobility(20.0)], "seconds": 2.0, "step_s": 1.0, "seed": 0} | wrong
    with pytest.raises(BadInput, match=said):
        STILL.traces(**given)


def test_steps_too_long_for_what_happens_in_them() -> None:
    with pytest.raises(BadInput, match="a step of 2 s is too long for bursts of loss of 1 s"):
        Cell(loss=GilbertElliott(0.1, 1.0)).traces([Mobility(20.0)], 10.0, 2.0, seed=0)
    with pytest.raises(BadInput, match="a step of 2 s is too long for blockage every 9 s for 1 s"):
        Cell(blockage=Blockage(9.0, 1.0)).traces([Mobility(20.0)], 10.0, 2.0, seed=0)
