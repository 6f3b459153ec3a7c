"""MAC of a radio cell: many UEs share the slots of one uplink and one downlink.

The cell is driven by events: it has a timer only while data wait, so that an idle cell costs nothing. In each slot the
scheduler divides the bandwidth among the UEs with data; each UE's part of the slot is one transport block. A lost block
is sent again by HARQ after its round trip, before new data; after `attempts` losses RLC sends its bits again as new
ones. RLC delivers in order: a message arrives at the end of the slot in which its last missing bit was carried.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from testbed.channel.radio.air import Air
from testbed.channel.radio.config import RadioConfig
from testbed.channel.radio.ports import Block, RadioPort
from testbed.channel.radio.sharing import RADIO_SCHEDULERS, Demand
from testbed.errors import BadInput

Used = Callable[[int, int, bool, float], object]
"""Takes a slot, a UE, whether it is the uplink, and the UE's share of the bandwidth."""


@dataclass
class MacCounters:
    """Work of one direction since the start."""

    slots: int = 0
    """Slots in which data waited."""
    used: float = 0.0
    """Sum of the shares of the bandwidth that were used."""
    carried_bits: float = 0.0
    """Bits of transport blocks, lost ones included."""
    blocks: int = 0
    lost: int = 0

    def count(self, share: float, bits: float, lost: bool) -> None:
        """Count one transport block."""
        self.used += share
        self.carried_bits += bits
        self.blocks += 1
        self.lost += lost


class RadioCell:
    """A cell whose ports share the radio, on the clock of the event loop in which it begins.

    Args:
        air: state of each UE's channel.
        seed: seed of the block errors.
        used: told of every share of the bandwidth in use.
    """

    def __init__(
        self,
        config: RadioConfig,
        air: Air,
        seed: int = 0,
        used: Callable[[int, int, bool, float], object] | None = None,
    ) -> None:
        self.config, self._air, self._used = config, air, used
        self._share = RADIO_SCHEDULERS.choose(config.scheduler).share
        self._waiting: dict[bool, dict[RadioPort, None]] = {True: {}, False: {}}
        self._dice = random.Random(f"blocks {seed}")
        self._start_s: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._slot, self._next_slot = -1, 0
        """The slot that began last, and the one that the timer waits for."""
        self._in_air: list[tuple[RadioPort, list[Block], bool]] = []
        self.counters = {True: MacCounters(), False: MacCounters()}
        """Counters by direction; True: uplink."""

    def port(self, ue: int, up: bool, weight: float = 1.0) -> RadioPort:
        """Add one direction of a UE.

        Raises:
            BadInput: a weight that is not positive and finite.
        """
        if not 0 < weight < math.inf:
            raise BadInput(f"a weight must be positive and finite, not {weight:g}")
        return RadioPort(self, ue, up, weight)

    def detach(self, port: RadioPort) -> None:
        """Remove one direction of a UE that leaves the cell, with all that waits there."""
        port.close()
        self._waiting[port.up].pop(port, None)

    def begin(self) -> float:
        """Begin the first slot now, unless it has begun; returns the time of its beginning on the loop's clock."""
        if self._start_s is None:
            self._loop = asyncio.get_running_loop()
            self._start_s = self._loop.time()
        return self._start_s

    @property
    def _own(self) -> asyncio.AbstractEventLoop:
        """The loop in which its slots began: UEs may send from others."""
        assert self._loop is not None
        return self._loop

    def granted(self, up: bool) -> int:
        """First slot that data which arrive now can use."""
        start_s = self.begin()
        now_s = self._own.time() - start_s
        return self._from(self.config.granted_s(now_s) if up else now_s)

    def _from(self, ready_s: float) -> int:
        """First slot that begins at a time since the first one or later, and has not begun."""
        return max(self._slot + 1, math.ceil(ready_s / self.config.slot_s - 1e-6))

    def wake(self, port: RadioPort) -> None:
        """Serve a port that has data again, in a slot that has not begun."""
        self._waiting[port.up][port] = None
        self._arm(max(self._from(self._own.time() - self.begin()), port.first_slot()))

    def deliver(self, callback: Callable[[], None]) -> None:
        """Call back after the wired part of the way."""
        if self.config.wired_ms:
            self._own.call_later(self.config.wired_ms / 1e3, callback)
        else:
            callback()

    def _arm(self, slot: int) -> None:
        if self._timer is not None:
            if self._next_slot <= slot:
                return
            self._timer.cancel()
        self._next_slot = slot
        start_s = self._start_s or 0.0
        self._timer = self._own.call_at(start_s + slot * self.config.slot_s, self._boundary)

    def _boundary(self) -> None:
        """End the slot in the air, and begin the next."""
        self._slot, self._timer = self._next_slot, None
        in_air, self._in_air = self._in_air, []
        for port, parts, lost in in_air:
            port.end_slot(parts, lost)
        for up, ports in self._waiting.items():
            if ports and self.config.carries(up, self._slot):
                self._serve(up, list(ports))
        if (first := self._first()) is not None:
            self._arm(first)

    def _first(self) -> int | None:
        """The first slot after this one in which there is anything to do; None: there is nothing."""
        if self._in_air:
            return self._slot + 1
        first: int | None = None
        for ports in self._waiting.values():
            for port in ports:
                slot = port.first_slot()
                if slot <= self._slot + 1:
                    return self._slot + 1
                first = slot if first is None or slot < first else first
        return first

    def _serve(self, up: bool, ports: Sequence[RadioPort]) -> None:
        slot, hertz_s = self._slot, self.config.bandwidth_hz * self.config.slot_s
        t_s = slot * self.config.slot_s
        found: list[tuple[RadioPort, Demand]] = []
        for port in ports:
            demand = port.demand(slot, self._air.efficiency(port.ue, up, t_s) * hertz_s)
            if demand is not None:
                found.append((port, demand))
        if not found:
            return
        shares = self._share([demand for _, demand in found])
        counters = self.counters[up]
        counters.slots += 1
        for (port, demand), share in zip(found, shares, strict=True):
            port.backlogged += 1
            if share > 0:
                bits = min(demand.need_bits, share * demand.slot_bits)
                loss = self._air.state(port.ue, up, t_s).loss(bits)
                lost = loss > 0 and self._dice.random() < loss
                self._air.learn(port.ue, up, lost)
                self._in_air.append((port, port.take(slot, bits), lost))
                port.slots, port.used = port.slots + 1, port.used + share
                if not port.waiting:
                    del self._waiting[up][port]
                counters.count(share, bits, lost)
                if self._used is not None:
                    self._used(slot, port.ue, up, share)
