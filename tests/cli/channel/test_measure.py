"""`testbed channel measure` and `testbed channel record` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from testbed.channel.csi import Csi
from testbed.cli.channel.measure import measure
from testbed.cli.channel.record import record
from testbed.config import ServeConfig
from testbed.errors import BadInput, LinkTimeout
from testbed.experiments.links import measure as module
from testbed.experiments.runs import processes

app = typer.Typer()
app.command()(measure)
app.command()(record)

DOCUMENT: dict[str, Any] = {
    "csi": {"rtt_ms": 31.5, "uplink_mbps": 20.0, "source": "probe"},
    "rtt_ms": {"value": 31.5, "low": 31.0, "high": 32.0, "n": 20, "jitter": 0.25, "least": 30.75},
    "uplink_mbps": {
        "value": 20.0, "low": None, "high": None, "n": 1, "loss": 0.0125, "bytes": 1, "retransmits": 8, "seconds": 1.0,
    },
    "downlink_mbps": None,
    "cellular": {
        "technology": "5g", "rsrp_dbm": -88.0, "rsrq_db": -11.0, "sinr_db": 18.5, "rssi_dbm": None, "source": "mmcli",
    },
    "wifi": {
        "interface": "wlan0", "noise_dbm": None, "snr_db": None, "frame_error_rate": 0.05,
        "station": {
            "rssi_dbm": -52.0, "rx": None,
            "tx": {"mbps": 780.0, "standard": "VHT", "mcs": 8, "streams": 2, "width_mhz": 80},
        },
    },
    "notes": ["something to know"],
}  # fmt: skip


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands in for the measurement; holds the arguments of the last one."""
    seen: dict[str, Any] = {}

    def stand_in(bs: str, server: str | None, *rest: Any) -> dict[str, Any]:
        seen.update(bs=bs, server=server, rest=rest[:4])
        rest[4]("getting on")
        return DOCUMENT

    monkeypatch.setattr(module, "measure", stand_in)
    return seen


def test_a_table_for_people(measured: dict[str, Any]) -> None:
    result = CliRunner().invoke(app, ["measure", "--bs", "tcp://h:1", "--iperf3", "h:9", "--seconds", "3"])
    assert result.exit_code == 0
    assert measured == {"bs": "tcp://h:1", "server": "h:9", "rest": (3, 20, None, 10.0)}
    lines = result.stdout.splitlines()
    (rtt,) = (line for line in lines if "RTT" in line)
    assert "31.500 ms" in rtt and "31.000 … 32.000" in rtt and "least 30.750 ms, jitter 0.250 ms" in rtt
    (uplink,) = (line for line in lines if "uplink" in line)
    assert "20.000 Mbit/s" in uplink and " – " in uplink and "8 sent again, loss 0.0125" in uplink
    assert "downlink" not in result.stdout
    assert lines[-2] == "Wi-Fi wlan0, -52 dBm, frame errors 0.05, tx 780 Mbit/s (VHT MCS 8)"
    assert lines[-1] == "5G, RSRP -88 dBm, RSRQ -11 dB, SINR 18.5 dB"
    assert result.stderr == "getting on\nsomething to know\n"


def test_a_document_for_programs(measured: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "link.json"
    result = CliRunner().invoke(app, ["measure", "--count", "7", "--interface", "wlan0", "--out", str(out), "--json"])
    assert result.exit_code == 0
    assert measured["rest"] == (5, 7, "wlan0", 10.0)
    assert json.loads(result.stdout) == json.loads(out.read_text()) == DOCUMENT
    assert result.stderr == f"getting on\nwrote {out}\n"
    refused = CliRunner().invoke(app, ["measure", "--out", str(out)])
    assert isinstance(refused.exception, BadInput) and "--force overwrites it" in str(refused.exception)
    assert CliRunner().invoke(app, ["measure", "--out", str(out), "--force"]).exit_code == 0


def test_a_file_that_cannot_be_written_is_found_before_the_measurement(
    measured: dict[str, Any], tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, ["measure", "--out", str(tmp_path / "no" / "link.json")])
    assert isinstance(result.exception, BadInput)
    assert "is no directory" in str(result.exception)
    assert not measured
    result = CliRunner().invoke(app, ["measure", "--out", str(tmp_path)])
    assert isinstance(result.exception, BadInput)
    assert f"cannot write {tmp_path}" in str(result.exception)


def test_timeouts() -> None:
    result = CliRunner().invoke(app, ["measure", "--timeout", "0"])
    assert isinstance(result.exception, BadInput)
    assert "positive" in str(result.exception)
    result = CliRunner().invoke(app, ["measure", "--bs", "tcp://127.0.0.1:1", "--timeout", "0.2"])
    assert isinstance(result.exception, LinkTimeout)


def test_a_real_base_station(tmp_path: Path) -> None:
    out = tmp_path / "link.json"
    with processes.base_station(ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*")) as ready:
        result = CliRunner().invoke(app, ["measure", "--bs", ready["bind"], "--json", "--out", str(out)])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert set(document) == {"csi", "rtt_ms", "uplink_mbps", "downlink_mbps", "clock", "wifi", "cellular", "notes"}
    assert 0 < document["rtt_ms"]["least"] <= document["rtt_ms"]["value"] < 1000
    assert document["rtt_ms"]["n"] == 20
    assumed = {"uplink_mbps": 100.0, "downlink_mbps": 100.0}
    assert Csi(**{**assumed, **json.loads(out.read_text())["csi"]}).source == "probe"


def test_record_on_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from testbed.experiments.results.directory import write_parquet

    states = [Csi(5.0, 6.0, 7.0, time_s=t, source="passive") for t in (1.0, 1.5, 4.0)]
    rows = [{f"csi_{name}": getattr(s, name) for name in Csi.__struct_fields__} for s in states]
    write_parquet(tmp_path / "rounds.parquet", rows)
    out = tmp_path / "walk.csv"
    result = CliRunner().invoke(app, ["record", str(tmp_path), "--out", str(out), "--json"])
    assert result.exit_code == 0, result.exception
    document = json.loads(result.stdout)
    assert document["trace"] == str(out)
    assert (document["samples"], document["rounds"], document["gaps"]) == (4, 3, [[1.0, 3.0]])
    assert document["means"]["downlink_mbps"] == 6.0
    assert out.read_text().startswith(f"# testbed channel record {tmp_path.name}\n# recorded from 3 rounds")
