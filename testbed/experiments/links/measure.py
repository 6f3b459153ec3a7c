"""`testbed channel measure`: measures a link by handshakes, iperf3 and Wi-Fi statistics."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from testbed.channel.access import check_address
from testbed.channel.keys import ClientKeys
from testbed.channel.link import Link, ZmqLink, new_identity
from testbed.channel.measuring.cellular import CellularState, read_cellular
from testbed.channel.measuring.iperf3 import NO_IPERF3, Throughput, iperf3_command, parse_server, run_iperf3
from testbed.channel.measuring.offset import Handshake, clock_offset
from testbed.channel.measuring.probe import RTT, rtt_estimate
from testbed.channel.measuring.wifi import WifiState, frame_error_rate, read_wifi, wifi_interfaces
from testbed.clock import Clock, WallClock
from testbed.errors import BadInput, LinkTimeout, ProtocolError
from testbed.protocols.codec import decode_downlink, encode
from testbed.protocols.messages import Ping, Pong
from testbed.protocols.ranges import check_ranges

TIMEOUT_S = 10.0
"""Timeout of one handshake."""
NO_RATES = "rates were not measured; give an iperf3 server to measure them"
LOSS = "per_up and per_down are fractions of retransmitted TCP segments, without link-layer retransmissions"


def measure(
    bs: str,
    server: str | None = None,
    seconds: int = 5,
    count: int = 20,
    interface: str | None = None,
    timeout_s: float = TIMEOUT_S,
    say: Callable[[str], object] = lambda text: None,
    keys: ClientKeys | None = None,
) -> dict[str, Any]:
    """Measure the link to a BS: RTT, rates if an iperf3 server is given, and the state of a Wi-Fi interface or modem.

    Args:
        bs: ZeroMQ address of a running BS; its model does not matter.
        server: HOST[:PORT] of an iperf3 server at the BS.
        seconds: duration of each transfer, one per direction.
        count: number of handshakes.
        interface: Wi-Fi interface; None: the machine's own, if any.
        say: called with a line before each step.
        keys: keys for the BS; None: none.

    Returns:
        `csi` (the measured fields of a `Csi`), `rtt_ms`, `uplink_mbps`, `downlink_mbps` (with 95 % intervals; null: not
        measured), `clock` (offset of the BS's monotonic clock from this machine's), `wifi` and `cellular` (null:
        none), `notes`. For a measured rate R and loss p, `csi` has R / (1 − p) and p, from which the cost model (WISV
        eq. 6) recovers R.

    Raises:
        BadInput: invalid arguments, no such interface, or iperf3 not installed; raised before anything is sent.
        LinkError: the BS or the iperf3 server is unreachable or stopped answering.
    """
    target = _check(bs, server, seconds, count, interface)
    say(f"{count} handshakes with {bs}")
    asked = asyncio.run(handshakes(bs, count, timeout_s, keys))
    before = read_wifi(interface) if target else None
    rates = _transfers(target, seconds, say) if target else (None, None)
    wifi = read_wifi(interface)
    return _document(asked, rates, before, wifi, None if wifi else read_cellular(), interface)


def _document(
    asked: Sequence[Handshake],
    rates: tuple[Throughput | None, Throughput | None],
    before: WifiState | None,
    wifi: WifiState | None,
    cellular: CellularState | None,
    interface: str | None,
) -> dict[str, Any]:
    rtt, (up, down) = rtt_estimate([handshake.seconds for handshake in asked]), rates
    return {
        "csi": _csi(rtt, up, down, wifi, cellular),
        "rtt_ms": {**_plain(rtt.median_ms), "jitter": rtt.jitter_ms, "least": rtt.least_ms},
        "uplink_mbps": _rate(up),
        "downlink_mbps": _rate(down),
        "clock": _plain(clock_offset(asked)),
        "wifi": _wifi(wifi, before),
        "cellular": _plain(cellular) if cellular else None,
        "notes": _notes(rtt, up, down, wifi, cellular, interface),
    }


def _transfers(server: tuple[str, int], seconds: int, say: Callable[[str], object]) -> tuple[Throughput, Throughput]:
    """Uplink and downlink throughput."""
    say(f"uplink: {seconds} s of iperf3 to {server[0]}:{server[1]}")
    up = run_iperf3(*server, seconds, reverse=False)
    say(f"downlink: {seconds} s of iperf3 from {server[0]}:{server[1]}")
    return up, run_iperf3(*server, seconds, reverse=True)


async def handshakes(bs: str, count: int, timeout_s: float, keys: ClientKeys | None = None) -> list[Handshake]:
    """Perform `count` handshakes in sequence, after one that opens the connection.

    Raises:
        LinkTimeout: a handshake was not answered in time.
    """
    link, clock = ZmqLink(bs, new_identity(), keys), WallClock()
    try:
        found = [await handshake(link, clock, token, timeout_s) for token in range(count + 1)]
    except LinkTimeout as exc:
        raise LinkTimeout(
            f"the BS at {bs} did not answer within {timeout_s:g} s; is it running, and is the address right?"
        ) from exc
    finally:
        link.close()
    return found[1:]


async def handshake(link: Link, clock: Clock, token: int, timeout_s: float) -> Handshake:
    """Send a Ping and wait for the Pong with the same token.

    Raises:
        LinkTimeout: no answer in time.
    """
    start_s = clock.time()
    await link.send(encode(Ping(token=token)))
    while (left_s := timeout_s - (clock.time() - start_s)) > 0:  # also where other messages never cease
        received = await link.recv(left_s)
        received_s = clock.time()
        with contextlib.suppress(ProtocolError):  # ignore anything that is not from a BS
            answer = decode_downlink(received.frames, received.size_bytes).message
            check_ranges(answer)
            if isinstance(answer, Pong) and answer.token == token:
                return Handshake(start_s, answer.time_s, received_s)
    raise LinkTimeout(f"no answer within {timeout_s:g} s")


def _check(bs: str, server: str | None, seconds: int, count: int, interface: str | None) -> tuple[str, int] | None:
    """Validate the arguments; returns host and port of the iperf3 server."""
    check_address(bs)
    if count < 1:
        raise BadInput(f"count must be at least 1, not {count}")
    if interface is not None and interface not in (there := wifi_interfaces()):
        raise BadInput(f"no Wi-Fi interface {interface!r}; this machine has {', '.join(there) or 'none'}")
    if server is None:
        return None
    target = parse_server(server)
    command = iperf3_command(*target, seconds, reverse=False)
    if shutil.which(command[0]) is None:
        raise BadInput(NO_IPERF3)
    return target


def _csi(
    rtt: RTT, up: Throughput | None, down: Throughput | None, wifi: WifiState | None, cellular: CellularState | None
) -> dict[str, Any]:
    csi: dict[str, Any] = {"rtt_ms": rtt.median_ms.value, "source": "probe"}
    for direction, end, found in (("uplink", "up", up), ("downlink", "down", down)):
        if found:
            csi[f"{direction}_mbps"] = found.rate_mbps.value / (1 - (found.loss or 0.0))
            if found.loss is not None:
                csi[f"per_{end}"] = found.loss
    if wifi:
        csi |= {"snr_db": wifi.snr_db, "rssi_dbm": wifi.station.rssi_dbm}
    if cellular:
        csi |= {"snr_db": cellular.sinr_db, "rssi_dbm": cellular.rssi_dbm}
    return {key: value for key, value in csi.items() if value is not None}


def _rate(found: Throughput | None) -> dict[str, Any] | None:
    if found is None:
        return None
    document = _plain(found)
    rate = document.pop("rate_mbps")
    return {**rate, **document}


def _wifi(now: WifiState | None, before: WifiState | None) -> dict[str, Any] | None:
    """State of the interface, with the frame error rate over the transfers or, without any, since association."""
    if now is None:
        return None
    errors = frame_error_rate(now.station, before.station if before else None)
    return {**_plain(now), "snr_db": now.snr_db, "frame_error_rate": errors}


def _notes(
    rtt: RTT,
    up: Throughput | None,
    down: Throughput | None,
    wifi: WifiState | None,
    cellular: CellularState | None,
    interface: str | None,
) -> list[str]:
    notes = []
    if rtt.median_ms.low is None:
        notes.append(f"{rtt.median_ms.n} handshakes are too few for a confidence interval; use at least 6")
    if up is None or down is None:
        notes.append(NO_RATES)
    elif up.loss is None or down.loss is None:
        notes.append("iperf3 reported no retransmissions of packets for one direction, so its loss is unknown")
    if (up and up.loss) or (down and down.loss):
        notes.append(LOSS)
    if wifi is None and cellular is None:
        found = interface or next(iter(wifi_interfaces()), None)
        notes.append(f"{found} has no Wi-Fi link" if found else "no Wi-Fi interface, no modem with values")
    return notes


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(value)
    return document
