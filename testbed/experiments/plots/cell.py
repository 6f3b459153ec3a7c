"""UEs that a cell sustains, and the map of what binds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.experiments.plots.style import COLOURS, canvas, legend, save_figure

Row = Mapping[str, Any]
BINDING = {"radio": COLOURS[0], "drafting": COLOURS[2], "verification": COLOURS[3]}
MARKERS = {"radio": "o", "drafting": "s", "verification": "^"}


def write_plot(rows: Sequence[Row], varied: Sequence[str], path: Path) -> Path:
    """Draw UEs over the first varied field, a line per combination of the others; every point is coloured by what
    binds. Filled points of given numbers of UEs were sustained with every seed.
    """
    return save_figure(lambda: _drawn(rows, varied), path)


def _drawn(rows: Sequence[Row], varied: Sequence[str]) -> Any:
    first, *others = varied or [""]
    labels = [", ".join(f"{row[name]}" for name in others) for row in rows]
    names = list(dict.fromkeys(labels))
    figure, axes = canvas(len(names), 1, width=3.2, sharey=True)
    places = list(dict.fromkeys(row.get(first, "") for row in rows))
    for one, name in zip(axes.flat, names, strict=True):
        mine = [row for row, label in zip(rows, labels, strict=True) if label == name]
        if "ues_by_seed" in mine[0]:
            one.plot([places.index(row.get(first, "")) for row in mine], [row["ues"] for row in mine], color="0.7")
        for row in mine:
            colour = BINDING[row["bound_by"]]
            at, filled = places.index(row.get(first, "")), row.get("kept", 1.0) == 1.0
            if row.get("ues_low") is not None:
                one.plot([at, at], [row["ues_low"], row["ues_high"]], color=colour, linewidth=1)
            one.plot(
                at, row["ues"], MARKERS[row["bound_by"]], color=colour, markerfacecolor=colour if filled else "none"
            )
        one.set_xticks(
            range(len(places)), [f"{place:g}" if isinstance(place, float) else f"{place}" for place in places]
        )
        one.set_xlabel(first)
        one.set_title(name)
        one.set_ylim(bottom=0)
    for part, colour in BINDING.items():
        axes[0, 0].plot([], [], MARKERS[part], color=colour, label=f"bound by {part}")
    axes[0, 0].set_ylabel("UEs")
    legend(figure, axes)
    return figure
