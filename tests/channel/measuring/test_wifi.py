"""Wi-Fi: output of `iw` and the kernel across versions and standards; machines without Wi-Fi or `iw`."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.channel.measuring import wifi
from testbed.channel.measuring.wifi import (
    Bitrate,
    WifiState,
    WifiStation,
    Wireless,
    frame_error_rate,
    parse_bitrate,
    parse_link,
    parse_proc,
    parse_station_dump,
    parse_survey_noise,
    read_wifi,
    wifi_interface,
    wifi_interfaces,
)

AP = "02:1a:7d:00:5e:10"

# iw 5.19, an 802.11ac client
LINK_AC = f"""Connected to {AP} (on wlan0)
\tSSID: lab: upstairs
\tfreq: 5180
\tRX: 99123456 bytes (81234 packets)
\tTX: 4123456 bytes (23456 packets)
\tsignal: -52 dBm
\trx bitrate: 866.7 MBit/s VHT-MCS 9 80MHz short GI VHT-NSS 2
\ttx bitrate: 780.0 MBit/s VHT-MCS 8 80MHz short GI VHT-NSS 2

\tbss flags:\tshort-slot-time
\tdtim period:\t2
\tbeacon int:\t100
"""

# iw 6.7, an 802.11ax client; the frequency has a fraction, the width comes before the MCS
LINK_AX = f"""Connected to {AP.upper()} (on wlp2s0)
\tSSID: lab
\tfreq: 5955.0
\tRX: 1000 bytes (10 packets)
\tTX: 2000 bytes (20 packets)
\tsignal: -61 dBm
\trx bitrate: 960.7 MBit/s 80MHz HE-MCS 9 HE-NSS 2 HE-GI 0 HE-DCM 0
\ttx bitrate: 1200.9 MBit/s 80MHz HE-MCS 11 HE-NSS 2 HE-GI 0 HE-DCM 0
\tbss flags: short-slot-time
"""

# iw 4.14, an 802.11n client; nothing received yet
LINK_N = f"""Connected to {AP} (on wlan0)
\tSSID: lab
\tfreq: 2437
\tRX: 0 bytes (0 packets)
\tTX: 158 bytes (2 packets)
\tsignal: -70 dBm
\ttx bitrate: 130.0 MBit/s MCS 15
"""

DUMP_AC = f"""Station {AP} (on wlan0)
\tinactive time:\t24 ms
\trx bytes:\t99123456
\trx packets:\t81234
\ttx bytes:\t4123456
\ttx packets:\t23456
\ttx retries:\t1200
\ttx failed:\t3
\tbeacon loss:\t0
\trx drop misc:\t11
\tsignal:  \t-52 [-55, -54] dBm
\tsignal avg:\t-51 [-54, -53] dBm
\ttx bitrate:\t780.0 MBit/s VHT-MCS 8 80MHz short GI VHT-NSS 2
\ttx duration:\t0 us
\trx bitrate:\t866.7 MBit/s VHT-MCS 9 80MHz short GI VHT-NSS 2
\tauthorized:\tyes
\tconnected time:\t1432 seconds
"""

# iw 6.9, an 802.11be client with two links; the first figures are of the whole
DUMP_BE = f"""Station {AP} (on wlan0)
\tauthorized: yes
\trx packets: 98
\ttx packets: 9
\ttx retries: 3
\ttx failed: 0
\tsignal: -33 dBm
\ttx bitrate: 2882.4 MBit/s 160MHz EHT-MCS 13 EHT-NSS 2 EHT-GI 0
\tMSDU:
\t\tTID\trx\ttx\ttx retries\ttx failed
\t\t0\t88\t3\t0\t0
\tLink 0:
\t\taddress: 02:1a:7d:00:5e:11
\t\ttx packets: 5
\t\ttx retries: 2
\t\ttx failed: 0
\t\tsignal: -40 dBm
"""

# two clients of an AP; the second one's driver tells little
DUMP_AP = DUMP_AC + "Station 02:1a:7d:00:5e:22 (on wlan0)\n\tinactive time:\t10 ms\n\ttx bitrate:\t54.0 MBit/s\n"

SURVEY = """Survey data from wlan0
\tfrequency:\t\t\t5160 MHz
\tnoise:\t\t\t\t-90 dBm
Survey data from wlan0
\tfrequency:\t\t\t5180 MHz [in use]
\tnoise:\t\t\t\t-95 dBm
\tchannel active time:\t\t12345 ms
Survey data from wlan0
\tfrequency:\t\t\t5200 MHz
\tnoise:\t\t\t\t-91 dBm
"""

PROC_HEAD = """Inter-| sta-|   Quality        |   Discarded packets               | Missed | WE
 face | tus | link level noise |  nwid  crypt   frag  retry   misc | beacon | 22
"""
PROC = PROC_HEAD + " wlan0: 0000   58.  -52.  -256        0      0      0      0    112        0\n"


def test_links_of_several_versions() -> None:
    assert parse_link(LINK_AC) == WifiStation(
        address=AP,
        rssi_dbm=-52.0,
        tx=Bitrate(780.0, "VHT", 8, 2, 80),
        rx=Bitrate(866.7, "VHT", 9, 2, 80),
    )
    assert parse_link(LINK_AX) == WifiStation(
        address=AP, rssi_dbm=-61.0, tx=Bitrate(1200.9, "HE", 11, 2, 80), rx=Bitrate(960.7, "HE", 9, 2, 80)
    )
    assert parse_link(LINK_N) == WifiStation(address=AP, rssi_dbm=-70.0, tx=Bitrate(130.0, "HT", 15))
    assert parse_link("Not connected.\n") is None
    assert parse_link("command failed: No such device (-19)\n") is None
    assert parse_link(f"Connected to {AP} (on wlan0)\n") == WifiStation(address=AP)


def test_station_dumps_of_several_versions() -> None:
    (station,) = parse_station_dump(DUMP_AC)
    assert station == WifiStation(
        address=AP,
        rssi_dbm=-52.0,
        tx=Bitrate(780.0, "VHT", 8, 2, 80),
        rx=Bitrate(866.7, "VHT", 9, 2, 80),
        tx_packets=23456,
        tx_retries=1200,
        tx_failed=3,
    )
    (station,) = parse_station_dump(DUMP_BE)
    assert station.tx == Bitrate(2882.4, "EHT", 13, 2, 160)
    assert (station.rssi_dbm, station.counters) == (-33.0, (9, 3, 0))
    first, second = parse_station_dump(DUMP_AP)
    assert first.address == AP
    assert second == WifiStation(address="02:1a:7d:00:5e:22", tx=Bitrate(54.0))
    assert parse_station_dump("") == []


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("6.0 MBit/s", Bitrate(6.0)),
        ("72.2 MBit/s MCS 7 short GI", Bitrate(72.2, "HT", 7)),
        ("300.0 MBit/s MCS 15 40MHz short GI", Bitrate(300.0, "HT", 15, None, 40)),
        ("6.5 MBit/s VHT-MCS 0 VHT-NSS 1", Bitrate(6.5, "VHT", 0, 1)),
        ("1 MBit/s", Bitrate(1.0)),
        ("(unknown)", None),
        ("", None),
        ("-1 MBit/s", None),
    ],
)
def test_bitrates(text: str, rate: Bitrate | None) -> None:
    assert parse_bitrate(text) == rate


def test_noise_is_that_of_the_channel_in_use() -> None:
    assert parse_survey_noise(SURVEY) == -95.0
    assert parse_survey_noise(SURVEY.replace(" [in use]", "")) is None
    assert parse_survey_noise("Survey data from wlan0\n\tfrequency:\t5180 MHz [in use]\n") is None


def test_the_kernels_table() -> None:
    assert parse_proc(PROC) == [Wireless("wlan0", -52.0, None)]
    # an old driver counts levels as bytes: 204 is -52, 161 is -95; one that knows nothing says 0 or -256
    old = " eth1: 0000  70  204  161  0 0 0 0 0 0\n wlan1: 0000    0     0     0  0 0 0 0 0 0\n"
    assert parse_proc(PROC_HEAD + old) == [Wireless("eth1", -52.0, -95.0), Wireless("wlan1", None, None)]
    assert parse_proc(PROC_HEAD) == []


def test_frame_errors_by_hand() -> None:
    def station(packets: int | None, retries: int, failed: int, address: str = AP) -> WifiStation:
        return WifiStation(address=address, tx_packets=packets, tx_retries=retries, tx_failed=failed)

    # 8 packets: six at once, one on the second try, one given up after four: 6 + 2 + 4 = 12 in the air, 1 + 4 lost
    assert frame_error_rate(station(8, 4, 1)) == pytest.approx(5 / 12)
    assert frame_error_rate(station(108, 14, 1), station(100, 10, 0)) == pytest.approx(5 / 12)
    assert frame_error_rate(station(100, 0, 0)) == 0.0
    assert frame_error_rate(station(0, 0, 0)) is None
    assert frame_error_rate(station(100, 10, 0), station(100, 10, 0)) is None
    assert frame_error_rate(station(5, 0, 0), station(100, 10, 0)) is None
    assert frame_error_rate(station(None, 0, 0)) is None
    assert frame_error_rate(station(200, 10, 0), station(100, 10, 0, "02:00:00:00:00:01")) is None


def test_frame_errors_are_the_loss_of_a_link_that_repeats() -> None:
    """Packets over a link that loses a third of transmissions, with up to seven attempts each."""
    rng, packets, retries, failed = random.Random(5), 20_000, 0, 0
    for _ in range(packets):
        tries = next((t for t in range(1, 8) if rng.random() > 1 / 3), 8)
        retries += min(tries, 7) - 1
        failed += tries == 8
    station = WifiStation(address=AP, tx_packets=packets, tx_retries=retries, tx_failed=failed)
    assert frame_error_rate(station) == pytest.approx(1 / 3, abs=0.01)


@given(st.text(), st.sampled_from([LINK_AC, LINK_AX, DUMP_AC, DUMP_BE, SURVEY, PROC]), st.integers(0, 900))
def test_any_text(text: str, sample: str, cut: int) -> None:
    for given_text in (text, sample[:cut] + text + sample[cut:], "\t" + text, "\tsignal: " + text, " x: " + text):
        parse_link(given_text)
        parse_bitrate(given_text)
        parse_survey_noise(given_text)
        for found in parse_station_dump(given_text):
            frame_error_rate(found)
        for row in parse_proc(given_text):
            assert row.rssi_dbm is None or -256 < row.rssi_dbm < 0


# ---------------------------------------------------------------- a machine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory in PATH, and a directory of interfaces."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "net").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def add_interface(machine: Path, name: str, wireless: bool = True, state: str = "up") -> None:
    folder = machine / "net" / name
    folder.mkdir()
    (folder / "operstate").write_text(state + "\n")
    if wireless:
        (folder / "phy80211").mkdir()


def add_iw(machine: Path, *, link: str = "", dump: str = "", survey: str = "", before: str = "") -> None:
    for name, text in (("link", link), ("station", dump), ("survey", survey)):
        (machine / name).write_text(text)
    lines = 'while IFS= read -r line || [ -n "$line" ]; do echo "$line"; done'  # no cat in this PATH
    script = f'#!/bin/sh\n{before}\n{lines} <{machine}/"$3"\n'
    (machine / "bin" / "iw").write_text(script)
    (machine / "bin" / "iw").chmod(0o755)


def test_interfaces(machine: Path) -> None:
    assert wifi_interface(machine / "net") is None
    assert wifi_interface(machine / "nowhere") is None
    add_interface(machine, "eth0", wireless=False)
    add_interface(machine, "wlan0", state="down")
    assert wifi_interface(machine / "net") == "wlan0"
    add_interface(machine, "wlan1")
    assert wifi_interfaces(machine / "net") == ["wlan1", "wlan0"]


def test_a_machine_with_iw(machine: Path) -> None:
    add_iw(machine, link=LINK_AC, dump=DUMP_AP, survey=SURVEY)
    state = read_wifi("wlan0", proc=machine / "none")
    assert state == WifiState(interface="wlan0", station=parse_station_dump(DUMP_AC)[0], noise_dbm=-95.0)
    assert state.snr_db == 43.0


def test_iw_without_a_survey_takes_the_noise_of_the_kernels_table(machine: Path) -> None:
    add_iw(machine, link=LINK_AC)
    (machine / "proc").write_text(PROC.replace("-256", "-92."))
    state = read_wifi("wlan0", proc=machine / "proc")
    assert state == WifiState(
        interface="wlan0", station=parse_link(LINK_AC) or WifiStation(address=""), noise_dbm=-92.0
    )
    assert state.snr_db == 40.0


def test_a_machine_without_iw_tells_the_signal(machine: Path) -> None:
    (machine / "proc").write_text(PROC)
    state = read_wifi("wlan0", proc=machine / "proc")
    assert state == WifiState(interface="wlan0", station=WifiStation(address="", rssi_dbm=-52.0))
    assert state.snr_db is None


def test_no_interface_no_link_no_tools_are_no_error(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wifi, "wifi_interface", lambda: None)
    assert read_wifi() is None
    assert read_wifi("wlan0", proc=machine / "none") is None
    add_iw(machine, link="Not connected.\n")
    (machine / "proc").write_text(PROC)
    assert read_wifi("wlan0", proc=machine / "proc") is None


def test_an_iw_that_hangs_is_left(machine: Path) -> None:
    add_iw(machine, before=f"echo $$ >{machine}/pid; exec /bin/sleep 60")
    start_s = time.monotonic()
    assert read_wifi("wlan0", timeout_s=0.2, proc=machine / "none") is None
    assert time.monotonic() - start_s < 10
    with pytest.raises(ProcessLookupError):
        os.kill(int((machine / "pid").read_text()), 0)
