"""State of a Wi-Fi interface's link, read from `iw` and `/proc/net/wireless`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import msgspec

PROC = Path("/proc/net/wireless")
INTERFACES = Path("/sys/class/net")
TIMEOUT_S = 3.0
INVALID_DBM = -256
"""Value in `/proc/net/wireless` for a level that the driver does not know."""
_ADDRESS = r"([0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5})"


class Bitrate(msgspec.Struct, frozen=True):
    """A PHY rate, before contention, headers and retries; TCP reaches about half of it."""

    mbps: float
    standard: str | None = None
    """HT, VHT, HE or EHT (802.11n, ac, ax, be); None for legacy rates."""
    mcs: int | None = None
    """Modulation and coding scheme; for HT, the index includes the number of streams (8 is MCS 0 with two)."""
    streams: int | None = None
    width_mhz: int | None = None


class WifiStation(msgspec.Struct, frozen=True, kw_only=True):
    """The peer of a Wi-Fi link, and this end's counters for it since association.

    `tx` is what this end sends: for a UE, the uplink.
    """

    address: str
    rssi_dbm: float | None = None
    tx: Bitrate | None = None
    rx: Bitrate | None = None
    tx_packets: int | None = None
    tx_retries: int | None = None
    tx_failed: int | None = None
    """Packets dropped after all their retries."""

    @property
    def counters(self) -> tuple[int, int, int] | None:
        """Packets, retries and failures; None if one of them is not reported."""
        if self.tx_packets is None or self.tx_retries is None or self.tx_failed is None:
            return None
        return self.tx_packets, self.tx_retries, self.tx_failed


class Wireless(msgspec.Struct, frozen=True):
    """An interface in `/proc/net/wireless`."""

    interface: str
    rssi_dbm: float | None
    noise_dbm: float | None


class WifiState(msgspec.Struct, frozen=True, kw_only=True):
    """Current state of an interface's link."""

    interface: str
    station: WifiStation
    noise_dbm: float | None = None

    @property
    def snr_db(self) -> float | None:
        """Signal-to-noise ratio; None if signal or noise is unknown."""
        if self.station.rssi_dbm is None or self.noise_dbm is None:
            return None
        return self.station.rssi_dbm - self.noise_dbm


def frame_error_rate(now: WifiStation, before: WifiStation | None = None) -> float | None:
    """Share of transmissions that were not acknowledged, in [0, 1]: the packet error rate of the link layer.

    For n packets with r retries, f of which were dropped: n + r transmissions, r + f of them lost. This is p of WISV
    eqs. 6 and 10, which recover losses by retransmission. Drivers that leave retries to their firmware report none.

    Args:
        before: an earlier reading to count from; None: count since association.

    Returns:
        None if counters are missing or were reset, or if nothing was sent.
    """
    end = now.counters
    start = (0, 0, 0) if before is None else before.counters if before.address == now.address else None
    if end is None or start is None:
        return None
    packets, retries, failed = (a - b for a, b in zip(end, start, strict=True))
    if packets <= 0 or retries < 0 or failed < 0:
        return None
    return min(1.0, (retries + failed) / (packets + retries))


# ---------------------------------------------------------------- parsers


def parse_link(text: str) -> WifiStation | None:
    """Parse `iw dev IF link`; None if not connected."""
    match = re.search(rf"^Connected to {_ADDRESS}", text, re.MULTILINE)
    return _station(match[1], text[match.end() :]) if match else None


def parse_station_dump(text: str) -> list[WifiStation]:
    """Parse `iw dev IF station dump`: the AP if the interface is a client, all clients if it is an AP."""
    parts = re.split(rf"^Station {_ADDRESS}.*$", text, flags=re.MULTILINE)
    return [_station(address, body) for address, body in zip(parts[1::2], parts[2::2], strict=True)]


def parse_survey_noise(text: str) -> float | None:
    """Noise floor in dBm of the channel in use, from `iw dev IF survey dump`; None if not reported."""
    for block in text.split("Survey data from")[1:]:
        if "[in use]" in block:
            return _dbm(_fields(block).get("noise", ""))
    return None


def parse_proc(text: str) -> list[Wireless]:
    """Parse `/proc/net/wireless`; levels that a driver does not know are None."""
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*([^\s:]+):\s+[0-9a-fA-F]{4}\s+\S+\s+(-?\d{1,4})\.?\s+(-?\d{1,4})\.?\s", line)
        if match:
            found.append(Wireless(match[1], _level(int(match[2])), _level(int(match[3]))))
    return found


def parse_bitrate(text: str) -> Bitrate | None:
    """Parse the value of a `tx bitrate` or `rx bitrate` line: `866.7 MBit/s VHT-MCS 9 80MHz short GI VHT-NSS 2`."""
    match = re.match(r"(\d{1,6}(?:\.\d{1,3})?) MBit/s\b", text)
    if not match:
        return None
    mcs = re.search(r"(?:\b(VHT|HE|EHT)-)?\bMCS (\d{1,2})\b", text)
    streams, width = re.search(r"-NSS (\d{1,2})\b", text), re.search(r"\b(\d{1,3})MHz\b", text)
    return Bitrate(
        mbps=float(match[1]),
        standard=(mcs[1] or "HT") if mcs else None,
        mcs=int(mcs[2]) if mcs else None,
        streams=int(streams[1]) if streams else None,
        width_mhz=int(width[1]) if width else None,
    )


def _station(address: str, body: str) -> WifiStation:
    fields = _fields(body)
    return WifiStation(
        address=address.lower(),
        rssi_dbm=_dbm(fields.get("signal", "")),
        tx=parse_bitrate(fields.get("tx bitrate", "")),
        rx=parse_bitrate(fields.get("rx bitrate", "")),
        tx_packets=_count(fields.get("tx packets", "")),
        tx_retries=_count(fields.get("tx retries", "")),
        tx_failed=_count(fields.get("tx failed", "")),
    )


def _fields(body: str) -> dict[str, str]:
    """Indented `name: value` lines; of repeated names the first, since multi-link stations list their links below."""
    fields: dict[str, str] = {}
    for line in body.splitlines():
        name, colon, value = line.partition(":")
        if colon and name[:1].isspace():
            fields.setdefault(name.strip(), value.strip())
    return fields


def _dbm(text: str) -> float | None:
    match = re.match(r"(-?\d{1,3}(?:\.\d{1,2})?)\b.*\bdBm", text)
    return float(match[1]) if match else None


def _count(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _level(value: int) -> float | None:
    """A level in dBm; old drivers report it as an unsigned byte."""
    dbm = value - 256 if 64 < value < 256 else value
    return float(dbm) if INVALID_DBM < dbm < 0 else None


# ---------------------------------------------------------------- this machine


def wifi_interfaces(interfaces: Path = INTERFACES) -> list[str]:
    """Names of this machine's Wi-Fi interfaces, those that are up first."""
    found = [i for i in interfaces.glob("*") if (i / "wireless").exists() or (i / "phy80211").exists()]
    return [i.name for i in sorted(found, key=lambda i: (_first_line(i / "operstate") != "up", i.name))]


def wifi_interface(interfaces: Path = INTERFACES) -> str | None:
    """The first of `wifi_interfaces`; None if there is none."""
    return next(iter(wifi_interfaces(interfaces)), None)


def read_wifi(interface: str | None = None, timeout_s: float = TIMEOUT_S, proc: Path = PROC) -> WifiState | None:
    """State of a Wi-Fi interface's link, by default of the machine's first one; None without an interface or link.

    Without `iw`, only the signal level is known. Each command is limited to `timeout_s`.
    """
    name = interface or wifi_interface()
    if name is None:
        return None
    old = next((w for w in parse_proc(_read(proc)) if w.interface == name), None)
    link = parse_link(_iw(name, "link", timeout_s))
    stations = parse_station_dump(_iw(name, "station dump", timeout_s))
    station = next((s for s in stations if link and s.address == link.address), link)
    if station is None and old and old.rssi_dbm is not None and not _has_iw():
        station = WifiStation(address="", rssi_dbm=old.rssi_dbm)
    if station is None:
        return None
    noise_dbm = parse_survey_noise(_iw(name, "survey dump", timeout_s))
    if noise_dbm is None and old:
        noise_dbm = old.noise_dbm
    return WifiState(interface=name, station=station, noise_dbm=noise_dbm)


def _has_iw() -> bool:
    return shutil.which("iw") is not None


def _iw(interface: str, what: str, timeout_s: float) -> str:
    """Output of `iw dev IF WHAT`; empty if it fails, times out or is not installed."""
    try:
        done = subprocess.run(
            ["iw", "dev", interface, *what.split()],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _first_line(path: Path) -> str:
    return _read(path).partition("\n")[0]
