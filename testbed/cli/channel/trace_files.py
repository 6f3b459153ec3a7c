"""Files that `testbed channel` writes: overwritten with --force only, and summarized if they are link traces."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.channel.trace import Trace
from testbed.cli.options import OUTPUT
from testbed.cli.output import print_json
from testbed.errors import BadInput

Force = Annotated[bool, typer.Option("--force", help="Overwrite.", rich_help_panel=OUTPUT)]


def refuse_to_overwrite(files: Sequence[Path], force: bool) -> None:
    """Raises:
    BadInput: one of the files exists, and `force` is not set.
    """
    there = [path for path in files if os.path.lexists(path)]
    if there and not force:
        raise BadInput(f"{there[0]} is there already; --force overwrites it")


def summary_of(trace: Trace) -> dict[str, Any]:
    """Summary of a trace in a JSON document."""
    means = {f"mean_{name}": value for name, value in trace.means().items()}
    return {"rows": len(trace), "duration_s": trace.duration_s, **means}


def report(document: Mapping[str, Any], as_json: bool) -> None:
    """Print a document of one trace or several."""
    if as_json:
        print_json(document)
        return
    for one in document.get("traces", [document]):
        name = one.get("file") or ", ".join(one["files"])
        rates = f"uplink {one['mean_uplink_mbps']:.1f}, downlink {one['mean_downlink_mbps']:.1f} Mbit/s"
        print(f"{name}: {one['rows']} samples, {one['duration_s']:g} s, {rates}, RTT {one['mean_rtt_ms']:.1f} ms")
