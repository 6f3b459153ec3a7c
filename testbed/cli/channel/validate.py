"""`testbed channel validate`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress
from rich.table import Table

from testbed.cli.options import numbers
from testbed.cli.output import console, note, print_json
from testbed.errors import TestbedError


def validate(
    via: Annotated[str, typer.Option(help="proxy or tc.")] = "proxy",
    rates: Annotated[str, typer.Option(help="Mbit/s, separated by commas.")] = "5,20,50,100,200",
    rtts: Annotated[str, typer.Option(help="Milliseconds, separated by commas.")] = "0,10,50,100",
    losses: Annotated[str, typer.Option(help="Packet error rates, separated by commas.")] = "0",
    seconds: Annotated[int, typer.Option(help="Length of each iperf3 transfer.")] = 3,
    workload: Annotated[int, typer.Option(help="Prompts to decode over proxy, tc and in virtual time; 0: none.")] = 0,
    channel: Annotated[
        str, typer.Option(help="The link of the workload.")
    ] = "uplink_mbps=20,downlink_mbps=20,rtt_ms=50",
    out: Annotated[Path | None, typer.Option(help="Keep the workload's run directories here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Show that emulated links do what they are asked, and that proxy, tc and virtual time agree.

    Exit code 1 where a point disagrees.

    Examples:

        testbed channel validate

        testbed channel validate --via tc --rates 20,100 --rtts 0

        testbed channel validate --rates 20 --rtts 50 --workload 10
    """
    from testbed.experiments.links.agree import agree
    from testbed.experiments.links.validate import ValidateConfig
    from testbed.experiments.links.validate import validate as run

    lists = {"rates_mbps": ("--rates", rates), "rtts_ms": ("--rtts", rtts), "losses": ("--losses", losses)}
    points = {name: tuple(numbers(text, float, option)) for name, (option, text) in lists.items() if text.strip()}
    config = ValidateConfig(via=via, seconds=seconds, **{name: points.get(name, ()) for name in lists})
    with Progress(console=console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("measuring", total=None)
        rows = run(config, lambda done, total: bar.update(task, completed=done, total=total))
    ways = agree(channel, workload, out, note) if workload else []
    if as_json:
        print_json({"rows": rows, "workload": ways})
    else:
        _print_links(rows)
        if ways:
            _print_ways(ways)
    if not all(row["agrees"] for row in rows):
        raise TestbedError(f"{sum(not row['agrees'] for row in rows)} of {len(rows)} links differ from what was asked")


def _print_links(rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table(title="asked and measured", title_justify="left")
    for name in ("via", "Mbit/s", "RTT ms", "PER", "up", "error", "down", "error", "echo ms", "error ms", "agrees"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["via"], f"{row['rate_mbps']:g}", f"{row['rtt_ms']:g}", f"{row['per']:g}", f"{row['uplink_mbps']:.2f}",
            f"{row['uplink_error']:+.1%}", f"{row['downlink_mbps']:.2f}", f"{row['downlink_error']:+.1%}",
            f"{row['echo_ms']:.2f}", f"{row['rtt_error_ms']:+.2f}", "yes" if row["agrees"] else "NO",
        )  # fmt: skip
    console().print(table)


def _print_ways(rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table(title="one workload, several links", title_justify="left")
    for name in ("method", "link", "latency s", "against proxy", "note"):
        table.add_column(name, justify="left" if name in ("method", "link", "note") else "right")
    for row in rows:
        latency = "–" if row["latency_s"] is None else f"{row['latency_s']:.4f}"
        difference = "–" if row["difference"] is None else f"{row['difference']:+.1%}"
        table.add_row(row["method"], row["link"], latency, difference, row["note"])
    console().print(table)
