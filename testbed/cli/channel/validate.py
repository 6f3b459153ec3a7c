"""`testbed channel validate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from testbed.cli.options import AsJson, configured
from testbed.cli.output import note, print_json, progress
from testbed.cli.tables import print_table
from testbed.errors import TestbedError
from testbed.experiments.links.config import AGREE, ValidateConfig


@configured(ValidateConfig)
def validate(
    config: ValidateConfig,
    out: Annotated[
        Path | None, typer.Option(help="Keep the workload's run directories here.", rich_help_panel=AGREE)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that emulated links have the configured rates, RTTs, losses and jitter, and that proxy, tc and virtual
    time agree.

    Exits with status 1 if a point disagrees.

    Examples:

        testbed channel validate --via tc --rates 20,100 --rtts 0

        testbed channel validate --rates 20 --rtts 50 --jitters 5,20

        testbed channel validate --rates 20 --rtts 50 --workload 10
    """
    from testbed.experiments.links.agree import agree
    from testbed.experiments.links.validate import validate as run

    with progress("measuring") as told:
        rows = run(config, told)
    ways = agree(config.channel, config.workload, out, note) if config.workload else []
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
    for name in (
        "via", "Mbit/s", "RTT ms", "PER", "up", "error", "down", "error", "echo ms", "error ms", "jitter ms",
        "measured ms", "agrees",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for row in rows:
        found = row["measured_jitter_ms"]
        table.add_row(
            row["via"], f"{row['rate_mbps']:g}", f"{row['rtt_ms']:g}", f"{row['per']:g}", f"{row['uplink_mbps']:.2f}",
            f"{row['uplink_error']:+.1%}", f"{row['downlink_mbps']:.2f}", f"{row['downlink_error']:+.1%}",
            f"{row['echo_ms']:.2f}", f"{row['rtt_error_ms']:+.2f}", f"{row['jitter_ms']:g}",
            "–" if found is None else f"{found:.2f}", "yes" if row["agrees"] else "NO",
        )  # fmt: skip
    print_table(table)


def _print_ways(rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table(title="one workload, several links", title_justify="left")
    for name in ("method", "link", "latency s", "against proxy", "note"):
        table.add_column(name, justify="left" if name in ("method", "link", "note") else "right")
    for row in rows:
        latency = "–" if row["latency_s"] is None else f"{row['latency_s']:.4f}"
        difference = "–" if row["difference"] is None else f"{row['difference']:+.1%}"
        table.add_row(row["method"], row["link"], latency, difference, row["note"])
    print_table(table)
