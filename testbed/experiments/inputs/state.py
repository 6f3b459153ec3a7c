"""Parses the `--csi` option: the source of a run's channel state."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import msgspec

from testbed.bundled_files import find
from testbed.channel.csi import Csi
from testbed.channel.trace import read_trace
from testbed.clock import Clock
from testbed.errors import BadInput
from testbed.ue.channel_state import ChannelState, ConstantChannel, MeasuredChannel, TraceChannel, UnknownChannel
from testbed.ue.client import Client

NONE, PASSIVE = "none", "passive"
ASSUMED_MBPS = 100.0
"""Initial rates before any measurement; rounds with enough bytes correct them."""
FORMS = (
    "none, passive, FILE.json, trace=NAME|FILE[,origin_s=S], or uplink_mbps=..,downlink_mbps=..,rtt_ms=..[,per_up=..]"
)


async def channel_state(text: str, client: Client, clock: Clock) -> ChannelState:
    """Channel state of a run over a connected client.

    `none`: unknown. `passive`: estimated from rounds, after an RTT handshake. A JSON file written by `channel measure`:
    the same, starting from its values. `key=value,…`: constant. `trace=…`: read from a replayed trace that started at
    `origin_s` on the host's monotonic clock (default: now).

    Raises:
        BadInput: any other text, or invalid values.
    """
    check_csi(text)
    if text == NONE:
        return UnknownChannel()
    if text == PASSIVE:
        rtt_s = statistics.median(await client.rtt_s())
        return MeasuredChannel(Csi(ASSUMED_MBPS, ASSUMED_MBPS, rtt_s * 1e3, source="passive"), clock)
    if "=" not in text:
        return MeasuredChannel(_prior(Path(text)), clock)
    values = _pairs(text)
    if "trace" in values:
        origin_s = float(values["origin_s"]) if "origin_s" in values else clock.time()
        return TraceChannel(read_trace(find("traces", values["trace"])), clock, origin_s)
    return ConstantChannel(_given(values), clock)


def check_csi(text: str) -> None:
    """Validate a `--csi` text.

    Raises:
        BadInput: as in `channel_state`.
    """
    if text in (NONE, PASSIVE):
        return
    if "=" not in text:
        _prior(Path(text))
        return
    values = _pairs(text)
    if "trace" not in values:
        if set(values) - set(_defaults()):
            raise BadInput(f"bad channel state {text!r}; use {FORMS}")
        _given(values)
        return
    if set(values) - {"trace", "origin_s"}:
        raise BadInput(f"bad channel state {text!r}; use {FORMS}")
    read_trace(find("traces", values["trace"]))


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
        document = json.loads(path.read_text(encoding="utf-8"))
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
