"""Air interfaces: how many bits a slot carries for each UE, and how often a transport block is lost."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from testbed.channel.trace import Trace
from testbed.errors import BadInput


class AirState(NamedTuple):
    """State of one direction of one UE during a slot."""

    bits_per_s_per_hz: float
    """Spectral efficiency; 0 in an outage."""
    bler: float
    """Probability in [0, 1] that a code block is lost; a transport block is lost if one of its code blocks is."""
    code_block_bits: float = math.inf
    """Longest code block; infinity: a transport block is one code block."""

    def loss(self, bits: float) -> float:
        """Probability that a transport block of `bits` is lost."""
        return 1 - (1 - self.bler) ** max(1, math.ceil(bits / self.code_block_bits))


class Air(Protocol):
    """Source of the states of a cell's UEs."""

    def efficiency(self, ue: int, up: bool, t_s: float) -> float:
        """Spectral efficiency [bit/s/Hz] of a UE at `t_s` seconds after the start: that of its state."""

    def state(self, ue: int, up: bool, t_s: float) -> AirState:
        """State of a UE at that time."""

    def ideal(self, ue: int, up: bool, t_s: float) -> AirState:
        """The same if the BS knew the channel of the slot: no reports, and no outer loop."""

    def learn(self, ue: int, up: bool, lost: bool) -> None:
        """Learn whether a transport block of the UE was lost."""


class ConstantAir:
    """Implements `Air`: the same efficiency at all times.

    Args:
        bits_per_s_per_hz: [n] spectral efficiency of each UE, positive.
        bler: block error rate in [0, 1).

    Raises:
        BadInput: a value out of range.
    """

    def __init__(self, bits_per_s_per_hz: Sequence[float], bler: float = 0.0) -> None:
        if not all(0 < value <= 100 for value in bits_per_s_per_hz):
            raise BadInput("spectral efficiencies lie in (0, 100] bit/s/Hz")
        if not 0 <= bler < 1:
            raise BadInput(f"the block error rate must lie in [0, 1), not {bler:g}")
        self._states = [AirState(value, bler) for value in bits_per_s_per_hz]

    def efficiency(self, ue: int, up: bool, t_s: float) -> float:
        """See `Air.efficiency`."""
        return self.state(ue, up, t_s).bits_per_s_per_hz

    def state(self, ue: int, up: bool, t_s: float) -> AirState:
        """See `Air.state`."""
        return self._states[ue]

    ideal = state

    def learn(self, ue: int, up: bool, lost: bool) -> None:
        """See `Air.learn`: nothing changes."""


class TraceAir:
    """Implements `Air`: the rates and packet error rates of link traces, which repeat at their ends.

    A trace holds what its UE gets alone; its efficiency is the rate over the bandwidth.

    Args:
        traces: [n], one for each UE.
        bandwidth_hz: bandwidth on which the traces were recorded.
        bler: block error rate that applies in addition, in [0, 1).
        starts_s: [n] time of each trace at which its UE starts. Default: its beginning.
    """

    def __init__(
        self, traces: Sequence[Trace], bandwidth_hz: float, bler: float = 0.0, starts_s: Sequence[float] = ()
    ) -> None:
        tables = {id(trace): _Table(trace, bandwidth_hz, bler) for trace in traces}
        self._tables = [tables[id(trace)] for trace in traces]
        self._starts_s = list(starts_s) or [0.0] * len(self._tables)

    def efficiency(self, ue: int, up: bool, t_s: float) -> float:
        """See `Air.efficiency`."""
        return self.state(ue, up, t_s).bits_per_s_per_hz

    def state(self, ue: int, up: bool, t_s: float) -> AirState:
        """See `Air.state`."""
        return self._tables[ue].state(up, t_s + self._starts_s[ue])

    ideal = state

    def learn(self, ue: int, up: bool, lost: bool) -> None:
        """See `Air.learn`: nothing changes."""


class _Table:
    def __init__(self, trace: Trace, bandwidth_hz: float, bler: float) -> None:
        self._t_s: list[float] = trace.t_s.tolist()
        self._lap_s = trace.duration_s
        ways = ((trace.uplink_mbps, trace.per_up), (trace.downlink_mbps, trace.per_down))
        self._up, self._down = (
            [
                AirState(rate * 1e6 / bandwidth_hz, 1 - (1 - per) * (1 - bler))
                for rate, per in zip(rates.tolist(), pers.tolist(), strict=True)
            ]
            for rates, pers in ways
        )

    def state(self, up: bool, t_s: float) -> AirState:
        at = bisect.bisect_right(self._t_s, t_s % self._lap_s) - 1
        return (self._up if up else self._down)[at]
