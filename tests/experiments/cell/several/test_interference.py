"""Interference between cells, against sums over a log of all transport blocks, and against SINRs by hand."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from testbed.channel.radio.config import RadioConfig
from testbed.channel.radio.loads import Loads
from testbed.channel.radio.model import ModelSource, Spectrum
from testbed.channel.radio.network import CellPlace, NetworkChannels, NetworkUe
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell
from testbed.experiments.cell.several import group
from testbed.experiments.cell.several.channels import network_channels, replayed_s
from testbed.experiments.cell.several.network import Network
from testbed.experiments.cell.stations import CellsConfig, Station

PLAIN = ModelSource(shadowing_db=0.0, fading="none")
STATIONS = (Station("a", (0.0, 0.0)), Station("b", (150.0, 0.0)), Station("c", (70.0, 130.0)))


def sending(name: str, x_m: float, y_m: float, message_bytes: int, speed_mps: float = 0.0) -> UeGroup:
    """A UE that sends a message every 10 ms from a place."""
    path_m = ((x_m, y_m), (x_m, y_m + 10))
    return UeGroup(
        name=name, traffic="bytes", message_bytes=message_bytes, every_s=0.01, path_m=path_m, speed_mps=speed_mps
    )


def test_a_neighbour_at_full_load_gives_the_sinr_of_both_powers() -> None:
    """UE at 50 m of 200 m: 43 - 34 - 35.3 lg 50 dBm over noise and 43 - 34 - 35.3 lg 150 dBm, or half."""
    radio = RadioConfig()
    loads = Loads(radio, 10, 2)
    ue = NetworkUe(path_m=((50.0, 0.0), (50.0, 1.0)))
    channels = NetworkChannels(
        PLAIN, [CellPlace(0j), CellPlace(200 + 0j)], [ue], Spectrum(20e6, 1e-3, False), 1.0, 0, loads
    )
    for slot in range(10):
        loads.count(1, slot, 0, False, 1.0)
        loads.count(1, 10 + slot, 0, False, 0.5)
    own_w, other_w = (10 ** ((43 - 34 - 35.3 * math.log10(m) - 30) / 10) for m in (50, 150))
    noise_w = 10 ** ((-174 + 9 - 30) / 10) * 20e6
    for t_s, load in ((0.0, 0.0), (0.0099, 0.0), (0.0101, 1.0), (0.0199, 1.0), (0.0201, 0.5), (0.031, 0.0)):
        expected = 10 * math.log10(own_w / (noise_w + load * other_w))
        assert channels.sinr_db(0, 0, False, t_s) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("duplex", ["fdd", "tdd"])
def test_interference_is_the_sum_over_all_blocks_of_the_window_before(
    duplex: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_all_times(config: CellConfig, seconds: float, **more: float) -> Any:
        return network_channels(config, seconds, late_s=math.inf)

    monkeypatch.setattr(group, "network_channels", of_all_times)
    ues = (
        sending("a", 20.0, 10.0, 9000, speed_mps=5.0),
        sending("b", 140.0, 10.0, 4000),
        sending("c", 60.0, 110.0, 12000),
        UeGroup(name="decoding", count=3, distance_m=(10.0, 60.0)),
    )
    radio = RadioConfig(source=ModelSource(fading="none"), duplex=duplex)
    cells = CellsConfig(STATIONS, interference_ms=20.0)
    config = CellConfig(seconds=1.5, warmup_s=0.1, radio=radio, ues=ues, cells=cells)
    network, blocks = Network(config, config.seconds), []
    for number, one in network.group.sites.items():
        count = one.site.radio._used
        assert count is not None

        def logged(*block: Any, number: int = number, count: Any = count) -> None:
            blocks.append((number, *block))
            count(*block)

        one.site.radio._used = logged
    network.run()
    assert len(blocks) > 500
    dice, channels, found = random.Random(4), network.group.channels, []
    for _ in range(200):
        ue, station, up, t_s = dice.randrange(6), dice.randrange(3), dice.random() < 0.5, dice.uniform(0.02, 1.49)
        first = (int(t_s / 0.02) - 1) * 20
        slots = sum(radio.carries(up, slot) for slot in range(first, first + 20))
        total_w = 0.0
        for cell, slot, sender, way, share in blocks:
            if way == up and cell != station and first <= slot < first + 20:
                at = channels.at(first * 1e-3) if up else channels.at(t_s)
                gain = channels.gains[sender][station, at] if up else channels.gains[ue][cell, at]
                total_w += share / slots * 10 ** ((23 if up else 43) / 10 - 3) * float(gain)
        assert channels.interference_w(ue, station, up, t_s) == pytest.approx(total_w, rel=1e-5, abs=1e-30)
        found.append(total_w)
    assert np.count_nonzero(found) > 100


def test_windows_are_kept_as_long_as_reports_need_them() -> None:
    """Reports of link adaptation are up to 14 ms old, those of the UE 50 ms: with windows of 10 ms, 5 and 3 more."""
    ues = (sending("a", 20.0, 10.0, 9000), UeGroup(name="told", csi="report", distance_m=(10.0, 60.0)))
    cells = CellsConfig(STATIONS)
    config = CellConfig(seconds=1.5, warmup_s=0.1, radio=RadioConfig(source=PLAIN), ues=ues, cells=cells)
    network = Network(config, config.seconds)
    network.run()
    channels, loads = network.group.channels, network.group._loads
    assert loads is not None and loads.kept == pytest.approx(8)
    for windows in (loads._down, loads._up, channels._parts, channels._from_ues):
        assert len(windows) <= 9 and all(window >= 130 for window in windows)
    assert len(loads._up) > 5
    assert network_channels(config, 1.0, late_s=replayed_s(config))[1].kept == math.inf  # type: ignore[union-attr]


def test_interference_of_a_reported_time_is_still_known() -> None:
    """Fails if a window is dropped that a report of the greatest age reads."""
    radio = RadioConfig()
    every, few = Loads(radio, 7, 2), Loads(radio, 7, 2, age_s=0.05)
    ues = [NetworkUe(path_m=((50.0, 0.0), (50.0, 1.0))), NetworkUe(path_m=((150.0, 0.0), (150.0, 1.0)))]
    places, spectrum = [CellPlace(0j), CellPlace(200 + 0j)], Spectrum(20e6, 1e-3, False)
    whole, recent = (NetworkChannels(PLAIN, places, ues, spectrum, 1.0, 0, loads) for loads in (every, few))
    for slot in range(500):
        for loads in (every, few):
            loads.count(1, slot, 1, slot % 3 == 0, 0.001 * (slot + 1))
        for up in (True, False):
            for t_s in (slot / 1e3, max(0.0, slot / 1e3 - 0.05)):
                assert recent.interference_w(0, 0, up, t_s) == whole.interference_w(0, 0, up, t_s)
    assert len(few._down) < 15 < len(every._down)


def test_neighbours_that_send_cost_rate_and_silent_ones_do_not() -> None:
    """Fails if cells do not interfere, or if they do whatever their load."""

    def delay_s(message_bytes: int, **cells: float) -> float:
        ues = (sending("own", 60.0, 0.0, 20_000), sending("other", 90.0, 0.0, message_bytes))
        radio = RadioConfig(source=PLAIN)
        config = CellConfig(seconds=6.0, warmup_s=1.0, radio=radio, ues=ues, cells=CellsConfig(STATIONS[:2], **cells))
        return float(document(config, run_cell(config))["rows"][0]["message_delay_s"]["mean"])

    alone, quiet, loaded = delay_s(40_000, interference_ms=0.0), delay_s(1), delay_s(40_000)
    assert quiet == pytest.approx(alone, rel=0.05)
    assert loaded > 1.2 * alone
