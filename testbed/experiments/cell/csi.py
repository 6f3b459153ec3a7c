"""What the UEs of a cell know of their channels."""

from __future__ import annotations

import math
from typing import Protocol

from testbed.channel.csi import Csi, single
from testbed.channel.frames import Frames
from testbed.channel.radio.air import AirState
from testbed.channel.radio.config import RadioConfig
from testbed.channel.trace import OUTAGE_MBPS
from testbed.channel.virtual import Sizer, frame_bytes
from testbed.clock import Clock
from testbed.experiments.cell.config import UeGroup
from testbed.experiments.cell.tally import UeTally
from testbed.experiments.inputs.state import NONE, known_state
from testbed.intervals import independent_seed
from testbed.protocols.codec import decode_downlink, decode_uplink
from testbed.protocols.messages import Ping, Pong
from testbed.ue.channel_state import UNKNOWN, ChannelState, KnownChannel
from testbed.ue.client import Client
from testbed.ue.records import RoundRecord


class IdealAir(Protocol):
    """What the true state of a channel is read from: a part of `Air`."""

    def ideal(self, ue: int, up: bool, t_s: float) -> AirState:
        """See `Air.ideal`."""


class RadioChannel(KnownChannel):
    """The true state of a UE's channel: rates that it would have alone in the cell with ideal link adaptation, and the
    RTT of short messages alone in the cell.

    Args:
        origin_s: beginning of the first slot on the clock.
    """

    def __init__(self, radio: RadioConfig, air: IdealAir, ue: int, origin_s: float, clock: Clock) -> None:
        self._radio, self._air, self._ue, self._clock, self.origin_s = radio, air, ue, clock, origin_s
        self._rtt_ms = single(1e3 * radio.rtt_s)

    async def begin(self) -> None:
        """Nothing to do."""

    def at(self, time_s: float) -> Csi:
        """The state at a time since `origin_s`; in an outage, rates are `OUTAGE_MBPS`."""
        (uplink_mbps, per_up), (downlink_mbps, per_down) = (self._way(up, max(0.0, time_s)) for up in (True, False))
        return Csi(uplink_mbps, downlink_mbps, self._rtt_ms, per_up, per_down, time_s=single(time_s), source="emulated")

    def now(self) -> Csi:
        """The state at the current time."""
        return self.at(self._clock.time() - self.origin_s)

    def observe(self, record: RoundRecord) -> None:
        """Ignored."""

    def _way(self, up: bool, time_s: float) -> tuple[float, float]:
        """Rate [Mbit/s] and block error rate of a direction."""
        state = self._air.ideal(self._ue, up, time_s)
        rate_mbps = state.bits_per_s_per_hz * self._radio.bandwidth_hz * self._radio.slot_share(up) / 1e6
        if rate_mbps <= OUTAGE_MBPS or state.bler >= 1:
            return OUTAGE_MBPS, 0.0
        return single(rate_mbps), single(state.bler)


class WatchedChannel(ChannelState):
    """Another channel state, whose error is counted."""

    def __init__(self, known: ChannelState, truth: RadioChannel, tally: UeTally) -> None:
        self._known, self._truth, self._tally = known, truth, tally

    async def begin(self) -> None:
        """See `ChannelState.begin`."""
        await self._known.begin()

    def now(self) -> Csi | None:
        """See `ChannelState.now`."""
        csi = self._known.now()
        if csi is not None:
            self._tally.known(abs(10 * math.log10(_goodput_mbps(csi) / _goodput_mbps(self._truth.now()))))
        return csi

    def observe(self, record: RoundRecord) -> None:
        """See `ChannelState.observe`."""
        self._known.observe(record)


def with_handshakes(sizers: tuple[Sizer, Sizer]) -> tuple[Sizer, Sizer]:
    """Sizers of payloads that count the messages of handshakes, which have none, as they are: each takes a slot."""
    up, down = sizers

    def uplink(frames: Frames) -> int:
        size = up(frames)
        return size or (frame_bytes(frames) if isinstance(decode_uplink(frames).message, Ping) else 0)

    def downlink(frames: Frames) -> int:
        size = down(frames)
        return size or (frame_bytes(frames) if isinstance(decode_downlink(frames).message, Pong) else 0)

    return uplink, downlink


async def ue_state(
    group: UeGroup, truth: RadioChannel, client: Client, clock: Clock, tally: UeTally, seeds: tuple[int, int]
) -> ChannelState:
    """What a connected UE of a group knows of its channel.

    Args:
        seeds: seed of the cell, and number of the UE.
    """
    if group.csi == NONE or not group.method.drafts:
        return UNKNOWN
    seed = independent_seed(seeds[0], "reports", seeds[1]) % 2**32
    return WatchedChannel(await known_state(group.csi, truth, client, clock, seed), truth, tally)


def _goodput_mbps(csi: Csi) -> float:
    return csi.uplink_mbps * (1 - csi.per_up)
