"""Configuration of `testbed channel validate`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated, Any

from testbed.config import Config
from testbed.errors import BadInput
from testbed.options import option

if TYPE_CHECKING:
    from testbed.channel.spec import ChannelSpec


AGREE = "Comparison of a workload"
"""Heading of its options on help screens."""


class ValidateConfig(Config, frozen=True):
    """Grid of links to validate.

    Raises:
        BadInput: a value out of range.
    """

    via: Annotated[str, option("Emulation: proxy or tc.", panel="Links")] = "proxy"
    rates_mbps: Annotated[
        tuple[float, ...], option("Rates, separated by commas.", unit="Mbit/s", flags=("--rates",))
    ] = (5.0, 20.0, 50.0, 100.0, 200.0)
    rtts_ms: Annotated[
        tuple[float, ...], option("Round-trip times, separated by commas.", unit="ms", flags=("--rtts",))
    ] = (0.0, 10.0, 50.0, 100.0)
    losses: Annotated[tuple[float, ...], option("Packet error rates, separated by commas.")] = (0.0,)
    jitters_ms: Annotated[
        tuple[float, ...],
        option(
            "Half-widths of the uniform jitter of each direction, separated by commas.", unit="ms", flags=("--jitters",)
        ),
    ] = (0.0,)
    seconds: Annotated[int, option("Duration of each iperf3 transfer.", unit="s")] = 3
    workload: Annotated[
        int, option("Prompts to decode by proxy, tc and virtual time; 0 for none.", least=0, panel=AGREE)
    ] = 0
    channel: Annotated[str, option("Link of the workload.")] = "uplink_mbps=20,downlink_mbps=20,rtt_ms=50"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.via not in ("proxy", "tc"):
            raise BadInput(f"unknown emulation {self.via!r}; known: proxy, tc")
        if not all(self.grid_axes) or self.seconds < 1:
            raise BadInput("give at least one rate, RTT, loss and jitter, and transfers of at least 1 s")
        for point in itertools.product(*self.grid_axes):
            self.link(*point)

    @property
    def grid_axes(self) -> tuple[tuple[float, ...], ...]:
        """Rates, RTTs, losses and jitters."""
        return self.rates_mbps, self.rtts_ms, self.losses, self.jitters_ms

    def link(self, rate_mbps: float, rtt_ms: float, per: float, jitter_ms: float) -> ChannelSpec:
        """Channel of one grid point, symmetric in both directions."""
        from testbed.channel.spec import ChannelSpec

        kind: Any = self.via
        return ChannelSpec(
            kind=kind, uplink_mbps=rate_mbps, downlink_mbps=rate_mbps, rtt_ms=rtt_ms, per=per, jitter_ms=jitter_ms
        )
