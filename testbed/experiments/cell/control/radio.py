"""What a cell measures of its own radio: rates, and the UEs that have data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from testbed.bs.scheduling.averages import Mean
from testbed.channel.radio.air import Air
from testbed.channel.radio.mac import RadioCell

ACTIVITY_S, RATE_S = 1.0, 0.2
"""Memory of both means."""


class WeightedPort(Protocol):
    """One direction of a UE: see `RadioPort`."""

    weight: float

    @property
    def backlogged(self) -> int:
        """See `RadioPort`."""

    @property
    def used(self) -> float:
        """See `RadioPort`."""


class ControlledRadio(Protocol):
    """The radio of a cell: that of virtual time, or the one behind relays."""

    @property
    def cell(self) -> RadioCell:
        """The cell."""

    @property
    def air(self) -> Air:
        """Its channels."""

    @property
    def ports(self) -> Sequence[Mapping[bool, WeightedPort]]:
        """Ports of each UE by direction; True: uplink."""


class RadioMeter:
    """Uplink rates of UEs, and the sum of the weights of those that have data, as means over the recent past.

    Args:
        ues: numbers of the UEs; all others are background, whose part of the bandwidth reduces the rates.
        oracle: take rates from the channel itself, not from the reports that link adaptation has.
    """

    def __init__(self, radio: ControlledRadio, ues: Sequence[int], oracle: bool = False) -> None:
        self._radio, self._oracle = radio, oracle
        self._rates = {ue: Mean(RATE_S) for ue in ues}
        self._sending = Mean(ACTIVITY_S)
        self._backlogged = {ue: radio.ports[ue][True].backlogged for ue in ues}
        self._others = [ports[True] for ue, ports in enumerate(radio.ports) if ue not in self._rates]
        self._background, self._used = Mean(ACTIVITY_S), 0.0

    def update(self, now_s: float, passed_s: float) -> None:
        """Measure; `passed_s` is the time since the last call."""
        config, air = self._radio.cell.config, self._radio.air
        t_s = max(0.0, now_s - self._radio.cell.begin())
        slots = passed_s / config.slot_s * config.slot_share(True)
        used = sum(port.used for port in self._others)
        if slots > 0:
            self._background.add(min(1.0, (used - self._used) / slots), passed_s)
        self._used, sending = used, 0.0
        for ue, mean in self._rates.items():
            known = air.ideal(ue, True, t_s).bits_per_s_per_hz if self._oracle else air.efficiency(ue, True, t_s)
            mean.add(known * config.bandwidth_hz * config.slot_share(True), max(passed_s, 1e-6))
            port = self._radio.ports[ue][True]
            if slots > 0:
                weight = port.weight if config.weighted else 1.0
                sending += weight * min(1.0, (port.backlogged - self._backlogged[ue]) / slots)
            self._backlogged[ue] = port.backlogged
        if slots > 0:
            self._sending.add(sending, passed_s)

    def rate_bps(self, ue: int) -> float:
        """Rate that the UE would have alone beside the background."""
        return self._rates[ue].value * (1 - self._background.value)

    @property
    def sending(self) -> float:
        """Mean sum of the weights of the UEs that have data."""
        return self._sending.value
