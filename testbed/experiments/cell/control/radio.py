"""What a cell measures of its own radio: rates, and how much of the time UEs have data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
    def slots(self) -> int:
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
    """Uplink rates and activity of UEs, as means over the recent past.

    Args:
        ues: numbers of the UEs; all others are background, whose part of the bandwidth reduces the rates.
        oracle: take rates from the channel itself, not from the reports that link adaptation has.
    """

    def __init__(self, radio: ControlledRadio, ues: Sequence[int], oracle: bool = False) -> None:
        self._radio, self._oracle = radio, oracle
        self._rates = {ue: Mean(RATE_S) for ue in ues}
        self._activity = {ue: Mean(ACTIVITY_S, 0.5) for ue in ues}
        self._slots = {ue: radio.ports[ue][True].slots for ue in ues}
        self._others = [ports[True] for ue, ports in enumerate(radio.ports) if ue not in self._rates]
        self._background, self._used = Mean(ACTIVITY_S), 0.0

    def update(self, now_s: float, passed_s: float, silent: Collection[int] = ()) -> None:
        """Measure.

        Args:
            passed_s: the time since the last call.
            silent: UEs that had nothing to send by decision; their activity is not measured.
        """
        config, air = self._radio.cell.config, self._radio.air
        t_s = max(0.0, now_s - self._radio.cell.begin())
        slots = passed_s / config.slot_s * config.slot_share(True)
        used = sum(port.used for port in self._others)
        if slots > 0:
            self._background.add(min(1.0, (used - self._used) / slots), passed_s)
        self._used = used
        for ue, mean in self._rates.items():
            known = air.ideal(ue, True, t_s).bits_per_s_per_hz if self._oracle else air.efficiency(ue, True, t_s)
            mean.add(known * config.bandwidth_hz * config.slot_share(True), max(passed_s, 1e-6))
            sent = self._radio.ports[ue][True].slots
            if slots > 0 and ue not in silent:
                self._activity[ue].add(min(1.0, (sent - self._slots[ue]) / slots), passed_s)
            self._slots[ue] = sent

    def rate_bps(self, ue: int) -> float:
        """Rate that the UE would have alone beside the background."""
        return self._rates[ue].value * (1 - self._background.value)

    def activity(self, ue: int) -> float:
        """Share of the uplink's slots in which the UE sent."""
        return self._activity[ue].value
