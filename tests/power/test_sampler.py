"""Sampler, replay of recorded samples, and sources by name."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import numpy as np
import pytest

from testbed.errors import BadInput, SensorError
from testbed.power import sources
from testbed.power.reading import PowerSource, Reading
from testbed.power.replay import Replay
from testbed.power.sampler import LAST_S, STOP_S, Sampler
from testbed.power.series import Samples
from testbed.power.sources import Sum, check_source, open_source, survey
from tests.support.refusals import refuse


def recording(seconds: float = 0.3, step_s: float = 0.01) -> Samples:
    times_s = np.arange(0, seconds, step_s)
    return Samples(5000 + times_s, 3 + times_s, {"a": 3 + times_s}, 40 + times_s, ("",) * len(times_s), source="file")


def wait_for(done: object, seconds: float = 20.0) -> None:
    deadline_s = time.perf_counter() + seconds
    while not done() and time.perf_counter() < deadline_s:  # type: ignore[operator]
        time.sleep(0.005)


def test_recorded_samples_are_replayed_in_real_time() -> None:
    taken: list[Reading] = []
    samples = recording()
    sampler = Sampler(Replay(samples), taken.append)
    sampler.start()
    wait_for(lambda: sampler.missed >= 3)  # after the last sample
    sampler.stop()
    sampler.stop()
    assert sampler.failure is None and sampler.samples == len(taken)
    times_s = np.array([reading.time_s for reading in taken])
    assert (np.diff(times_s) > 0).all()
    # which samples are read depends on timing, their values do not
    places = (times_s - times_s[0]) / 0.01
    begin = round((taken[0].total_w - 3) / 0.01)
    np.testing.assert_allclose(places, np.round(places), atol=1e-6)
    for reading, place in zip(taken, np.round(places).astype(int) + begin, strict=True):
        assert reading.total_w == samples.total_w[place]
        assert reading.rails == {"a": samples.rails["a"][place]}
        assert reading.temp_c == pytest.approx(40 + 0.01 * place)


@pytest.mark.parametrize("step_s", [0.05, 0.4])
def test_the_last_reading_comes_after_the_call_that_stops(step_s: float) -> None:
    """The energy of a run's last round was missing where the round ended after the last reading."""
    taken: list[Reading] = []
    sampler = Sampler(Replay(recording(20.0, step_s)), taken.append)
    sampler.start()
    wait_for(lambda: taken)
    stopped_s = time.perf_counter()
    sampler.stop()
    ended_s = time.perf_counter()
    assert stopped_s <= taken[-1].time_s <= ended_s < stopped_s + LAST_S
    assert len(taken) < 2 or taken[-2].time_s < stopped_s


def test_a_long_period_does_not_keep_the_last_reading_from_coming() -> None:
    taken: list[Reading] = []
    sampler = Sampler(Replay(recording(20.0, 0.4)), taken.append, period_s=60.0)
    sampler.start()
    wait_for(lambda: taken)
    stopped_s = time.perf_counter()
    sampler.stop()
    assert stopped_s <= taken[-1].time_s


def test_a_source_that_has_ended_does_not_hold_up_the_stop() -> None:
    sampler = Sampler(Replay(recording()), lambda reading: None)
    sampler.start()
    wait_for(lambda: sampler.missed)
    stopped_s = time.perf_counter()
    missed, why = sampler.missed, sampler.why
    sampler.stop()
    assert time.perf_counter() - stopped_s < STOP_S
    assert (sampler.missed - missed <= 1, sampler.why) == (True, why), "failures after the call do not count"


class Flaky:
    """Every other reading fails."""

    name, period_s, mean, total = "flaky", 0.001, False, "all"

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> Reading:
        self.reads += 1
        if self.reads % 2:
            raise SensorError("not now")
        return Reading(self.reads // 4 * 1.0, {}, 1.0)  # and every other one is outdated

    def close(self) -> None:
        pass


def test_readings_that_fail_or_are_old_are_left_out() -> None:
    taken: list[Reading] = []
    sampler = Sampler(Flaky(), taken.append)
    sampler.start()
    wait_for(lambda: len(taken) >= 5)
    sampler.stop()
    assert [reading.time_s for reading in taken[:5]] == [0, 1, 2, 3, 4]
    assert sampler.missed >= 8 and sampler.why == "not now"


class Hanging(Flaky):
    """A reading that fails after a while."""

    def read(self) -> Reading:
        self.reads += 1
        time.sleep(0.3)
        raise SensorError("hung")


def test_a_reading_that_hangs_at_the_end_is_counted() -> None:
    source = Hanging()
    sampler = Sampler(source, lambda reading: None)
    sampler.start()
    wait_for(lambda: source.reads)
    sampler.stop()
    assert (sampler.missed, sampler.why) == (1, "hung")


def test_a_full_disk_ends_the_sampling_and_is_reported() -> None:
    def refuse_to_write(reading: Reading) -> None:
        raise OSError("no space left")

    sampler = Sampler(Replay(recording()), refuse_to_write)
    sampler.start()
    wait_for(lambda: sampler.failure is not None)
    sampler.stop()
    assert "no space left" in str(sampler.failure)
    assert sampler.samples == 0


# ---------------------------------------------------------------- by name


class Fixed:
    """A source of one reading."""

    period_s = 0.1

    def __init__(self, name: str, power_w: float, mean: bool, throttled: str | None) -> None:
        self.name, self._power_w, self.mean, self._throttled = name, power_w, mean, throttled
        self.total, self.closed = f"all of {name}", 0

    def read(self) -> Reading:
        return Reading(self._power_w, {"x": self._power_w}, self._power_w, self._power_w, self._throttled)

    def close(self) -> None:
        self.closed += 1


def lend(monkeypatch: pytest.MonkeyPatch, *there: Fixed) -> None:
    """Simulate a machine with these sources only."""

    def missing() -> PowerSource:
        raise SensorError("not on this machine")

    known = dict.fromkeys(sources.SOURCES, missing) | {one.name: (lambda one=one: one) for one in there}
    monkeypatch.setattr(sources, "SOURCES", known)


def test_auto_takes_the_first_or_all(monkeypatch: pytest.MonkeyPatch) -> None:
    pi, rapl, nvml = Fixed("pi", 1, False, None), Fixed("rapl", 2, True, ""), Fixed("nvml", 4, True, "thermal")
    lend(monkeypatch, pi, rapl, nvml)
    assert open_source("auto", sources.UE) is pi
    both = open_source("auto", sources.BS, every=True)
    assert isinstance(both, Sum) and both.mean
    assert both.read() == Reading(4, {"nvml:x": 4, "rapl:x": 2}, 6, 4, "thermal")
    assert both.total == "nvml (all of nvml) + rapl (all of rapl)"
    before = nvml.closed, rapl.closed
    both.close()
    assert (nvml.closed, rapl.closed) == (before[0] + 1, before[1] + 1)


def test_sources_that_cannot_be_summed_are_refused_or_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml, rapl = Fixed("nvml", 1, False, None), Fixed("rapl", 2, True, None)
    lend(monkeypatch, nvml, rapl)
    refuse(lambda: open_source("nvml,rapl", sources.BS), BadInput, "cannot be added up")
    assert nvml.closed == rapl.closed == 1
    assert open_source("auto", sources.BS, every=True) is nvml
    refuse(lambda: open_source("nvml,pi", sources.BS), BadInput, "power source pi: not on this machine")
    assert nvml.closed == 3  # opened by auto, and closed without a Pi


def test_a_machine_without_sensors(monkeypatch: pytest.MonkeyPatch) -> None:
    lend(monkeypatch)
    assert open_source("auto", sources.UE) is open_source("none", sources.UE) is None
    refuse(lambda: open_source("jetson", sources.UE), BadInput, "jetson", "not on this machine")
    assert [(one.name, one.total) for one in survey(("pi", "rapl"))] == [("pi", None), ("rapl", None)]


def test_a_file_is_replayed_and_anything_else_unknown(tmp_path: Path) -> None:
    path = tmp_path / "meter.csv"
    path.write_text("time_s,total_w\n0,1\n1,2\n")
    source = open_source(str(path), sources.UE)
    assert isinstance(source, Replay) and source.period_s == 0.5
    with contextlib.closing(source):
        assert source.read().total_w == 1
    refuse(
        lambda: check_source("solar"), BadInput, "unknown power source 'solar'", "jetson, tegrastats, pi, rapl, nvml"
    )
    refuse(lambda: check_source(str(tmp_path)), BadInput, "unknown power source")
    check_source("rapl,nvml")
