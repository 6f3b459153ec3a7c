"""Columns of the rows of `testbed cell run` in tables, and the cell in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.intervals import LEAST_VALUES, PERCENTILES, printable

CELL_COLUMNS = {
    "group": ("group", "{}"),
    "ues": ("UEs", "{:d}"),
    "goodput_tps": ("goodput tok/s", "{:.1f}"),
    "latency_s": ("latency s", "{:.2f}"),
    "latency_p95_s": ("p95 s", "{:.2f}"),
    "latency_p99_s": ("p99 s", "{:.2f}"),
    "throughput_tps": ("speed tok/s", "{:.1f}"),
    "class_tps": ("promised", "{:g}"),
    "judged": ("judged", "{:d}"),
    "violations": ("violated", "{:.3f}"),
    "same_share": ("same output", "{:.3f}"),
    "accuracy": ("accuracy", "{:.3f}"),
    "accuracy_lost": ("accuracy lost", "{:.3f}"),
    "window": ("K", "{:.1f}"),
    "fh_share": ("FH", "{:.2f}"),
    "drafting_share": ("drafting", "{:.2f}"),
    "radio_share": ("radio", "{:.2f}"),
    "verification_share": ("verifying", "{:.2f}"),
    "uplink_mbps": ("up Mbit/s", "{:.3f}"),
    "delay_s": ("delay s", "{:.4f}"),
    "delay_p95_s": ("delay p95 s", "{:.4f}"),
    "joules_per_token": ("J/token", "{:.3f}"),
    "handovers_per_ue": ("handovers/UE", "{:.2f}"),
    "ping_pongs_per_ue": ("ping-pongs/UE", "{:.2f}"),
    "interruption_s": ("interruption s", "{:.3f}"),
    "prefilled_again": ("prefilled again", "{:d}"),
    "moved_bytes": ("moved bytes", "{:.3g}"),
    "failures_per_ue": ("failures/UE", "{:.2f}"),
}
"""Headers and formats, what matters most first; the three shares are of the rounds' time."""

STATION_COLUMNS = {
    "cell": ("cell", "{}"),
    "goodput_tps": ("goodput tok/s", "{:.1f}"),
    "handovers": ("handovers", "{:d}"),
    "prefilled_again": ("prefilled again", "{:d}"),
    "uplink_utilisation": ("uplink", "{:.2f}"),
    "downlink_utilisation": ("downlink", "{:.2f}"),
    "busy_share": ("verifier", "{:.2f}"),
}
"""The same for the rows of several cells."""


def flat_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `cell.json` without nested values, and without percentiles that rest on too few values."""
    flat = {name: value for name, value in row.items() if name != "message_delay_s"}
    delay = row["message_delay_s"]
    flat["delay_s"] = delay["mean"]
    flat["delay_p95_s"] = delay["p95"] if (row["messages"] or 0) >= LEAST_VALUES[95] else None
    return flat | {name: printable(row, name, "responses") for name in PERCENTILES}


def cell_line(cell: Mapping[str, Any]) -> str:
    """The cell's own row as a sentence."""
    return (
        f"radio used {cell['uplink_utilisation']:.0%} up, {cell['downlink_utilisation']:.0%} down; verifier busy "
        f"{cell['busy_share']:.0%}; {cell['goodput_tps']:.1f} tokens/s; bound by {cell['bound_by']}"
    )
