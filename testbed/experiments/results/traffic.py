"""Bytes of a row by what was counted: at the socket, or the payload of a device profile's models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SOCKET, PAYLOAD = "socket", "payload"
"""Values of a row's `bytes_counted`: all bytes of the messages, or those that the models of a profile would send."""


def by_meaning(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row for display: `uplink_bytes` and `downlink_bytes` only where they were counted at the socket, otherwise
    `uplink_payload_bytes` and `downlink_payload_bytes`.
    """
    if row.get("bytes_counted") != PAYLOAD:
        return row
    names = ("uplink", "downlink")
    moved = {f"{name}_payload_bytes": row.get(f"{name}_bytes") for name in names}
    return {**row, **moved, **dict.fromkeys((f"{name}_bytes" for name in names), None)}
