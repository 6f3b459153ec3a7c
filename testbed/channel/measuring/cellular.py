"""State of a cellular modem's link, read with `mmcli` (ModemManager) or `qmicli` (libqmi)."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from testbed.channel.measuring.wifi import TIMEOUT_S

Technology = Literal["5g", "lte"]
MMCLI = ("mmcli", "-m", "any", "--signal-get", "--output-keyvalue")
QMI_DEVICES = ("cdc-wdm*", "wwan*qmi*")
"""Control ports of USB modems, and of modems on PCIe or an SoC (the kernel's WWAN framework)."""
DEVICES = Path("/dev")
RANGES = {"rsrp": (-200.0, 0.0), "rsrq": (-60.0, 40.0), "snr": (-60.0, 100.0), "rssi": (-200.0, 0.0)}
"""Plausible values, in dBm or dB; modems report -32768 for what they do not know."""


class CellularState(msgspec.Struct, frozen=True, kw_only=True):
    """Current state of a modem's link, measured by the UE on the downlink."""

    technology: Technology
    """Radio access technology; 5g if both are connected (5G NSA)."""
    rsrp_dbm: float | None
    """Reference signal received power, per resource element; some modems report the RSSI alone."""
    rsrq_db: float | None = None
    sinr_db: float | None = None
    rssi_dbm: float | None = None
    """Power over the whole carrier; modems report it for LTE only."""
    source: Literal["mmcli", "qmicli"]


def parse_mmcli(text: str) -> CellularState | None:
    """Parse `mmcli -m MODEM --signal-get --output-keyvalue`; None without values, as before `--signal-setup`."""
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        match = re.match(r"modem\.signal\.(lte|5g|nr5g)\.(\w+)\s*:\s*(\S+)\s*$", line)
        if match:
            found.setdefault("lte" if match[1] == "lte" else "5g", {})[match[2]] = match[3]
    return _state(found, "mmcli")


def parse_qmicli(text: str) -> CellularState | None:
    """Parse `qmicli -d DEVICE --nas-get-signal-info`; None without LTE or 5G values."""
    found: dict[str, dict[str, str]] = {}
    section: dict[str, str] = {}
    for line in text.splitlines():
        head = re.match(r"\s*(\w+):\s*$", line)
        value = re.match(r"\s+(\w+):\s+'(\S+?)(?: dBm?)?'", line)
        if head:
            section = found.setdefault(head[1].lower(), {})
        elif value:
            section[value[1].lower()] = value[2]
    return _state(found, "qmicli")


def read_cellular(timeout_s: float = TIMEOUT_S, devices: Path = DEVICES) -> CellularState | None:
    """State of this machine's modem; None without a modem, its tools, or values. Each command is limited to
    `timeout_s`.
    """
    found = parse_mmcli(_output(MMCLI, timeout_s))
    ports = sorted(port for kind in QMI_DEVICES for port in devices.glob(kind))
    for device in ports if found is None else []:
        found = parse_qmicli(_output(("qmicli", "-d", str(device), "-p", "--nas-get-signal-info"), timeout_s))
        if found is not None:
            break
    return found


def _state(found: Mapping[str, Mapping[str, str]], source: Literal["mmcli", "qmicli"]) -> CellularState | None:
    technologies: tuple[Technology, ...] = ("5g", "lte")
    known = {one: {name: _number(text, name) for name, text in found.get(one, {}).items()} for one in technologies}
    for technology in technologies:
        values = known[technology]
        if values.get("rsrp") is not None or (technology == "lte" and values.get("rssi") is not None):
            return CellularState(
                technology=technology, rsrp_dbm=values.get("rsrp"), rsrq_db=values.get("rsrq"),
                sinr_db=values.get("snr"), rssi_dbm=values.get("rssi"), source=source,
            )  # fmt: skip
    return None


def _number(text: str, name: str) -> float | None:
    if not re.fullmatch(r"-?\d{1,5}(?:\.\d{1,3})?", text) or name not in RANGES:
        return None
    low, high = RANGES[name]
    return value if low <= (value := float(text)) <= high else None


def _output(command: tuple[str, ...], timeout_s: float) -> str:
    """Output of a command; empty if it fails, times out or is not installed."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")
