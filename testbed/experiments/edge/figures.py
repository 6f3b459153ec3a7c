"""Figs. 6–9 of edge SD batching: latency of every system over a parameter, and the reductions quoted in the text.

All systems of a point have the same random users, and so do the points of a panel with the same seed and K.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from testbed.config import Config, load, resolved, save
from testbed.errors import BadInput
from testbed.experiments.plots.optim import panels as panes
from testbed.experiments.plots.optim import save as save_plot
from testbed.experiments.plots.optim import style
from testbed.experiments.results import directory as results
from testbed.experiments.results.claims import reserved
from testbed.experiments.results.csv_file import write_csv
from testbed.files import check_folder_name
from testbed.intervals import repeats_interval
from testbed.optim.bandwidth import POLICIES, allocate, bits_per_token, communication_s
from testbed.optim.baselines import ALGORITHMS, batch_by
from testbed.optim.figures import MODELS, POINTS, QuotedPoint, Reduction, draw, reduction
from testbed.optim.interpretations import Interpretation

Told = Callable[[int, int, str], None]
Axis = Literal["tasks", "longest_input", "longest_output", "bandwidth_mhz", "alpha"]
MOST = 10**6
"""Largest number of tasks or tokens, and bandwidth [MHz]."""
LABELS: dict[Axis, str] = {
    "tasks": "tasks K", "longest_input": "longest input [tokens]", "longest_output": "longest output [tokens]",
    "bandwidth_mhz": "bandwidth [MHz]", "alpha": "acceptance rate α",
}  # fmt: skip


class SystemLine(Config, frozen=True):
    """A system, with its differences from the panel's setting.

    Raises:
        BadInput: an unknown planner or policy.
    """

    name: str
    algorithm: str = "dp"
    policy: str = "optimal"
    tasks: int | None = None

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise BadInput(f"no planner {self.algorithm!r}; known: {', '.join(ALGORITHMS)}")
        if self.policy not in POLICIES:
            raise BadInput(f"no bandwidth policy {self.policy!r}; known: {', '.join(POLICIES)}")


class Panel(Config, frozen=True):
    """One parameter over its values; other parameters default to Table II.

    Raises:
        BadInput: no values, or an unknown model.
    """

    name: str
    axis: Axis
    values: tuple[float, ...]
    tasks: int = 100
    longest_input: int = 512
    longest_output: int = 2048
    bandwidth_mhz: float = 20.0
    alpha: float = 0.8
    draft: str = "LLaMA-1.1B"
    verify: str = "LLaMA-7B"

    def __post_init__(self) -> None:
        if not self.values:
            raise BadInput(f"panel {self.name!r} has no values")
        if not all(map(math.isfinite, self.values)):
            raise BadInput(f"panel {self.name!r}: values must be finite")
        for model in (self.draft, self.verify):
            if model not in MODELS:
                raise BadInput(f"no model {model!r}; known: {', '.join(MODELS)}")

    def point(self, value: float, line: SystemLine) -> QuotedPoint:
        """The setting of a line at a value.

        Raises:
            BadInput: a value outside the range of its axis.
        """
        given: dict[str, Any] = {self.axis: value}
        if self.axis in ("tasks", "longest_input", "longest_output"):
            if value != int(value) or not 1 <= value <= MOST:
                raise BadInput(f"panel {self.name!r}: {self.axis} must be a whole number in 1..{MOST}, not {value:g}")
            given[self.axis] = int(value)
        if self.axis != "tasks" and line.tasks is not None:
            given["tasks"] = line.tasks
        setting = msgspec.structs.replace(self, **given)
        if not all(1 <= count <= MOST for count in (setting.tasks, setting.longest_input, setting.longest_output)):
            raise BadInput(f"panel {self.name!r}: tasks, longest_input and longest_output lie in 1..{MOST}")
        if not (1 / MOST <= setting.bandwidth_mhz <= MOST and 0 <= setting.alpha < 1):
            raise BadInput(f"panel {self.name!r}: {self.axis} {value:g} is out of its range")
        return QuotedPoint(
            self.name, math.nan, (), setting.tasks, setting.longest_input, setting.longest_output,
            setting.bandwidth_mhz * 1e6, setting.draft, setting.verify, setting.alpha,
        )  # fmt: skip


class FiguresConfig(Config, frozen=True):
    """Figures that `testbed optim figures` computes.

    Raises:
        BadInput: nothing to compute, an unknown point, numbers that are not positive, values out of the range of their
            axis, names that occur twice, or a name that is a path: plots have it.
    """

    name: str
    lines: tuple[SystemLine, ...] = ()
    panels: tuple[Panel, ...] = ()
    seeds: int = 20
    """Random draws per value, with seeds from 0 up."""
    quoted: tuple[str, ...] = ()
    """Points whose reductions the text quotes: 7a to 9c."""
    draws: int = 200
    """Random draws per quoted point."""
    readings: dict[str, Interpretation] = msgspec.field(default_factory=lambda: {"ours": Interpretation()})

    def __post_init__(self) -> None:
        check_folder_name(self.name)
        for named in (self.lines, self.panels):
            if len({one.name for one in named}) < len(named):
                raise BadInput("lines need different names, and so do panels")
        known = [point.figure for point in POINTS]
        for name in self.quoted:
            if name not in known:
                raise BadInput(f"unknown quoted point {name!r}; known: {', '.join(known)}")
        if min(self.seeds, self.draws) < 2:
            raise BadInput(f"an interval needs 2 draws or more, not {min(self.seeds, self.draws)}")
        if bool(self.panels) != bool(self.lines) or not (self.panels or self.quoted):
            raise BadInput("give panels and lines, or quoted points")
        if self.quoted and not self.readings:
            raise BadInput("quoted points need an interpretation in `readings`")
        for panel, line in itertools.product(self.panels, self.lines):
            for value in panel.values:
                panel.point(value, line)

    @property
    def jobs(self) -> int:
        """Number of values and quoted points."""
        return sum(len(panel.values) for panel in self.panels) + len(self.quoted) * len(self.readings)


def load_figures(path: Path) -> FiguresConfig:
    """Read a sweep file, which a person names.

    Raises:
        BadInput: unreadable, unknown keys, or values of a wrong type or out of range.
    """
    try:
        return load(FiguresConfig, path, pipes=True)
    except BadInput as exc:
        raise BadInput(f"{path.name}: {exc}") from exc


def run_figures(config: FiguresConfig, out: Path, told: Told) -> dict[str, Any]:
    """Compute all points; writes `config.yaml`, `points.csv`, `draws.csv`, `quoted.csv`, `summary.json` and plots.

    Raises:
        BadInput: `out` is not empty or in use, or a point is infeasible.
    """
    with reserved(out):
        save(config, out / "config.yaml")
        points, draws = [], []
        for done, (panel, value, found) in enumerate(_panels(config, told)):
            points += [_row(panel, value, line, seconds) for line, seconds in zip(config.lines, found, strict=True)]
            draws += [
                {"panel": panel.name, "x": value, "line": line.name, "seed": seed, "latency_s": seconds}
                for line, times in zip(config.lines, found, strict=True)
                for seed, seconds in enumerate(times.tolist())
            ]
            told(done + 1, config.jobs, f"panel {panel.name}")
        quoted = list(_quoted(config, told))
        for name, rows in (("points", points), ("draws", draws), ("quoted", quoted)):
            if rows:
                write_csv(out / f"{name}.csv", rows)
        if points:
            plot(config, points, out)
        document = {"name": config.name, "seeds": config.seeds, "points": points, "quoted": quoted}
        results.write_summary(out, results.summary(resolved(config), 0, results.host(), [*points, *quoted]))
    return document


def _panels(config: FiguresConfig, told: Told) -> Iterator[tuple[Panel, float, list[np.ndarray[Any, Any]]]]:
    """Latencies [seeds] of every line, value by value; plans are reused."""
    known: dict[Any, float] = {}
    for panel in config.panels:
        for value in panel.values:
            yield (
                panel,
                value,
                [
                    np.array([latency_s(panel.point(value, line), line, seed, known) for seed in range(config.seeds)])
                    for line in config.lines
                ],
            )


def latency_s(point: QuotedPoint, line: SystemLine, seed: int, known: dict[Any, float]) -> float:
    """Total latency T (eq. 23) of a line for one draw.

    Args:
        known: cache of T_inf, updated.
    """
    users, serving = draw(point, seed), point.serving
    bits = users.inputs * bits_per_token(serving.draft_model.hidden, serving.verify_model.hidden)
    shares = allocate(line.policy, bits, users.efficiency)
    key = (line.algorithm, replace(point, figure="", paper_percent=0.0, bandwidth_hz=1.0), seed)
    if key not in known:
        known[key] = batch_by(line.algorithm, serving, users.inputs).inference_s
    return known[key] + communication_s(bits, shares, point.bandwidth_hz, users.efficiency)


def _row(panel: Panel, value: float, line: SystemLine, seconds: np.ndarray[Any, Any]) -> dict[str, Any]:
    mean, low, high = repeats_interval(seconds)
    return {
        "panel": panel.name, "axis": panel.axis, "x": value, "line": line.name, "draws": seconds.size, "mean_s": mean,
        "low_s": low, "high_s": high, "median_s": float(np.median(seconds)),
    }  # fmt: skip


def _quoted(config: FiguresConfig, told: Told) -> Iterator[dict[str, Any]]:
    by_figure = {point.figure: point for point in POINTS}
    done = config.jobs - len(config.quoted) * len(config.readings)
    for name, reading in config.readings.items():
        for figure in config.quoted:
            found = reduction(by_figure[figure], range(config.draws), interpretation=reading)
            done += 1
            told(done, config.jobs, f"{figure}, interpretation {name}")
            yield quoted_row(by_figure[figure], name, found)


def quoted_row(point: QuotedPoint, reading: str, found: Reduction) -> dict[str, Any]:
    """Row of a quoted point under an interpretation."""
    (a, b), (c, d) = found.median_interval, found.draws_interval
    return {
        "figure": point.figure, "reading": reading, "paper_percent": point.paper_percent,
        "median_percent": found.median_percent, "median_low_percent": a, "median_high_percent": b, "low_percent": c,
        "high_percent": d, "inside": found.holds(point.paper_percent), "draws": len(found.percents),
        "best": max(found.best, key=lambda name: found.best[name]),
        "against": " ".join(f"{name} {percent:.1f}" for name, percent in found.against_percent.items()),
        "window": found.window,
    }  # fmt: skip


def plot(config: FiguresConfig, points: Sequence[dict[str, Any]], out: Path) -> list[Path]:
    """Panels side by side, with means and their intervals."""
    figure, axes = panes(len(config.panels), 4.0)
    for panel, pane in zip(config.panels, axes, strict=True):
        for i, line in enumerate(config.lines):
            rows = [row for row in points if (row["panel"], row["line"]) == (panel.name, line.name)]
            x, mean = [row["x"] for row in rows], np.array([row["mean_s"] for row in rows])
            pane.plot(x, mean, **style(i), label=line.name)
            pane.fill_between(
                x, [r["low_s"] for r in rows], [r["high_s"] for r in rows], color=style(i)["color"], alpha=0.2
            )  # fmt: skip
        pane.set(xlabel=LABELS[panel.axis], ylabel="latency [s]")
        pane.set_ylim(bottom=0)
        pane.set_title(f"{panel.name}: {panel.draft}, {panel.verify}", loc="left", fontsize=9, parse_math=False)
    for text in axes[0].legend(frameon=False, fontsize=8).get_texts():
        text.set_parse_math(False)
    return save_plot(figure, out, config.name)
