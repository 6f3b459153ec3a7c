"""Bounds of a base station, and the socket that enforces them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from testbed.bs.intake import Offer
from testbed.bs.sessions import SessionTable
from testbed.channel.access import check_address, require_keys
from testbed.channel.keys import load_server
from testbed.channel.link import MAX_MESSAGE_BYTES
from testbed.channel.server_link import ZmqServerLink
from testbed.config import ServeConfig
from testbed.errors import BadInput
from testbed.protocols.ranges import MAX_HIDDEN

OVERBOOKED = 4
"""Tokens of open sessions per token of the engine's KV cache: sessions wait for their UEs most of the time, and evicted
tokens are computed again."""


def check_bounds(config: ServeConfig) -> list[str]:
    """Check addresses and keys of a configuration; returns the addresses to listen on.

    Raises:
        BadInput: an address or keys that cannot be used, or no keys beyond loopback.
    """
    addresses = [check_address(address) for address in config.bind.split(",")]
    require_keys(addresses, load_server(Path(config.keys)) if config.keys else None, config.insecure)
    return addresses


def check_free(addresses: list[str]) -> None:
    """Refuse TCP ports that are in use, before a model is loaded for them.

    Raises:
        BadInput: one is.
    """
    for address in addresses:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        if not address.startswith("tcp://") or not (port.isascii() and port.isdigit()) or port == "0":
            continue
        name = {"*": "0.0.0.0", "": "0.0.0.0"}.get(host, host.strip("[]"))
        try:
            family, kind, protocol, _, place = socket.getaddrinfo(name, int(port), type=socket.SOCK_STREAM)[0]
        except OSError:  # the name of an interface, or an unknown host: reported when listening begins
            continue
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(place)
            except OSError as exc:
                raise BadInput(f"cannot listen on {address}: {exc.strerror or exc}; choose another --bind") from exc


def listen(config: ServeConfig, offer: Offer) -> ZmqServerLink:
    """The socket of a base station; requires a running event loop.

    Raises:
        BadInput: an address or keys that cannot be used.
    """
    keys = load_server(Path(config.keys)) if config.keys else None
    return ZmqServerLink(*check_bounds(config), keys=keys, frame_bytes=largest_frame(offer))


def largest_frame(offer: Offer) -> int:
    """Size in bytes of the largest legitimate frame: a prompt, a window's hidden states or its distributions."""
    window = 2 * offer.max_window * max(offer.vocab_size, MAX_HIDDEN)
    return min(MAX_MESSAGE_BYTES, max(window, 4 * offer.max_positions))


def session_table(config: ServeConfig, kv_tokens: int | None, owner: Callable[[bytes], bytes]) -> SessionTable:
    """The bounded session table of a base station; `kv_tokens` is the size of its engine's KV cache."""
    tokens = config.max_kv_tokens
    if tokens is None and kv_tokens is not None:
        tokens = OVERBOOKED * kv_tokens
    return SessionTable(
        config.max_sessions_per_ue,
        config.max_sessions,
        pending=config.max_pending,
        tokens=tokens,
        ue_share=config.max_ue_share,
        idle_s=config.idle_s,
        owner=owner,
    )
