"""SNR and signal level of this machine's radio: its Wi-Fi link, or its modem's."""

from __future__ import annotations

from typing import NamedTuple

from testbed.channel.measuring.cellular import read_cellular
from testbed.channel.measuring.wifi import read_wifi


class RadioReading(NamedTuple):
    """What the radio reports at one time; None: unknown."""

    snr_db: float | None = None
    rssi_dbm: float | None = None
    """Over the whole channel; of a modem that reports none, its RSRP."""


def read_radio() -> RadioReading:
    """The state of the Wi-Fi link; without one, of the modem."""
    wifi = read_wifi()
    if wifi is not None:
        return RadioReading(wifi.snr_db, wifi.station.rssi_dbm)
    modem = read_cellular()
    if modem is None:
        return RadioReading()
    return RadioReading(modem.sinr_db, modem.rsrp_dbm if modem.rssi_dbm is None else modem.rssi_dbm)
