"""Plots of capacity runs, from the rows of their tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed.errors import BadInput

Row = dict[str, Any]
COLOURS = {"": "tab:grey", "queue": "tab:orange", "compute": "tab:red"}


def _axes(x: str, y: str, width: float = 6.0) -> tuple[Any, Any]:
    """A figure and its axes.

    Raises:
        BadInput: no plotting library.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise BadInput("plots need matplotlib: install the extra `lab`") from exc
    figure = Figure(figsize=(width, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def capacities(rows: Sequence[Row], path: Path) -> None:
    """Bars: UEs by class, a colour for each system; a tick where the paper's figure is known (Table 2)."""
    figure, axes = _axes("class, tokens/s", "UEs sustained", 7.0)
    systems = list(dict.fromkeys(row["system"] for row in rows))
    classes = sorted({row["class_tps"] for row in rows})
    width = 0.8 / len(systems)
    for i, system in enumerate(systems):
        mine = {row["class_tps"]: row for row in rows if row["system"] == system}
        places = [classes.index(speed) + (i + 0.5) * width - 0.4 for speed in mine]
        axes.bar(places, [row["capacity"] for row in mine.values()], width, label=system)
        for place, row in zip(places, mine.values(), strict=True):
            if row.get("paper") is not None:
                axes.plot([place - width / 2, place + width / 2], [row["paper"]] * 2, color="black")
    axes.set_xticks(range(len(classes)), [f"{speed:g}" for speed in classes])
    axes.legend()
    figure.savefig(path)


def violations(rows: Sequence[Row], epsilon: float, path: Path) -> None:
    """Share of violated responses over N, a panel for each class (Fig. 7)."""
    from matplotlib.figure import Figure

    classes = sorted({row["class_tps"] for row in rows})
    figure = Figure(figsize=(4.0 * len(classes), 3.5), layout="constrained")
    panels = figure.subplots(1, len(classes), sharey=True, squeeze=False)[0]
    for axes, speed in zip(panels, classes, strict=True):
        for system in dict.fromkeys(row["system"] for row in rows):
            mine = [row for row in rows if row["system"] == system and row["class_tps"] == speed]
            mine.sort(key=lambda row: row["ues"])
            axes.plot([row["ues"] for row in mine], [row["violation"] for row in mine], ".-", label=system)
        axes.axhline(epsilon, color="grey", linestyle=":")
        axes.set_title(f"{speed:g} tokens/s")
        axes.set_xlabel("UEs of all classes")
    panels[0].set_ylabel("responses violated")
    panels[0].legend()
    figure.savefig(path)


def plane(rows: Sequence[Row], path: Path) -> None:
    """Rounds in the queue-compute plane, violated ones by cause (Fig. 8)."""
    figure, axes = _axes("queueing, s", "verification, s")
    for cause, colour in COLOURS.items():
        mine = [row for row in rows if row["cause"] == cause]
        label = f"{cause or 'in time'}: {len(mine)}"
        axes.plot(
            [row["queue_s"] for row in mine], [row["verify_s"] for row in mine], ".", ms=2, color=colour, label=label
        )
    axes.legend()
    figure.savefig(path)


def workloads(rows: Sequence[Row], path: Path) -> None:
    """Errors by regime, and what passes hold (Fig. 11)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    kinds = [kind for kind in ("compute", "memory", "mixed") if any(row["regime"] == kind for row in rows)]
    errors = [[abs(row["error_s"]) * 1e3 for row in rows if row["regime"] == kind] for kind in kinds]
    left.boxplot(errors, whis=(5, 95), showfliers=False)
    left.set_xticks(range(1, len(kinds) + 1), kinds)
    left.set_ylabel("absolute error, ms")
    for kind in kinds:
        mine = [row for row in rows if row["regime"] == kind]
        right.plot([row["new"] for row in mine], [row["cached"] for row in mine], ".", ms=3, label=kind)
    right.set_xscale("log")
    right.set_xlabel("new tokens of a pass")
    right.set_ylabel("cached tokens")
    right.legend()
    figure.savefig(path)
