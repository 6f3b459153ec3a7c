"""`testbed channel measure`: one document on a link, out of handshakes, iperf3 and Wi-Fi."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from typing import Any

import msgspec

from testbed.channel.keys import ClientKeys
from testbed.channel.link import Link, ZmqLink, check_address, new_identity
from testbed.channel.measuring.iperf3 import NO_IPERF3, Throughput, iperf3_command, parse_server, run_iperf3
from testbed.channel.measuring.offset import Handshake, clock_offset
from testbed.channel.measuring.probe import RTT, rtt_estimate
from testbed.channel.measuring.wifi import WifiState, frame_error_rate, read_wifi, wifi_interfaces
from testbed.clock import Clock, WallClock
from testbed.errors import BadInput, LinkTimeout, ProtocolError
from testbed.protocols.codec import decode_downlink, encode
from testbed.protocols.messages import Ping, Pong

TIMEOUT_S = 10.0
"""Longest wait for one handshake."""
NO_RATES = "rates were not measured: name an iperf3 server to have them"
LOSS = "per_up and per_down are shares of TCP segments sent again: what the link layer repairs is not in them"


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
    """Measure the link to a BS: RTT, both rates where an iperf3 server is named, Wi-Fi where there is some.

    Args:
        bs: ZeroMQ address of a running BS; any will do, no vocabulary is agreed on.
        server: HOST[:PORT] of an iperf3 server at the BS.
        seconds: length of a transfer, one in each direction.
        count: handshakes.
        interface: Wi-Fi interface; None: the machine's own, if it has one.
        say: told what comes next, one line each.
        keys: that the BS asks for; None: none.

    Returns:
        `csi` (fields of a `Csi`, only those that were measured), `rtt_ms`, `uplink_mbps`, `downlink_mbps` (figures
        with 95 % intervals; null: not measured), `clock` (the BS's monotonic clock less this machine's), `wifi` (null:
        none), `notes`. With a rate R and a loss p, `csi` says R / (1 − p) and p: the cost model (WISV eq. 6) takes the
        losses off again and comes to what was measured.

    Raises:
        BadInput: bad arguments, no such interface, or no iperf3 here; before anything is sent.
        LinkError: the BS or the server cannot be reached, or went silent.
    """
    target = _check(bs, server, seconds, count, interface)
    say(f"{count} handshakes with {bs}")
    asked = asyncio.run(handshakes(bs, count, timeout_s, keys))
    rtt = rtt_estimate([handshake.seconds for handshake in asked])
    before = read_wifi(interface)
    up = down = None
    if target:
        say(f"uplink: {seconds} s of iperf3 to {target[0]}:{target[1]}")
        up = run_iperf3(*target, seconds, reverse=False)
        say(f"downlink: {seconds} s of iperf3 from {target[0]}:{target[1]}")
        down = run_iperf3(*target, seconds, reverse=True)
    after = read_wifi(interface)
    return {
        "csi": _csi(rtt, up, down, after),
        "rtt_ms": {**_plain(rtt.median_ms), "jitter": rtt.jitter_ms, "least": rtt.least_ms},
        "uplink_mbps": _rate(up),
        "downlink_mbps": _rate(down),
        "clock": _plain(clock_offset(asked)),
        "wifi": _wifi(after, before if target else None),
        "notes": _notes(rtt, up, down, after, interface),
    }


async def handshakes(bs: str, count: int, timeout_s: float, keys: ClientKeys | None = None) -> list[Handshake]:
    """`count` handshakes, one after another; one more before them opens the connection.

    Raises:
        LinkTimeout: a handshake had no answer in time.
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
    """Ping, and the Pong that answers it, not an earlier one.

    Raises:
        LinkTimeout: it did not come in time.
    """
    start_s = clock.time()
    await link.send(encode(Ping(token=token)))
    while True:
        received = await link.recv(max(0.0, timeout_s - (clock.time() - start_s)))
        received_s = clock.time()
        with contextlib.suppress(ProtocolError):  # from something else than a BS: wait on
            answer = decode_downlink(received.frames, received.size_bytes).message
            if isinstance(answer, Pong) and answer.token == token:
                return Handshake(start_s, answer.time_s, received_s)


def _check(bs: str, server: str | None, seconds: int, count: int, interface: str | None) -> tuple[str, int] | None:
    """Host and port of the iperf3 server."""
    check_address(bs)
    if count < 1:
        raise BadInput(f"count must be at least 1, not {count}")
    if interface is not None and interface not in (there := wifi_interfaces()):
        raise BadInput(f"no Wi-Fi interface {interface!r} here; there is {', '.join(there) or 'none'}")
    if server is None:
        return None
    target = parse_server(server)
    command = iperf3_command(*target, seconds, reverse=False)
    if shutil.which(command[0]) is None:
        raise BadInput(NO_IPERF3)
    return target


def _csi(rtt: RTT, up: Throughput | None, down: Throughput | None, wifi: WifiState | None) -> dict[str, Any]:
    csi: dict[str, Any] = {"rtt_ms": rtt.median_ms.value, "source": "probe"}
    for direction, end, found in (("uplink", "up", up), ("downlink", "down", down)):
        if found:
            csi[f"{direction}_mbps"] = found.rate_mbps.value / (1 - (found.loss or 0.0))
            if found.loss is not None:
                csi[f"per_{end}"] = found.loss
    if wifi:
        csi |= {"snr_db": wifi.snr_db, "rssi_dbm": wifi.station.rssi_dbm}
    return {key: value for key, value in csi.items() if value is not None}


def _rate(found: Throughput | None) -> dict[str, Any] | None:
    if found is None:
        return None
    document = _plain(found)
    rate = document.pop("rate_mbps")
    return {**rate, **document}


def _wifi(now: WifiState | None, before: WifiState | None) -> dict[str, Any] | None:
    """What the interface says; errors counted over the transfers, or since it associated where there were none."""
    if now is None:
        return None
    errors = frame_error_rate(now.station, before.station if before else None)
    return {**_plain(now), "snr_db": now.snr_db, "frame_error_rate": errors}


def _notes(
    rtt: RTT, up: Throughput | None, down: Throughput | None, wifi: WifiState | None, interface: str | None
) -> list[str]:
    notes = []
    if rtt.median_ms.low is None:
        notes.append(f"{rtt.median_ms.n} handshakes are too few for an interval; it takes 6")
    if up is None or down is None:
        notes.append(NO_RATES)
    elif up.loss is None or down.loss is None:
        notes.append("iperf3 counted no retransmissions on one side: its losses are not known")
    if (up and up.loss) or (down and down.loss):
        notes.append(LOSS)
    if wifi is None:
        found = interface or next(iter(wifi_interfaces()), None)
        notes.append(f"{found} has no Wi-Fi link" if found else "no Wi-Fi interface here")
    return notes


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(value)
    return document
