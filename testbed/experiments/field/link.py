"""Links of places: a distance-based link model, and comparison of two measurements of one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from testbed.channel.csi import Csi
from testbed.channel.radio.cell import Cell, Mobility, rounded
from testbed.channel.radio.fading import PathLoss, Shadowing, SmallScale
from testbed.channel.trace import Trace, write_trace
from testbed.config import Config
from testbed.errors import BadInput, ProtocolError
from testbed.experiments.inputs.state import ASSUMED_MBPS
from testbed.protocols.ranges import RANGES, check_ranges

RATIO = 3.0
"""Factor beyond which a changed rate or RTT suggests a different place."""
RTT_FLOOR_MS = 10.0
"""RTTs below this are raised to it, since load can multiply a short RTT."""
MOST_DEPTH = 20
"""Most levels of a measurement's document: longer ones cannot be written or read again."""
RATES = ("uplink_mbps", "downlink_mbps")
MOST_PER = 0.999
"""Largest packet error rate of a link that carries messages."""
RSSI_DB = 10.0
"""Change of the RSSI that suggests a different place."""


class LinkModel(Config, frozen=True):
    """Link as a function of distance: path loss fitted to measured points, Rayleigh or Rician fading, Shannon rate.

    Attributes:
        anchors: pairs of distance [m] and mean uplink rate [Mbit/s] of the whole channel, without fading; the path loss
            in dB is fitted linearly over the logarithm of the distance. The default is WISV's measurement over Wi-Fi
            (Section VII-B): 498 Mbit/s at 2 m, 172 Mbit/s at 20 m.
        bandwidth_hz: channel bandwidth.
        share: fraction of the air time available to this UE.
        seconds: length of a trace, which then repeats.

    Raises:
        BadInput: values out of range, or anchors whose rate does not fall with distance.
    """

    anchors: tuple[tuple[float, float], ...] = ((2.0, 498.0), (20.0, 172.0))
    bandwidth_hz: float = 40e6
    share: float = 1.0
    downlink_gain_db: float = 0.0
    """SNR advantage of the downlink over the uplink."""
    rtt_ms: float = 8.0
    jitter_ms: float = 1.0
    """Half-width of the uniform jitter of each direction, drawn for each step."""
    fading: Literal["none", "rayleigh", "rician"] = "rician"
    k_db: float = 6.0
    coherence_s: float = 1.0
    shadowing_db: float = 0.0
    seconds: float = 300.0
    step_s: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.anchors or any(not (0 < d < math.inf and 0 < rate < math.inf) for d, rate in self.anchors):
            raise BadInput("anchors must be pairs of a positive distance and a positive rate")
        if not 0 < self.share <= 1:
            raise BadInput(f"share must lie in (0, 1], not {self.share:g}")
        self.cell()

    def path_loss(self) -> tuple[float, float]:
        """SNR at 1 m [linear] and path-loss exponent, fitted to the anchors; with one anchor the exponent is 2."""
        metres = np.log10([d for d, _ in self.anchors])
        spectral = np.array([rate * 1e6 / self.bandwidth_hz for _, rate in self.anchors])
        snr_db = 10 * np.log10(np.exp2(spectral) - 1)
        slope = float(np.polyfit(metres, snr_db, 1)[0]) if len(set(metres.tolist())) > 1 else -20.0
        if slope >= 0:
            raise BadInput("anchors must have lower rates at longer distances")
        return float(10 ** (float(np.mean(snr_db - slope * metres)) / 10)), -slope / 10

    def cell(self) -> Cell:
        """The radio cell; powers and noise are 1, so that gains equal SNRs."""
        snr, exponent = self.path_loss()
        return Cell(
            bandwidth_hz=self.bandwidth_hz,
            noise_w=1.0,
            uplink_w=1.0,
            downlink_w=10 ** (self.downlink_gain_db / 10),
            rtt_ms=self.rtt_ms,
            jitter_ms=self.jitter_ms,
            path_loss=PathLoss(snr, exponent),
            small_scale=SmallScale(self.fading, self.k_db, self.coherence_s),
            shadowing=Shadowing(self.shadowing_db),
        )

    def trace(self, distance_m: float, index: int) -> Trace:
        """Trace of the link at a distance; `index` varies the seed between places at the same distance."""
        one = Mobility(distance_m)
        found = self.cell().traces([one], self.seconds, self.step_s, self.seed + index, [self.share])
        return rounded(found[0])


def write_model(path: Path, model: LinkModel, distance_m: float, index: int) -> Trace:
    """Write and return the modelled trace of a place.

    Raises:
        BadInput: the model has no link at this distance.
    """
    trace = model.trace(distance_m, index)
    if not (trace.uplink_mbps.any() and trace.downlink_mbps.any()):
        raise BadInput(
            f"the plan's model has no link at {distance_m:g} m; reduce the distance or change anchors and bandwidth_hz"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_trace(path, trace, [f"Generated by a channel model for {distance_m:g} m, not measured."])
    return trace


def rolled(trace: Trace, start_s: float) -> Trace:
    """The trace rotated to begin at `start_s`."""
    start_s %= trace.duration_s
    first = trace.index(start_s)
    order = np.roll(np.arange(len(trace)), -first)
    times = trace.t_s[order] - start_s
    times[order < first] += trace.duration_s
    times[0] = 0.0
    columns = {name: values[order] for name, values in trace.columns.items() if name != "t_s"}
    return Trace(t_s=times, **columns)


def constant(csi: Csi) -> Trace:
    """A constant link as a trace."""
    snr_db = math.nan if csi.snr_db is None else csi.snr_db
    values = (0.0, csi.uplink_mbps, csi.downlink_mbps, csi.rtt_ms, csi.per_up, csi.per_down, snr_db)
    return Trace(*(np.array([value]) for value in values))


class _Value(msgspec.Struct):
    value: float


class _Station(msgspec.Struct):
    rssi_dbm: float | None = None


class _Wifi(msgspec.Struct):
    station: _Station | None = None


class _Cellular(msgspec.Struct):
    rsrp_dbm: float | None = None


Seconds = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
"""Time, or offset of a clock."""


class MeasuredClock(msgspec.Struct):
    """Offset of the base station's clock, of a document of `measure`."""

    offset_s: Seconds
    error_s: Seconds


class _Measured(msgspec.Struct):
    """What is read of a document of `measure`."""

    csi: dict[str, float | str | None]
    rtt_ms: _Value
    uplink_mbps: _Value | None = None
    downlink_mbps: _Value | None = None
    clock: MeasuredClock | None = None
    wifi: _Wifi | None = None
    cellular: _Cellular | None = None


def check_measured(document: Any) -> None:
    """Check a document of `measure` that another machine sent.

    Raises:
        BadInput: a value is missing, of another type, or out of range, or the document has too many levels.
    """
    if not isinstance(document, dict):
        raise BadInput("it is no JSON object")
    level: list[Any] = [document]
    for _ in range(MOST_DEPTH):
        level = [
            part
            for one in level
            for part in (one.values() if isinstance(one, dict) else one)
            if isinstance(part, dict | list)
        ]
    if level:
        raise BadInput(f"it has more than {MOST_DEPTH} levels")
    try:
        found = msgspec.convert(document, _Measured)
        check_state(csi_of(document))
    except (msgspec.ValidationError, TypeError, ProtocolError) as exc:
        raise BadInput(str(exc)) from exc
    values: list[tuple[str, float | None]] = [("rtt_ms", found.rtt_ms.value)]
    rates = zip(RATES, (found.uplink_mbps, found.downlink_mbps), strict=True)
    values += [(name, rate.value) for name, rate in rates if rate is not None]
    if found.wifi is not None and found.wifi.station is not None:
        values.append(("rssi_dbm", found.wifi.station.rssi_dbm))
    if found.cellular is not None:
        values.append(("rssi_dbm", found.cellular.rsrp_dbm))
    for name, value in values:
        least, most = 0.0 if name in RATES else RANGES[Csi][name].least, RANGES[Csi][name].most
        if value is not None and not least <= value <= most:
            raise BadInput(f"{name} must lie in [{least:g}, {most:g}], not {value:g}")


def check_state(state: Csi) -> None:
    """Check that a channel state is one of a link that can carry messages.

    Raises:
        ProtocolError, BadInput: a value out of range (`protocols/ranges.py`), or `MOST_PER`.
    """
    check_ranges(state)
    if max(state.per_up, state.per_down) > MOST_PER:
        raise BadInput(f"a packet error rate above {MOST_PER:g}")


def csi_of(measured: Mapping[str, Any]) -> Csi:
    """The channel state in a document of `measure`; rates that were not measured are assumed.

    Raises:
        BadInput: a value out of range.
        TypeError: an unknown field.
    """
    known = {key: value for key, value in measured["csi"].items() if key != "source"}
    return Csi(**{"uplink_mbps": ASSUMED_MBPS, "downlink_mbps": ASSUMED_MBPS, "rtt_ms": 0.0, **known}, source="probe")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Descriptions of large differences between two measurements of a place (documents of `measure`)."""
    found = []
    rtt = [max(RTT_FLOOR_MS, float(one["rtt_ms"]["value"])) for one in (before, now)]
    if max(rtt) > RATIO * min(rtt):
        found.append(f"RTT {now['rtt_ms']['value']:.1f} ms, before {before['rtt_ms']['value']:.1f} ms")
    for name in RATES:
        rates = [one.get(name) for one in (before, now)]
        if all(rates):
            then, here = (float(rate["value"]) for rate in rates if rate)
            if max(then, here) > RATIO * min(then, here):
                found.append(f"{name.partition('_')[0]} {here:.3g} Mbit/s, before {then:.3g} Mbit/s")
    earlier_dbm, rssi_dbm = (_rssi_dbm(one) for one in (before, now))
    if earlier_dbm is not None and rssi_dbm is not None and abs(rssi_dbm - earlier_dbm) > RSSI_DB:
        found.append(f"RSSI {rssi_dbm:g} dBm, before {earlier_dbm:g} dBm")
    return found


def _rssi_dbm(measured: Mapping[str, Any]) -> float | None:
    wifi = measured.get("wifi") or {}
    level = (wifi.get("station") or {}).get("rssi_dbm")
    if level is None:
        level = (measured.get("cellular") or {}).get("rsrp_dbm")
    return None if level is None else float(level)
