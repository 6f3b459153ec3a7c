"""The passive meter on simulated links with known parameters."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.channel.csi import Csi
from testbed.channel.measuring.passive import PassiveMeter
from testbed.errors import BadInput

Exchange = tuple[int, int, int]
"""Bytes up, bytes down, round trips."""
IDS: Exchange = (32, 45, 1)
FIGURES = ("rtt_ms", "uplink_mbps", "downlink_mbps")


class Link(NamedTuple):
    """The true parameters of a link."""

    rtt_ms: float
    uplink_mbps: float
    downlink_mbps: float

    def seconds(self, exchange: Exchange) -> float:
        """Duration of an exchange: RTTs, uplink and downlink in sequence."""
        up, down, trips = exchange
        return trips * self.rtt_ms / 1e3 + up / (self.uplink_mbps * 125_000) + down / (self.downlink_mbps * 125_000)


LINK = Link(50.0, 20.0, 20.0)


def mixed(rng: np.random.Generator) -> Iterator[Exchange]:
    """Rounds of a run: ids; all hidden states (2048 float16 per token); ids, then the queried hidden states."""
    while True:
        window, down, kind = int(rng.integers(2, 17)), int(rng.integers(30, 60)), rng.integers(3)
        ids = 40 + 4 * window
        yield (
            (ids, down, 1) if kind == 0
            else (ids + 4096 * window, down, 1) if kind == 1
            else (ids + 80 + 4096 * int(rng.integers(1, window + 1)), 2 * down, 2)
        )  # fmt: skip


def both_ways(rng: np.random.Generator) -> Iterator[Exchange]:
    """Traffic that also reveals the downlink rate."""
    while True:
        yield int(rng.integers(100, 60_000)), int(rng.integers(100, 60_000)), 1


def drive(
    meter: PassiveMeter, link: Link, exchanges: Iterable[Exchange], rng: np.random.Generator, *, n: int, noise: float,
    start_s: float = 0.0, step_s: float = 0.1,
) -> float:  # fmt: skip
    """Simulate `n` exchanges with relative Gaussian noise on their durations; returns the time of the last."""
    for i, exchange in zip(range(n), exchanges, strict=False):
        error = 1 + noise * float(rng.standard_normal())
        meter.update(*exchange, link.seconds(exchange) * max(0.1, error), start_s + i * step_s)
    return start_s + n * step_s


def test_before_the_first_exchange_it_is_the_prior_itself() -> None:
    prior = Csi(10.0, 20.0, 50.0, 0.1, 0.2, snr_db=9.0, rssi_dbm=-60.0, source="probe")
    meter = PassiveMeter(prior)
    assert meter.csi() is prior
    assert meter.uncertainty() == pytest.approx(dict.fromkeys(FIGURES, 1.0))
    meter.update(*IDS, 0.0, 1.0)  # below the clock: nothing
    assert meter.csi() is prior


def test_a_splendid_prior_is_trusted_less() -> None:
    unsure = PassiveMeter(Csi(1000.0, 1000.0, 0.2)).uncertainty()
    assert unsure == pytest.approx({"rtt_ms": 100.0, "uplink_mbps": 50.0, "downlink_mbps": 50.0})  # of 20 ms, 20 Mbit/s


@pytest.mark.parametrize("rtt_ms", [0.1, 10.0, 50.0, 400.0])
@pytest.mark.parametrize("mbps", [2.0, 20.0, 100.0, 1000.0])
def test_it_finds_the_link_from_a_prior_that_is_far_off(rtt_ms: float, mbps: float) -> None:
    rng = np.random.default_rng(3)
    meter = PassiveMeter(Csi(mbps, mbps, rtt_ms))
    drive(meter, LINK, mixed(rng), rng, n=60, noise=0.05)
    found = meter.csi()
    assert found.rtt_ms == pytest.approx(50.0, rel=0.05)
    assert found.uplink_mbps == pytest.approx(20.0, rel=0.2)
    assert found.source == "passive"
    assert found.time_s == pytest.approx(5.9)


@pytest.mark.parametrize("link", [Link(5.0, 200.0, 300.0), Link(500.0, 1.0, 5.0), Link(0.4, 900.0, 900.0)])
def test_links_of_other_kinds(link: Link) -> None:
    rng = np.random.default_rng(4)
    meter = PassiveMeter(Csi(20.0, 20.0, 50.0))
    drive(meter, link, both_ways(rng), rng, n=200, noise=0.05)
    found, unsure = meter.csi(), meter.uncertainty()
    for name in FIGURES:
        truth = getattr(link, name)
        assert unsure[name] < 0.4
        assert abs(math.log(getattr(found, name) / truth)) < 3 * unsure[name]


def test_without_noise_it_is_exact() -> None:
    rng = np.random.default_rng(5)
    meter = PassiveMeter(Csi(50.0, 10.0, 20.0))
    drive(meter, LINK, both_ways(rng), rng, n=300, noise=0.0)
    for name in FIGURES:
        assert getattr(meter.csi(), name) == pytest.approx(getattr(LINK, name), rel=1e-3)


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("n", [30, 300])
def test_the_truth_lies_within_two_deviations_as_often_as_it_should(noise: float, n: int) -> None:
    errors: dict[str, list[float]] = {name: [] for name in FIGURES}
    for seed in range(100):
        rng = np.random.default_rng(seed)
        meter = PassiveMeter(Csi(30.0, 15.0, 70.0))
        drive(meter, LINK, both_ways(rng), rng, n=n, noise=noise)
        found, unsure = meter.csi(), meter.uncertainty()
        errors["rtt_ms"].append((found.rtt_ms / LINK.rtt_ms - 1) / unsure["rtt_ms"])
        for name in FIGURES[1:]:  # a rate's uncertainty is that of the time a bit takes
            errors[name].append((getattr(LINK, name) / getattr(found, name) - 1) / unsure[name])
    for name, found_errors in errors.items():
        inside = np.mean(np.abs(found_errors) < 2)
        assert inside >= (0.95 if n == 300 else 0.85), name  # the noise itself is not known well at first
        assert np.std(found_errors) > 0.2, f"{name}: uncertainty that says nothing"


def test_ids_alone_leave_the_rates_to_the_prior_and_say_so() -> None:
    rng = np.random.default_rng(6)
    meter = PassiveMeter(Csi(35.0, 45.0, 10.0))
    drive(meter, LINK, [IDS] * 500, rng, n=500, noise=0.05)
    found, unsure = meter.csi(), meter.uncertainty()
    assert found.rtt_ms == pytest.approx(50.0, rel=0.02)
    assert unsure["rtt_ms"] < 0.03
    assert (found.uplink_mbps, found.downlink_mbps) == pytest.approx((35.0, 45.0), rel=0.01)
    assert min(unsure["uplink_mbps"], unsure["downlink_mbps"]) > 0.9


def test_a_rate_becomes_sure_with_the_uploads_that_show_it() -> None:
    rng = np.random.default_rng(7)
    meter = PassiveMeter(Csi(40.0, 40.0, 50.0))
    end_s = drive(meter, LINK, [IDS] * 30, rng, n=30, noise=0.05)
    before = meter.uncertainty()
    drive(meter, LINK, mixed(rng), rng, n=50, noise=0.05, start_s=end_s)
    after = meter.uncertainty()
    assert after["uplink_mbps"] < before["uplink_mbps"] / 5
    assert after["downlink_mbps"] == pytest.approx(before["downlink_mbps"], rel=0.05)


def test_what_is_long_past_is_forgotten() -> None:
    rng = np.random.default_rng(8)
    prior = Csi(35.0, 35.0, 90.0)
    meter = PassiveMeter(prior, memory_s=5.0)
    end_s = drive(meter, LINK, mixed(rng), rng, n=100, noise=0.05)
    assert meter.csi().uplink_mbps == pytest.approx(20.0, rel=0.15)
    meter.update(*IDS, LINK.seconds(IDS), end_s + 300.0)
    assert meter.csi().uplink_mbps == pytest.approx(35.0, rel=0.05)
    assert meter.uncertainty()["uplink_mbps"] > 0.9
    assert meter.csi().rtt_ms == pytest.approx(50.0, rel=0.1)


@pytest.mark.parametrize("factor", [50.0, 0.02])
def test_one_outlier_moves_nothing(factor: float) -> None:
    rng = np.random.default_rng(9)
    meter = PassiveMeter(Csi(20.0, 20.0, 50.0))
    end_s = drive(meter, LINK, mixed(rng), rng, n=100, noise=0.05)
    before = meter.csi()
    meter.update(*IDS, LINK.seconds(IDS) * factor, end_s)
    after = meter.csi()
    assert after.rtt_ms == pytest.approx(before.rtt_ms, rel=0.01)
    assert after.uplink_mbps == pytest.approx(before.uplink_mbps, rel=0.05)


def test_an_outlier_at_the_very_start_is_mended() -> None:
    rng = np.random.default_rng(10)
    meter = PassiveMeter(Csi(20.0, 20.0, 50.0))
    meter.update(*IDS, 5.0, 0.0)
    drive(meter, LINK, mixed(rng), rng, n=20, noise=0.05, start_s=0.1)
    assert meter.csi().rtt_ms == pytest.approx(50.0, rel=0.05)


def test_rare_outliers_do_not_bias() -> None:
    """One exchange in fifteen takes ten times as long: the estimate follows the median, not the mean."""
    rng = np.random.default_rng(11)
    meter = PassiveMeter(Csi(20.0, 20.0, 50.0))
    for i, exchange in zip(range(400), mixed(rng), strict=False):
        factor = 10.0 if rng.random() < 1 / 15 else 1 + 0.05 * float(rng.standard_normal())
        meter.update(*exchange, LINK.seconds(exchange) * factor, 0.1 * i)
    assert meter.csi().rtt_ms == pytest.approx(50.0, rel=0.05)
    assert meter.csi().uplink_mbps == pytest.approx(20.0, rel=0.3)


@pytest.mark.parametrize(
    "new", [Link(120.0, 20.0, 20.0), Link(120.0, 5.0, 20.0), Link(10.0, 80.0, 20.0), Link(50.0, 3.0, 20.0)]
)
def test_it_follows_a_step(new: Link) -> None:
    rng = np.random.default_rng(12)
    meter = PassiveMeter(Csi(20.0, 20.0, 50.0))
    end_s = drive(meter, LINK, mixed(rng), rng, n=150, noise=0.05)
    drive(meter, new, mixed(rng), rng, n=40, noise=0.05, start_s=end_s)
    assert meter.csi().rtt_ms == pytest.approx(new.rtt_ms, rel=0.1)
    assert meter.csi().uplink_mbps == pytest.approx(new.uplink_mbps, rel=0.3)


def test_three_rounds_show_a_step_of_the_delay() -> None:
    meter = PassiveMeter(Csi(20.0, 20.0, 50.0))
    drive(meter, LINK, [IDS] * 100, np.random.default_rng(13), n=100, noise=0.05)
    seen = []
    for i in range(6):
        meter.update(*IDS, Link(200.0, 20.0, 20.0).seconds(IDS), 10.0 + 0.1 * i)
        seen.append(meter.csi().rtt_ms)
    assert seen[:2] == pytest.approx([50.0, 50.0], rel=0.05)
    assert seen[2] > 100.0
    assert seen[5] == pytest.approx(200.0, rel=0.1)


def test_losses_of_the_prior_stay_and_the_effective_rate_is_what_was_seen() -> None:
    rng = np.random.default_rng(14)
    meter = PassiveMeter(Csi(100.0, 100.0, 50.0, per_up=0.5, per_down=0.2))
    drive(meter, LINK, both_ways(rng), rng, n=300, noise=0.0)
    found = meter.csi()
    assert (found.per_up, found.per_down) == (0.5, 0.2)
    assert found.uplink_mbps == pytest.approx(40.0, rel=0.01)
    assert found.downlink_mbps == pytest.approx(25.0, rel=0.01)
    assert (found.snr_db, found.rssi_dbm) == (None, None)


def test_an_update_takes_constant_and_little_time() -> None:
    meter = PassiveMeter(Csi(20.0, 20.0, 50.0))
    times_s = []
    for i in range(3000):
        start_s = time.perf_counter()
        meter.update(1000 + i, 50, 1, 0.05, 0.1 * i)
        times_s.append(time.perf_counter() - start_s)
    early, late = np.median(times_s[:1000]), np.median(times_s[2000:])
    assert late < 500e-6  # tens of microseconds; the rest is for busy machines
    assert late < 3 * early


@pytest.mark.parametrize(
    "bad",
    [
        (-1, 1, 1, 0.1, 0.0), (1, -1, 1, 0.1, 0.0), (1, 1, -1, 0.1, 0.0), (0, 0, 0, 0.1, 0.0), (1, 1, 1, -0.1, 0.0),
        (1, 1, 1, math.nan, 0.0), (1, 1, 1, math.inf, 0.0), (1, 1, 1, 1e9, 0.0), (1, 1, 1, 0.1, math.nan),
    ],
)  # fmt: skip
def test_what_is_no_exchange(bad: tuple[int, int, int, float, float]) -> None:
    meter = PassiveMeter(Csi(20.0, 20.0, 50.0))
    with pytest.raises(BadInput):
        meter.update(*bad)
    assert meter.csi().source == "assumed"


def test_bad_settings() -> None:
    for memory_s, spread in ((0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, 0.0)):
        with pytest.raises(BadInput, match="must be positive"):
            PassiveMeter(Csi(20.0, 20.0, 50.0), memory_s, spread)


@given(
    st.builds(Csi, st.floats(1e-3, 1e5), st.floats(1e-3, 1e5), st.floats(0, 1e4), st.floats(0, 0.9)),
    st.lists(
        st.tuples(
            st.integers(0, 2**40), st.integers(0, 2**40), st.integers(1, 5), st.floats(0, 86_400),
            st.floats(-1e9, 1e9),
        ),
        max_size=20,
    ),
)  # fmt: skip
def test_whatever_comes_the_state_can_be_used(prior: Csi, exchanges: list[tuple[int, int, int, float, float]]) -> None:
    meter = PassiveMeter(prior)
    for exchange in exchanges:
        meter.update(*exchange)
    found, unsure = meter.csi(), meter.uncertainty()
    assert np.isfinite(found.features).all()
    assert all(math.isfinite(value) and value > 0 for value in unsure.values())
