"""Channels and slots of several cells, in virtual time and with processes."""

from __future__ import annotations

import math
from functools import partial

from testbed.channel.radio.adaptation import AdaptedAir
from testbed.channel.radio.loads import Loads
from testbed.channel.radio.mac import RadioCell
from testbed.channel.radio.model import ModelSource, Spectrum
from testbed.channel.radio.network import CellPlace, NetworkChannels, NetworkUe
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig
from testbed.experiments.inputs.state import NONE, report_age_s
from testbed.intervals import independent_seed


def network_ues(config: CellConfig) -> list[NetworkUe]:
    """The UEs of all groups, in order, as their channels need them."""
    return [
        NetworkUe(group.distance_m, group.speed_mps, group.path_m, number / group.count)
        for group in config.ues
        for number in range(group.count)
    ]


def network_channels(
    config: CellConfig, channels_s: float, rest_s: float = 0.0, late_s: float = 0.0
) -> tuple[NetworkChannels, Loads | None]:
    """The channels of a run of several cells, and what interferes in them; None: they do not interfere.

    Args:
        rest_s: time at first in which no UE moves.
        late_s: how much later than at its time a slot may be computed, or what a UE does.

    Raises:
        BadInput: a configuration without `cells`, or places that cannot be.
    """
    source, radio = config.radio.source, config.radio
    if config.cells is None or not isinstance(source, ModelSource):
        raise BadInput("several cells need `cells`, and a source of kind model")
    spectrum = Spectrum(radio.bandwidth_hz, radio.slot_s, radio.duplex == "tdd", radio.harq.bler)
    stations = config.cells.stations
    cells = [CellPlace(complex(*stations[one.station].at_m), one.azimuth_deg) for one in config.cells.cells]
    window_ms = config.cells.interference_ms
    age_s = late_s + _report_age_s(config, source)
    loads = Loads(radio, radio.slots(window_ms), len(cells), age_s) if window_ms else None
    ues = network_ues(config)
    return NetworkChannels(source, cells, ues, spectrum, channels_s, config.seed, loads, rest_s), loads


def _report_age_s(config: CellConfig, source: ModelSource) -> float:
    """Longest time since the measurement of a report in use: those of link adaptation, and those that UEs have."""
    adaptation = source.adaptation
    ages_s = [report_age_s(group.csi) for group in config.ues]
    return max(*ages_s, (adaptation.report_ms + adaptation.delay_ms) / 1e3)


def replayed_s(config: CellConfig) -> float:
    """How late something is computed if other processes go through the lives of UEs again: by up to the whole run,
    where these look at their channels.
    """
    return math.inf if any(group.csi != NONE for group in config.ues) else 0.0


def radio_cell(config: CellConfig, number: int, air: AdaptedAir, loads: Loads | None) -> RadioCell:
    """The slots of one cell."""
    seed = config.seed if number == 0 else independent_seed(config.seed, "blocks", number)
    return RadioCell(config.radio, air, seed, None if loads is None else partial(loads.count, number))
