"""WISP Figs. 1 to 3 from traces, as CSV files and plots: waste and goodput, acceptance by statistic, correlations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.experiments.predictor.traces import Traces
from testbed.experiments.results.directory import write_text
from testbed.intervals import Bootstrap, Interval
from testbed.ue.windows.predictor import FEATURES

DRAFT_TPS = 50.0
"""Drafting speed in the paper's Fig. 1."""
REST_S = 0.05
"""Remaining time of a round in Fig. 1: one RTT of 50 ms, an assumption, since the paper states none."""
BINS = 20
Table = tuple[tuple[str, ...], list[Sequence[float | str]]]


def write_figures(traces: Traces, out: Path) -> list[Path]:
    """Write `fig1`, `fig2` and `fig3` as `.csv` and `.png`, and `correlations.csv`, into `out`; returns the paths.

    Raises:
        BadInput: matplotlib is missing, or the directory is not writable.
    """
    tables = {"fig1": waste_table(traces), "fig2": acceptance_table(traces), "fig3": correlation_table(traces)}
    tables["correlations"] = interval_table(traces)
    figures = {"fig1": _waste(tables["fig1"]), "fig2": _acceptance(tables["fig2"]), "fig3": _matrix(tables["fig3"])}
    paths = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, (header, rows) in tables.items():
            lines = [",".join(header), *(",".join(map(_cell, row)) for row in rows)]
            write_text(out / f"{name}.csv", "\n".join(lines) + "\n")
            paths.append(out / f"{name}.csv")
            if name in figures:
                figures[name].savefig(out / f"{name}.png", dpi=120, bbox_inches="tight")
                paths.append(out / f"{name}.png")
    except OSError as exc:
        raise BadInput(f"cannot write figures into {out}: {exc.strerror or exc}") from exc
    return paths


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def waste_table(traces: Traces) -> Table:
    """Fig. 1: wasted tokens and time per round, and goodput in tokens/s, by prompt."""
    rows: list[Sequence[float | str]] = []
    for prompt in np.unique(traces.prompt):
        mine = traces.prompt == prompt
        rounds = int(traces.round[mine].max()) + 1
        kept = int(traces.accepted[mine].sum())
        drafted = int(mine.sum() + np.sum(traces.later_prompt == prompt))
        wasted = (drafted - kept) / rounds
        goodput = (kept + rounds) / (drafted / DRAFT_TPS + rounds * REST_S)
        rows.append((int(prompt), rounds, wasted, wasted / DRAFT_TPS, goodput))
    return ("prompt", "rounds", "wasted_tokens", "wasted_s", "goodput_tps"), rows


def acceptance_table(traces: Traces) -> Table:
    """Fig. 2: fraction of accepted tokens by statistic, in bins of equal counts (for the position, of equal values).

    Its 95 % interval is by bootstrap over prompts.
    """
    rows: list[Sequence[float | str]] = []
    for i, name in enumerate(FEATURES):
        x, accepted = traces.features[:, i].astype(np.float64), traces.accepted
        order = np.argsort(x, kind="stable")
        parts = [order[x[order] == v] for v in np.unique(x)] if name == "position" else np.array_split(order, BINS)
        for part in filter(len, parts):
            inside = np.bincount(part, minlength=len(x))
            drawn = Bootstrap({"kept": inside * accepted, "all": inside}, groups=traces.prompt).ratio(
                "kept", "all", most=1.0
            )
            rows.append((name, float(x[part].mean()), *drawn, len(part)))
    return ("statistic", "mean", "acceptance", "low", "high", "tokens"), rows


def correlation_table(traces: Traces) -> Table:
    """Fig. 3: Pearson correlations of statistics and acceptance; 0 for constant columns."""
    columns = np.column_stack([traces.features, traces.accepted]).astype(np.float64)
    centred = columns - columns.mean(axis=0)
    norms = np.sqrt((centred**2).sum(axis=0))
    matrix = centred.T @ centred / np.where(norms > 0, norms, 1.0) / np.where(norms > 0, norms, 1.0)[:, None]
    names = (*FEATURES, "accepted")
    return ("", *names), [(name, *row) for name, row in zip(names, matrix.tolist(), strict=True)]


def interval_table(traces: Traces) -> Table:
    """Pearson correlations of waste and goodput (Fig. 1), and of each statistic and acceptance (Fig. 3).

    Their 95 % intervals are by bootstrap over prompts.
    """
    of_prompts = np.array([[row[2], row[4]] for row in waste_table(traces)[1]], np.float64)
    rows: list[Sequence[float | str]] = [("wasted_tokens", "goodput_tps", *_correlation(of_prompts))]
    for i, name in enumerate(FEATURES):
        pairs = np.column_stack([traces.features[:, i], traces.accepted]).astype(np.float64)
        rows.append((name, "accepted", *_correlation(pairs, traces.prompt)))
    return ("first", "second", "r", "low", "high"), rows


def _correlation(pairs: NDArray[np.float64], groups: NDArray[np.int32] | None = None) -> Interval:
    x, y = (pairs - pairs.mean(axis=0)).T
    columns = {"n": np.ones_like(x), "x": x, "y": y, "xx": x * x, "yy": y * y, "xy": x * y}

    def pearson(of: Callable[[str], NDArray[np.float64]]) -> NDArray[np.float64]:
        n, x, y = of("n"), of("x"), of("y")
        found: NDArray[np.float64] = (n * of("xy") - x * y) / np.sqrt((n * of("xx") - x**2) * (n * of("yy") - y**2))
        return found

    return Bootstrap(columns, groups=groups).computed(pearson)


def _figure(**options: Any) -> Any:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as exc:
        raise BadInput("plots need matplotlib: install the extra `lab`") from exc
    return Figure(**options)


def _waste(table: Table) -> Any:
    figure = _figure(figsize=(5, 3.5))
    axes = figure.subplots()
    axes.plot([r[2] for r in table[1]], [r[4] for r in table[1]], ".", color="#0072b2", alpha=0.6)
    axes.set_xlabel("wasted draft tokens per round")
    axes.set_ylabel("goodput [tokens/s]")
    axes.set_title(f"one point per prompt; drafting {DRAFT_TPS:g} tokens/s + {REST_S * 1e3:g} ms per round", fontsize=9)
    return figure


def _acceptance(table: Table) -> Any:
    figure = _figure(figsize=(12, 2.8), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(FEATURES), sharey=True), FEATURES, strict=True):
        rows = [r for r in table[1] if r[0] == name]
        axes.plot([r[1] for r in rows], [r[2] for r in rows], "o-", markersize=3, color="#0072b2")
        axes.set_xlabel(name)
    figure.axes[0].set_ylabel("fraction accepted")
    return figure


def _matrix(table: Table) -> Any:
    figure = _figure(figsize=(5, 4.2), layout="constrained")
    axes = figure.subplots()
    names, values = table[0][1:], np.array([row[1:] for row in table[1]], np.float64)
    image = axes.imshow(values, vmin=-1, vmax=1, cmap="RdBu_r")
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(names)), names)
    for i, j in np.ndindex(*values.shape):
        shade = "white" if abs(values[i, j]) > 0.7 else "black"
        axes.text(j, i, f"{values[i, j]:.2f}", ha="center", va="center", fontsize=8, color=shade)
    figure.colorbar(image, ax=axes, label="Pearson's r")
    return figure
