"""The proxy as a process (`testbed channel emulate`): relays over the links of a `ChannelSpec` until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable
from typing import Any

from testbed.channel.proxy import MakePath, Proxy, precise_loop
from testbed.channel.spec import ChannelSpec
from testbed.errors import BadInput
from testbed.process.heap import loaded_heap_frozen

Ready = Callable[[dict[str, Any]], None]
"""Called once when UEs may connect, with `listen`, `target`, `pid` and `origin_s`, the start of the links (monotonic
clock); with shares also `listens`, one address per UE."""


def endpoint(address: str, free_port: bool = False) -> tuple[str, int]:
    """Host and port of tcp://HOST:PORT; with `free_port`, PORT may be `*` (returned as 0).

    Raises:
        BadInput: any other address.
    """
    match = re.fullmatch(r"tcp://(\[[0-9a-fA-F:]+\]|[^\s:/]+):(\d+|\*)", address)
    port = -1 if not match else 0 if match[2] == "*" else int(match[2])
    if not match or not 0 <= port < 65536 or (port == 0 and not (free_port and match[2] == "*")):
        raise BadInput(f"bad address {address!r}; use tcp://HOST:PORT, such as tcp://127.0.0.1:5556")
    return match[1].strip("[]"), port


def relay(spec: ChannelSpec, listen: str, target: str, ready: Ready, seconds: float | None = None) -> dict[str, int]:
    """Relay until SIGINT or SIGTERM, or for `seconds`; returns counts: connections, refused, bytes up and down.

    Raises:
        BadInput: an invalid address, or a link that the proxy does not emulate.
    """
    if not spec.is_proxied and spec.kind != "none":
        raise BadInput(f"a proxy emulates kind=proxy or kind=trace,via=proxy, not kind={spec.kind}")
    here, there = endpoint(listen, free_port=True), endpoint(target)
    spec.path(0)  # raises now if the trace cannot be read
    loop = precise_loop()
    try:
        with loaded_heap_frozen():
            return loop.run_until_complete(_relay(spec, here, there, ready, seconds))
    finally:
        loop.close()


async def _relay(
    spec: ChannelSpec, here: tuple[str, int], there: tuple[str, int], ready: Ready, seconds: float | None
) -> dict[str, int]:
    loop = asyncio.get_running_loop()
    origin_s = loop.time()
    proxies = [Proxy(there, make_path) for make_path in _links(spec, origin_s)]
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    ports = [await proxy.start(here[0], here[1] and here[1] + k) for k, proxy in enumerate(proxies)]
    try:
        listens = [f"tcp://{_host(here[0])}:{port}" for port in ports]
        ready({
            "ready": True, "listen": listens[0], "target": f"tcp://{_host(there[0])}:{there[1]}",
            "pid": os.getpid(), "origin_s": origin_s, **({"listens": listens} if spec.shares else {}),
        })  # fmt: skip
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stop.wait(), seconds)
    finally:
        for proxy in proxies:
            await proxy.close()
    moved = [proxy.moved_bytes() for proxy in proxies]
    return {
        "connections": sum(proxy.connections for proxy in proxies), "refused": sum(proxy.refused for proxy in proxies),
        "uplink_bytes": sum(up for up, _ in moved), "downlink_bytes": sum(down for _, down in moved),
    }  # fmt: skip


def _links(spec: ChannelSpec, origin_s: float) -> list[MakePath]:
    """Functions that create the links of connections: one for all UEs or, with shares, one per UE."""
    if spec.ues is None:
        return [lambda index: spec.path(index, origin_s)]
    return [lambda _, ue=ue: spec.path(ue, origin_s) for ue in range(spec.ues)]  # type: ignore[misc]


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
