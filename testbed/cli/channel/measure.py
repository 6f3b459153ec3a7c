"""`testbed channel measure`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from testbed.cli.options import AsJson, Force, refuse_to_overwrite
from testbed.cli.output import note, print_json
from testbed.cli.tables import print_table
from testbed.config import RunConfig
from testbed.errors import BadInput

FIGURES = (("rtt_ms", "RTT", "ms"), ("uplink_mbps", "uplink", "Mbit/s"), ("downlink_mbps", "downlink", "Mbit/s"))


def measure(
    bs: Annotated[str, typer.Option(help="Address of a running base station.")] = RunConfig().bs,
    keys: Annotated[Path | None, typer.Option(metavar="DIR", help="Keys that `testbed keys new --ue` made.")] = None,
    iperf3: Annotated[str | None, typer.Option(metavar="HOST[:PORT]", help="iperf3 server at the BS.")] = None,
    seconds: Annotated[int, typer.Option(help="Length of a transfer; there is one in each direction.")] = 5,
    count: Annotated[int, typer.Option(help="RTT handshakes.")] = 20,
    interface: Annotated[str | None, typer.Option(help="Wi-Fi interface; default: the one there is.")] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds to wait for a handshake.")] = 10.0,
    out: Annotated[Path | None, typer.Option(help="Write the document here; ue run --csi reads it.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Measure the link to a base station: RTT, both rates, Wi-Fi; figures with 95 % intervals.

    Examples:

        testbed channel measure --bs tcp://192.0.2.7:5555 --keys orin-1

        testbed channel measure --bs tcp://192.0.2.7:5555 --iperf3 192.0.2.7 --seconds 10 --out link.json
    """
    from testbed.channel.keys import load_client
    from testbed.experiments.links.measure import measure as run

    if not timeout_s > 0:
        raise BadInput(f"--timeout must be positive, not {timeout_s:g}")
    if out and not out.parent.is_dir():
        raise BadInput(f"cannot write {out}: {out.parent} is no directory")
    refuse_to_overwrite([out] if out else [], force)
    document = run(bs, iperf3, seconds, count, interface, timeout_s, note, load_client(keys) if keys else None)
    if out:
        _write(out, document)
    if as_json:
        print_json(document)
    else:
        _show(document)


def _write(out: Path, document: Mapping[str, Any]) -> None:
    from testbed.experiments.results.directory import write_text

    try:
        write_text(out, json.dumps(document, indent=2, allow_nan=False) + "\n")
    except OSError as exc:
        raise BadInput(f"cannot write {out}: {exc.strerror or exc}") from exc
    note(f"wrote {out}")


def _show(document: Mapping[str, Any]) -> None:
    table = Table()
    for header in ("", "value", "95 % interval", "n", ""):
        table.add_column(header, justify="left" if not header else "right", no_wrap=True)
    for key, name, unit in FIGURES:
        figure = document[key]
        if figure is not None:
            table.add_row(name, f"{figure['value']:.3f} {unit}", _interval(figure), str(figure["n"]), _detail(figure))
    print_table(table)
    if document["wifi"]:
        print(_wifi(document["wifi"]))
    if document["cellular"]:
        print(_cellular(document["cellular"]))
    for line in document["notes"]:
        note(line)


def _interval(figure: Mapping[str, Any]) -> str:
    return "–" if figure["low"] is None else f"{figure['low']:.3f} … {figure['high']:.3f}"


def _detail(figure: Mapping[str, Any]) -> str:
    """Details of an RTT or a rate."""
    if "least" in figure:
        jitter = "" if figure["jitter"] is None else f", jitter {figure['jitter']:.3f} ms"
        return f"least {figure['least']:.3f} ms{jitter}"
    return "" if figure["loss"] is None else f"{figure['retransmits']} sent again, loss {figure['loss']:.3g}"


def _cellular(state: Mapping[str, Any]) -> str:
    """One line on a cellular link."""
    figures = {
        "RSRP {:g} dBm": state["rsrp_dbm"],
        "RSRQ {:g} dB": state["rsrq_db"],
        "SINR {:g} dB": state["sinr_db"],
        "RSSI {:g} dBm": state["rssi_dbm"],
    }
    return ", ".join(
        [state["technology"].upper(), *(form.format(value) for form, value in figures.items() if value is not None)]
    )


def _wifi(wifi: Mapping[str, Any]) -> str:
    """One line on a Wi-Fi link."""
    station = wifi["station"]
    parts = [f"Wi-Fi {wifi['interface']}"]
    figures = {
        "{:g} dBm": station["rssi_dbm"],
        "SNR {:g} dB": wifi["snr_db"],
        "frame errors {:.2g}": wifi["frame_error_rate"],
    }
    parts += [form.format(value) for form, value in figures.items() if value is not None]
    for way in ("tx", "rx"):
        rate = station[way]
        if rate:
            mcs = "" if rate["mcs"] is None else f" ({rate['standard']} MCS {rate['mcs']})"
            parts.append(f"{way} {rate['mbps']:g} Mbit/s{mcs}")
    return ", ".join(parts)
