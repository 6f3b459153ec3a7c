"""Figures of load studies: capacity by class, SLO violations over the number of UEs, the queue-compute plane (WISP
Figs. 7, 8), and latency under load with its collapse onto one curve (Figs. 1, 2 of the serving latency model).
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from testbed.errors import BadInput
from testbed.experiments.plots import capacity as capacity_plots
from testbed.experiments.plots import latency as latency_plots
from testbed.experiments.plots.style import Figure
from testbed.experiments.report.data import Shown
from testbed.experiments.results.latency import read_points
from testbed.files import file_bytes
from testbed.optim.serving.fit import fit

POINTS_FILE, PLANE_FILE, VIOLATIONS_FILE = "points.csv", "fig8.csv", "fig7.csv"


def figures(shown: Shown) -> list[Figure]:
    """Figures for a directory of `capacity --out` or of a measured load."""
    rows, found = shown.rows, []
    if rows and all("capacity" in row and "class_tps" in row for row in rows) and not any("varied" in r for r in rows):
        caption = "UEs that a BS sustains, by token speed; crosses: values of WISP Table 2."
        found.append(Figure("capacity", caption, lambda: capacity_plots.capacities(rows)))
    served = [row for row in rows if row.get("goodput_tps") is not None and "ues" in row and "system" in row]
    if len({row["ues"] for row in served}) > 1:
        caption = "Total goodput of all UEs over their number."
        found.append(Figure("goodput", caption, lambda: capacity_plots.goodput(served)))
    over = _violations_of(shown)
    if over:
        caption = "Fraction of responses slower than their class, over the number of UEs (WISP Fig. 7)."
        epsilon = shown.document["config"].get("epsilon")
        found.append(Figure("violations", caption, lambda: capacity_plots.violations(over, epsilon)))
    plane = _table(shown.path / PLANE_FILE)
    if plane:
        caption = "Rounds by queueing and verification time, late ones by cause (WISP Fig. 8)."
        found.append(Figure("plane", caption, lambda: capacity_plots.plane(plane)))
    if (shown.path / POINTS_FILE).exists() and not shown.speculates:
        found += _load(shown.path / POINTS_FILE)
    return found


def _table(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file; empty if it does not exist."""
    try:
        return list(csv.DictReader(io.StringIO(file_bytes(path).decode("utf-8"), newline="")))
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise BadInput(f"cannot read {path}: {exc}") from exc


def _violations_of(shown: Shown) -> list[dict[str, Any]]:
    """Rows of system, UEs, class and fraction of violations; empty with fewer than two numbers of UEs."""
    found = [
        {"system": row["system"], "ues": float(row["ues"]), "class_tps": float(speed), "violation": float(share)}
        for row in shown.rows
        if isinstance(row.get("violations"), dict) and "ues" in row and "system" in row
        for speed, share in row["violations"].items()
        if share is not None
    ] or [
        {**row, **{key: float(row[key]) for key in ("ues", "class_tps", "violation")}}
        for row in _table(shown.path / VIOLATIONS_FILE)
        if row["violation"]
    ]
    return found if len({row["ues"] for row in found}) > 1 else []


def _load(path: Path) -> list[Figure]:
    points, latency_s = read_points(path)
    try:
        found = fit(points, latency_s)
    except BadInput:
        return []
    return latency_plots.figures(found, points, latency_s)
