"""Configuration of a radio cell."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Literal

from testbed.assets.bundled_files import find
from testbed.channel.radio.air import Air, ConstantAir, TraceAir
from testbed.channel.radio.files import FileSource
from testbed.channel.radio.model import ModelSource, RadioUe, Spectrum
from testbed.channel.radio.sharing import RADIO_SCHEDULERS
from testbed.channel.trace import read_trace
from testbed.errors import BadInput
from testbed.options import Config, option

PATTERNS = {"fdd": "", "tdd": "DDDSU"}
"""Slots of the duplex modes: D downlink, U uplink, S special (guard and control); under FDD each slot carries both."""


class Harq(Config, frozen=True):
    """Block errors and retransmissions."""

    bler: Annotated[float, option("Block error rate, in addition to that of the source.", least=0, below=1)] = 0.0
    rtt_ms: Annotated[float, option("Time from a lost block to its retransmission.", least=0, most=1e4, unit="ms")] = (
        8.0
    )
    attempts: Annotated[int, option("Transmissions of a block by HARQ.", least=1, most=64)] = 4
    rlc_ms: Annotated[
        float, option("Time from HARQ's last loss to RLC's retransmission.", least=0, most=1e5, unit="ms")
    ] = 20.0


class ConstantSource(Config, frozen=True, tag="constant", tag_field="kind"):
    """The same spectral efficiency at all times: one number, or one for each group of UEs."""

    bits_per_s_per_hz: float | tuple[float, ...] = 2.0


class TraceSource(Config, frozen=True, tag="traces", tag_field="kind"):
    """Link traces: rates of a UE alone in the cell; UE n takes file n, and the first again after the last.

    Delays of the traces are not used: the cell has its own.
    """

    files: tuple[str, ...]
    """Canonical CSV files, or names of bundled traces."""
    bandwidth_hz: Annotated[
        float | None, option("Bandwidth on which they were recorded. Default: the cell's.", above=0, unit="Hz")
    ] = None
    stagger_s: Annotated[
        float, option("UE n starts n times this much into its trace.", least=0, most=1e5, unit="s")
    ] = 0.0


class RadioConfig(Config, frozen=True):
    """A cell: its bandwidth, its MAC, and the source of its UEs' channels.

    Raises:
        BadInput: a value out of range, or an unknown scheduler.
    """

    bandwidth_hz: Annotated[
        float,
        option("Bandwidth of each direction under FDD, of both under TDD.", least=1e3, most=1e11, unit="Hz"),
    ] = 20e6
    slot_ms: Annotated[float, option("Duration of a slot.", least=0.05, most=1000, unit="ms")] = 1.0
    duplex: Literal["fdd", "tdd"] = "fdd"
    scheduler: Annotated[str, option("Order of UEs in a slot.", kinds="radio schedulers")] = "round-robin"
    grant_ms: Annotated[
        float,
        option("Time from a scheduling request to the grant; 0: configured grants.", least=0, most=1e4, unit="ms"),
    ] = 0.0
    request_ms: Annotated[
        float,
        option("Period in which a UE can send a scheduling request; 0: at any time.", least=0, most=1e4, unit="ms"),
    ] = 0.0
    harq: Harq = Harq()
    wired_ms: Annotated[float, option("One-way delay between cell and edge server.", least=0, most=1e5, unit="ms")] = (
        0.0
    )
    source: ConstantSource | TraceSource | ModelSource | FileSource = ConstantSource()

    def __post_init__(self) -> None:
        super().__post_init__()
        RADIO_SCHEDULERS.choose(self.scheduler)

    @property
    def weighted(self) -> bool:
        """Whether radio weights divide the slots."""
        return RADIO_SCHEDULERS[self.scheduler].weighted

    @property
    def slot_s(self) -> float:
        """Duration of a slot in seconds."""
        return self.slot_ms / 1e3

    def carries(self, up: bool, slot: int) -> bool:
        """Whether a slot carries data of a direction."""
        pattern = PATTERNS[self.duplex]
        return not pattern or pattern[slot % len(pattern)] == ("U" if up else "D")

    def slot_share(self, up: bool) -> float:
        """Share of the slots that carry a direction."""
        pattern = PATTERNS[self.duplex]
        return pattern.count("U" if up else "D") / len(pattern) if pattern else 1.0

    def granted_s(self, t_s: float) -> float:
        """Time of the grant for uplink data that arrive at `t_s` since the first slot, when nothing else waits."""
        period_s = self.request_ms / 1e3
        asked_s = math.ceil(t_s / period_s - 1e-6) * period_s if period_s else t_s
        return asked_s + self.grant_ms / 1e3

    @property
    def rtt_s(self) -> float:
        """RTT of messages that fit into one slot and are alone in the cell, one after the other."""
        now, before, boundary = 0.0, 0.0, 0
        for _ in range(2):  # under TDD, the first one may begin at any slot of the pattern
            before = now
            for up in (True, False):
                ready = self.granted_s(now * self.slot_s) / self.slot_s if up else now
                boundary = 1 + self._carrying(up, max(boundary + 1, math.ceil(ready - 1e-6)))
                now = boundary + self.wired_ms / self.slot_ms
        return (now - before) * self.slot_s

    def _carrying(self, up: bool, slot: int) -> int:
        """The first slot from `slot` on that carries a direction."""
        return next(number for number in itertools.count(slot) if self.carries(up, number))

    def slots(self, delay_ms: float) -> int:
        """Slots that a delay takes, rounded up, at least one."""
        return max(1, math.ceil(delay_ms / self.slot_ms - 1e-9))

    def air(self, ues: Sequence[RadioUe], seconds: float = 60.0, seed: int = 0) -> Air:
        """The channels of the UEs; computed ones cover `seconds`, and repeat.

        Raises:
            BadInput: efficiencies that do not fit the groups, an unreadable trace, or invalid distances.
        """
        source, bler = self.source, self.harq.bler
        spectrum = Spectrum(self.bandwidth_hz, self.slot_s, self.duplex == "tdd", bler)
        if isinstance(source, ModelSource):
            return source.air(ues, spectrum, seconds, seed)
        if isinstance(source, FileSource):
            return source.air(ues, spectrum)
        if isinstance(source, TraceSource):
            if not source.files:
                raise BadInput("a source of kind traces needs files")
            traces = [read_trace(find("traces", name)) for name in source.files]
            chosen = [traces[ue % len(traces)] for ue in range(len(ues))]
            starts = [ue * source.stagger_s for ue in range(len(ues))]
            return TraceAir(chosen, source.bandwidth_hz or self.bandwidth_hz, bler, starts)
        given = source.bits_per_s_per_hz
        groups = max((ue.group for ue in ues), default=0) + 1
        values = given if isinstance(given, tuple) else (given,) * groups
        if len(values) != groups:
            raise BadInput(f"{len(values)} efficiencies do not fit {groups} groups of UEs: give one for each")
        return ConstantAir([values[ue.group] for ue in ues], bler)
