"""Summaries of link traces that `testbed channel` writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.channel.trace import Trace
from testbed.cli.output import print_json


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
