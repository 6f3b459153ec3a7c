"""Cellular modems: output of `mmcli` and `qmicli`; machines without a modem or the tools."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.channel.measuring.cellular import CellularState, parse_mmcli, parse_qmicli, read_cellular

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
    assert parse_mmcli(MMCLI_LTE.replace("-100.00", "--")) is None  # before mmcli --signal-setup
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
    (devices / "cdc-wdm0").touch()
    found = read_cellular(devices=devices)
    assert found is not None and found.source == "qmicli"
    program(tools, "mmcli", MMCLI_LTE)
    assert read_cellular(devices=devices) == LTE
