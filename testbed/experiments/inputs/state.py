"""Parses the `--csi` option: the source of a run's channel state."""

from __future__ import annotations

import statistics
from pathlib import Path

import msgspec

from testbed.assets.bundled_files import find
from testbed.channel.csi import Csi, Source
from testbed.channel.measuring.reading import read_radio
from testbed.channel.measuring.reports import Reports
from testbed.channel.spec import ChannelSpec
from testbed.channel.trace import read_trace
from testbed.clock import Clock
from testbed.errors import BadInput
from testbed.files import file_bytes, json_values
from testbed.ue.channel_state import (
    ChannelState,
    ConstantChannel,
    HandshakeChannel,
    KnownChannel,
    MeasuredChannel,
    ReportedChannel,
    TraceChannel,
    UnknownChannel,
)  # fmt: skip
from testbed.ue.client import HANDSHAKES, Client

RADIO = ",radio"
NONE, PASSIVE, HANDSHAKE, REPORT, ORACLE = "none", "passive", "handshake", "report", "oracle"
ASSUMED_MBPS = 100.0
"""Initial rates before any measurement; rounds with enough bytes correct them."""
FORMS = (
    "none, passive, FILE.json, the last two with ,radio, handshake, trace=NAME|FILE[,origin_s=S], "
    "uplink_mbps=..,downlink_mbps=..,rtt_ms=..[,per_up=..], or "
    "report[,period_ms=..,delay_ms=..,levels=..,noise_db=..] before one of the last two"
)


async def channel_state(text: str, client: Client, clock: Clock) -> ChannelState:
    """Channel state of a run over a connected client.

    `none`: unknown. `passive`: estimated from rounds, after an RTT handshake. `handshake`: the RTT before every
    request, with assumed rates. A JSON file written by `channel measure`: as `passive`, starting from its values.
    `,radio` after one of the two: SNR and signal level are those of the Wi-Fi link or modem, read before every request.
    `key=value,…`: constant. `trace=…`: read from a replayed trace that started at `origin_s` on the host's monotonic
    clock (default: now). `report,…`: reports of the link that the rest of the text describes, for emulated links.

    Raises:
        BadInput: any other text, or invalid values.
    """
    check_csi(text)
    if text == NONE:
        return UnknownChannel()
    read = read_radio if text.endswith(RADIO) else None
    text = text.removesuffix(RADIO)
    if text == PASSIVE:
        rtt_s = statistics.median(await client.rtt_s())
        return MeasuredChannel(_assumed(rtt_s, "passive"), clock, read)
    if text == HANDSHAKE:
        return await _handshakes(client, clock)
    if _is_report(text):
        reports, rest = _reports(text)
        return ReportedChannel(_known(rest, clock), reports, await _handshakes(client, clock), clock)
    if "=" not in text:
        return MeasuredChannel(_prior(Path(text)), clock, read)
    return _known(_pairs(text), clock)


async def known_state(kind: str, truth: KnownChannel, client: Client, clock: Clock, seed: int = 0) -> ChannelState:
    """Channel state of a UE behind an emulated link, over a connected client.

    Args:
        kind: one of those of `csi_text`.
        truth: the link's own state.
        seed: added to the seed of the reports.
    """
    if kind == ORACLE:
        return truth
    if not _is_report(kind):
        return await channel_state(kind, client, clock)
    reports = _reports(kind)[0]
    reports = msgspec.structs.replace(reports, seed=reports.seed + seed)
    return ReportedChannel(truth, reports, await _handshakes(client, clock), clock)


def check_kind(kind: str) -> None:
    """Validate a kind of channel state.

    Raises:
        BadInput: another than those of `csi_text`, or settings that reports do not have.
    """
    if _is_report(kind):
        if unknown := ", ".join(_reports(kind)[1]):
            raise BadInput(f"bad channel state {kind!r}: reports have no {unknown}")
    elif kind not in (ORACLE, NONE, PASSIVE, HANDSHAKE):
        raise BadInput(f"unknown channel state {kind!r}; use oracle, none, passive, handshake, or report[,…]")


def report_age_s(kind: str) -> float:
    """Longest time since the newest report was measured; 0: there are no reports."""
    reports = _reports(kind)[0] if _is_report(kind) else None
    return 0.0 if reports is None else (reports.delay_ms + reports.period_ms) / 1e3


def check_csi(text: str) -> None:
    """Validate a `--csi` text.

    Raises:
        BadInput: as in `channel_state`.
    """
    if text in (NONE, PASSIVE, HANDSHAKE, PASSIVE + RADIO):
        return
    if "=" not in text and text.endswith(RADIO):
        text = text.removesuffix(RADIO)
    if "=" not in text and not _is_report(text):
        _prior(Path(text))
        return
    values = _reports(text)[1] if _is_report(text) else _pairs(text)
    if "trace" not in values:
        if set(values) - set(_defaults()):
            raise BadInput(f"bad channel state {text!r}; use {FORMS}")
        _given(values)
        return
    if set(values) - {"trace", "origin_s"}:
        raise BadInput(f"bad channel state {text!r}; use {FORMS}")
    read_trace(find("traces", values["trace"]))


def csi_text(channel: ChannelSpec, origin_s: float = 0.0, kind: str = ORACLE) -> str:
    """The `--csi` of a UE behind an emulated link.

    Args:
        origin_s: start of a replayed trace on the host's monotonic clock.
        kind: `oracle` (the link's own settings; passive where nothing is emulated), `none`, `passive`, `handshake`, or
            `report[,…]` of those settings.

    Raises:
        BadInput: another kind, or reports of a link that is not emulated.
    """
    truth = _truth(channel, origin_s)
    if kind == ORACLE:
        return truth or PASSIVE
    if not _is_report(kind):
        check_kind(kind)
        return kind
    if truth is None:
        raise BadInput("reports are made from an emulated link's state: use kind=proxy, virtual, tc or trace")
    text = f"{kind},{truth}"
    check_csi(text)
    return text


def _truth(channel: ChannelSpec, origin_s: float) -> str | None:
    """The settings of an emulated link; None: there are none."""
    if channel.file is not None:
        return f"trace={channel.file},origin_s={origin_s!r}"
    csi = channel.csi()
    if csi is None:
        return None
    names = ("uplink_mbps", "downlink_mbps", "rtt_ms", "per_up", "per_down", "source")
    return ",".join(f"{name}={getattr(csi, name)}" for name in names)


def _is_report(text: str) -> bool:
    return text.partition(",")[0].strip() == REPORT


def _reports(text: str) -> tuple[Reports, dict[str, str]]:
    """The settings of the reports, and the remaining pairs, which describe the link."""
    values = _pairs(text.partition(",")[2])
    mine = {key: values.pop(key) for key in Reports.__struct_fields__ if key in values}
    try:
        return msgspec.convert(mine, Reports, strict=False), values
    except msgspec.ValidationError as exc:
        raise BadInput(f"bad channel state {text!r}: {exc}") from exc


async def _handshakes(client: Client, clock: Clock) -> HandshakeChannel:
    async def rtt_s() -> float:
        return min(await client.rtt_s(HANDSHAKES))

    return HandshakeChannel(rtt_s, _assumed(await rtt_s(), "handshake"), clock)


def _assumed(rtt_s: float, source: Source) -> Csi:
    return Csi(ASSUMED_MBPS, ASSUMED_MBPS, rtt_s * 1e3, source=source)


def _known(values: dict[str, str], clock: Clock) -> ConstantChannel | TraceChannel:
    """The given state, or that of a trace."""
    if "trace" in values:
        origin_s = float(values["origin_s"]) if "origin_s" in values else clock.time()
        return TraceChannel(read_trace(find("traces", values["trace"])), clock, origin_s)
    return ConstantChannel(_given(values), clock)


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not sep for _, sep, _ in pairs):
        raise BadInput(f"bad channel state {text!r}; use {FORMS}")
    return {key.strip(): value.strip() for key, _, value in pairs}


def _given(values: dict[str, str]) -> Csi:
    try:
        numbers = {key: float(value) for key, value in values.items() if key != "source"}
        return msgspec.convert([{**values, **numbers}.get(name, default) for name, default in _defaults().items()], Csi)
    except (ValueError, msgspec.ValidationError) as exc:
        given = ",".join(f"{k}={v}" for k, v in values.items())
        raise BadInput(f"bad channel state {given!r}; use {FORMS}") from exc


def _prior(path: Path) -> Csi:
    """The `csi` entry of a document written by `channel measure`, with assumed rates if it has none."""
    try:
        document = json_values(file_bytes(path))
        measured = dict(document["csi"])
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise BadInput(f"bad channel state {str(path)!r}: not written by `channel measure`; use {FORMS}") from exc
    assumed = {"uplink_mbps": ASSUMED_MBPS, "downlink_mbps": ASSUMED_MBPS}
    try:
        return msgspec.convert([{**assumed, **measured}.get(name, field) for name, field in _defaults().items()], Csi)
    except msgspec.ValidationError as exc:
        raise BadInput(f"{path}: {exc}") from exc


def _defaults() -> dict[str, object]:
    """Fields of a `Csi` with their defaults; None: required."""
    fields = msgspec.structs.fields(Csi)
    return {f.name: None if f.default is msgspec.NODEFAULT else f.default for f in fields}
