"""Figures of a field run: latency, gain over the baseline and the head's permissiveness against distance, measured and
run again in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from testbed.experiments.plots.style import Figure, Look, canvas, legend, look_of
from testbed.experiments.report.data import Row, Shown

WAYS = {"field": "measured", "replay": "replayed link", "virtual": "modelled link"}
COLUMNS = {
    "latency_s": ("mean latency [s]", "Mean latency of a request against distance, with 95 % intervals"),
    "gain": ("times as fast", "Latency of the first method over that of each other one, against distance"),
    "permissiveness": ("share of judged mismatches kept", "What the head let stay of the mismatches that it judged"),
}  # fmt: skip


def figures(shown: Shown) -> list[Figure]:
    """What a directory of `field run` allows."""
    if shown.document.get("kind") != "field":
        return []
    found = []
    looks = look_of([row["setting"] for row in shown.rows])
    for name, (label, caption) in COLUMNS.items():
        rows = [row for row in shown.rows if None not in (row[name], row[f"{name}_low"], row[f"{name}_high"])]
        if rows:
            how = "emulated" if shown.document.get("emulated") else "in the field"
            found.append(Figure(name, f"{caption} ({how}, and in virtual time).", _drawn(rows, name, label, looks)))
    return found


def _drawn(rows: Sequence[Row], name: str, label: str, looks: Mapping[str, Look]) -> Callable[[], Any]:
    return partial(_against_distance, rows, name, label, looks)


def _against_distance(rows: Sequence[Row], name: str, label: str, looks: Mapping[str, Look]) -> Any:
    """A panel for every way of running, a line for every method."""
    ways = [way for way in WAYS if any(row["way"] == way for row in rows)]
    figure, axes = canvas(len(ways), 1, width=2.9, height=2.7, sharey=True)
    for one, way in zip(axes.flat, ways, strict=True):
        for setting, look in looks.items():
            mine = sorted(
                (row for row in rows if row["way"] == way and row["setting"] == setting),
                key=lambda row: float(row["distance_m"]),
            )
            if mine:
                places = [row["distance_m"] for row in mine]
                values = [row[name] for row in mine]
                below = [max(0.0, row[name] - row[f"{name}_low"]) for row in mine]
                above = [max(0.0, row[f"{name}_high"] - row[name]) for row in mine]
                one.errorbar(
                    places, values, yerr=[below, above], color=look.colour, marker=look.marker, linestyle=look.dash,
                    capsize=2, label=setting,
                )  # fmt: skip
        one.set_title(WAYS[way], loc="left", fontsize=9)
        one.set_xlabel("distance [m]")
        one.set_xscale("log")
        distances = sorted({row["distance_m"] for row in rows})
        one.set_xticks(distances, [f"{metres:g}" for metres in distances])
        one.minorticks_off()
    axes[0, 0].set_ylabel(label)
    if name != "gain":
        axes[0, 0].set_ylim(bottom=0)
    legend(figure, axes)
    return figure
