"""Cellular modems: output of `mmcli` and `qmicli`; machines without a modem or the tools."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.channel.measuring import reading
from testbed.channel.measuring.cellular import RANGES, CellularState, parse_mmcli, parse_qmicli, read_cellular
from testbed.channel.measuring.reading import RadioReading
from testbed.channel.measuring.wifi import WifiState, WifiStation

# Keys as ModemManager's cli/mmcli-output.c prints them (--output-keyvalue); values of an LTE modem.
MMCLI_LTE = """modem.signal.refresh.rate         : 2
modem.signal.threshold.rssi       : 0
modem.signal.threshold.error-rate : no
modem.signal.gsm.rssi             : --
modem.signal.lte.rssi             : -71.00
modem.signal.lte.rsrq             : -9.00
modem.signal.lte.rsrp             : -100.00
modem.signal.lte.snr              : 19.00
modem.signal.5g.rsrq              : --
modem.signal.5g.rsrp              : --
"""
# Values as in https://github.com/freedesktop/libqmi/pull/2: a Quectel RM500Q, 5G NSA.
QMICLI_NSA = """[/dev/cdc-wdm0] Successfully got signal info
LTE:
\tRSSI: '-47 dBm'
\tRSRQ: '-5 dB'
\tRSRP: '-70 dBm'
\tSNR: '30.0 dB'
5G:
\tRSRP: '-75 dBm'
\tSNR: '18.5 dB'
\tRSRQ: '-11 dB'
"""
LTE = CellularState(technology="lte", rsrp_dbm=-100, rsrq_db=-9, sinr_db=19, rssi_dbm=-71, source="mmcli")


def test_mmcli() -> None:
    assert parse_mmcli(MMCLI_LTE) == LTE
    both = MMCLI_LTE.replace("5g.rsrp              : --", "5g.rsrp              : -88.00")
    assert parse_mmcli(both) == CellularState(technology="5g", rsrp_dbm=-88, source="mmcli")
    assert parse_mmcli(re.sub(r"-?[0-9.]+$", "--", MMCLI_LTE, flags=re.M)) is None  # before mmcli --signal-setup
    assert parse_mmcli("error: couldn't find modem\n") is None


def test_qmicli() -> None:
    assert parse_qmicli(QMICLI_NSA) == CellularState(
        technology="5g", rsrp_dbm=-75, rsrq_db=-11, sinr_db=18.5, source="qmicli"
    )
    lte = CellularState(technology="lte", rsrp_dbm=-70, rsrq_db=-5, sinr_db=30, rssi_dbm=-47, source="qmicli")
    assert parse_qmicli(QMICLI_NSA.partition("5G:")[0]) == lte
    inactive = QMICLI_NSA.replace("'-75 dBm'", "'-32768 dBm'")  # 5G is not active
    assert parse_qmicli(inactive) == lte
    assert parse_qmicli("error: couldn't open the QmiDevice: Operation timed out\n") is None


# Telit FN980m, 5G NSA on AT&T, 2022: github.com/waggle-sensor/summer2022, snead/Connection-Info/HowToConnect.md.
QMICLI_TELIT = """[/dev/cdc-wdm0] Successfully got signal info
LTE:
\tRSSI: '-70 dBm'
\tRSRQ: '-12 dB'
\tRSRP: '-97 dBm'
\tSNR: '9.6 dB'
5G:
\tRSRP: '-74 dBm'
\tSNR: '16.5 dB'
\tRSRQ: '-11 dB'
"""
# Levels of ModemManager on OpenWrt, an LTE modem that reports the RSSI alone:
# github.com/openwisp/openwisp-monitoring/issues/779; keys as `mmcli --output-keyvalue` prints them.
MMCLI_RSSI_ALONE = """modem.signal.refresh.rate         : 30
modem.signal.threshold.rssi       : 0
modem.signal.threshold.error-rate : no
modem.signal.gsm.rssi             : --
modem.signal.gsm.error-rate       : --
modem.signal.umts.rssi            : --
modem.signal.umts.rscp            : --
modem.signal.umts.ecio            : --
modem.signal.lte.rssi             : -102.00
modem.signal.lte.rsrq             : --
modem.signal.lte.rsrp             : --
modem.signal.lte.snr              : --
modem.signal.lte.error-rate       : --
modem.signal.5g.rssi              : --
modem.signal.5g.rsrq              : --
modem.signal.5g.rsrp              : --
modem.signal.5g.snr               : --
"""


def test_forms_of_other_firmware() -> None:
    telit = CellularState(technology="5g", rsrp_dbm=-74, rsrq_db=-11, sinr_db=16.5, source="qmicli")
    assert parse_qmicli(QMICLI_TELIT) == telit
    alone = CellularState(technology="lte", rsrp_dbm=None, rssi_dbm=-102, source="mmcli")
    assert parse_mmcli(MMCLI_RSSI_ALONE) == alone
    standalone = QMICLI_TELIT.replace(QMICLI_TELIT[QMICLI_TELIT.index("LTE:") : QMICLI_TELIT.index("5G:")], "")
    assert parse_qmicli(standalone) == telit  # 5G SA has no section of LTE
    decimals = QMICLI_TELIT.replace("'-74 dBm'", "'-74.0 dBm'").replace("'-11 dB'", "'-11.0 dB'")
    assert parse_qmicli(decimals) == telit
    indented = "".join(f"\t{line}\n" for line in QMICLI_TELIT.splitlines())
    assert parse_qmicli(indented) == telit


def test_a_section_of_an_older_technology_is_no_part_of_the_one_before() -> None:
    """GSM and WCDMA have an RSSI, too."""
    mixed = QMICLI_NSA.partition("5G:")[0] + "WCDMA:\n\tRSSI: '-90 dBm'\n\tECIO: '-4.0 dBm'\n"
    for text in (mixed, "".join(f"\t{line}\n" for line in mixed.splitlines())):
        found = parse_qmicli(text)
        assert found is not None and (found.technology, found.rssi_dbm) == ("lte", -47)
    assert parse_qmicli("GSM:\n\tRSSI: '-60 dBm'\n") is None


@given(st.sampled_from([QMICLI_NSA, QMICLI_TELIT]), st.integers(-99999, 99999), st.integers(0, 6))
def test_numbers_are_bounded(text: str, number: int, place: int) -> None:
    """Values that are not known, such as -32768 dBm and -3276.8 dB, and others that no radio has, are left out."""
    shown = [line for line in text.splitlines() if "'" in line][place]
    label = shown.split("'")[0]
    unit = shown.split("'")[1].split()[-1]
    found = parse_qmicli(text.replace(shown, f"{label}'{number / 10 if 'SNR' in label else number} {unit}'"))
    assert found is not None
    for value, name in ((found.rsrp_dbm, "rsrp"), (found.rsrq_db, "rsrq"), (found.sinr_db, "snr")):
        low, high = RANGES[name]
        assert value is None or low <= value <= high


@given(st.text(max_size=300))
def test_anything_else_is_none(text: str) -> None:
    assert parse_mmcli(text) is None and parse_qmicli(text) is None


def program(folder: Path, name: str, output: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\ncat <<'END'\n{output}END\n")
    (folder / name).chmod(0o755)


def test_this_machines_modem_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools, devices = tmp_path / "bin", tmp_path / "dev"
    tools.mkdir()
    devices.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    assert read_cellular(devices=devices) is None
    program(tools, "qmicli", QMICLI_NSA)
    assert read_cellular(devices=devices) is None  # no device
    (devices / "wwan0qmi0").touch()
    found = read_cellular(devices=devices)
    assert found is not None and found.source == "qmicli"
    program(tools, "mmcli", MMCLI_LTE)
    assert read_cellular(devices=devices) == LTE


def test_the_radio_of_this_machine_is_its_wifi_or_its_modem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "read_wifi", lambda: None)
    monkeypatch.setattr(reading, "read_cellular", lambda: None)
    assert reading.read_radio() == RadioReading(None, None)
    for text, expected in ((QMICLI_TELIT, RadioReading(16.5, -74)), (MMCLI_RSSI_ALONE, RadioReading(None, -102))):
        state = parse_qmicli(text) or parse_mmcli(text)
        monkeypatch.setattr(reading, "read_cellular", lambda state=state: state)
        assert reading.read_radio() == expected
    wifi = WifiState(interface="wlan0", station=WifiStation(address="", rssi_dbm=-50.0), noise_dbm=-90.0)
    monkeypatch.setattr(reading, "read_wifi", lambda: wifi)
    assert reading.read_radio() == RadioReading(40.0, -50.0)
