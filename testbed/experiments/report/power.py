"""Report section on power and temperature: summary of the samples, energy by parts, and power over time."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from testbed.errors import BadInput
from testbed.experiments.plots.style import HATCHES, PART_COLOURS, Figure, canvas, legend
from testbed.experiments.power.recorder import SAMPLES
from testbed.experiments.report.data import Row, Shown
from testbed.experiments.report.figures import MOST_BARS, row_names
from testbed.experiments.results.energy import PARTS
from testbed.power.files import read_samples
from testbed.power.series import Samples

COLOURS = {"draft_j": PART_COLOURS[0], "link_j": PART_COLOURS[1], "wait_j": PART_COLOURS[3], "other_j": PART_COLOURS[5]}
LABELS = {"draft_j": "draft", "link_j": "waiting, link", "wait_j": "waiting, BS", "other_j": "other"}
MOST_POINTS = 4000
"""Maximum number of points of a line; samples are averaged."""


def notes(shown: Shown) -> str:
    """HTML summary of the power samples; empty if power was not measured."""
    power = shown.document.get("power")
    if not isinstance(power, dict):
        return ""
    idle_w, temp_c = power.get("idle_w"), power.get("temp_c_max")
    facts = [
        f"Power by {power.get('source')} ({power.get('total')}): {power.get('samples')} samples, one every "
        f"{power.get('period_s') or 0:.3g} s",
        "idle power not measured" if idle_w is None else f"{idle_w:.3g} W idle before the run",
        "temperature unknown" if temp_c is None else f"at most {temp_c:.1f} °C",
    ]
    if power.get("gaps"):
        facts.append(f"{power['gaps']} gaps, {power['gaps_s']:.3g} s in total, in which energy is unknown")
    if power.get("missed"):
        facts.append(f"{power['missed']} readings failed, the last one: {power.get('missed_why')}")
    warnings = [] if not power.get("failure") else [f"Sampling ended early: {power['failure']}."]
    slowed = [(row["method"], row["throttled_rounds"]) for row in shown.rows if row.get("throttled_rounds")]
    if slowed:
        rounds = ", ".join(f"{count} of {method}" for method, count in slowed)
        warnings.append(f"The device was throttled in rounds of these rows: {rounds}.")
    marked = "".join(f"<p class='note'>{html.escape(text)}</p>" for text in warnings)
    return f"<p><small>{html.escape('; '.join(facts))}.</small></p>{marked}"


def figures(shown: Shown) -> list[Figure]:
    """Energy per token by parts, and power and temperature over the run, if measured."""
    found = []
    rows = [row for row in shown.rows if row.get("energy_per_token_j") is not None]
    if rows and len(rows) <= MOST_BARS:
        found.append(
            Figure("energy", "Energy of the device per committed token, stacked by parts: drafting, waiting for the "
                   "link, waiting for the base station, other.", lambda: _energy(rows))
        )  # fmt: skip
    path = shown.path / SAMPLES
    if path.exists() and isinstance(shown.document.get("power"), dict):
        try:
            samples = read_samples(path)
        except BadInput:
            return found
        found.append(
            Figure("power", "Power and temperature over the run; shaded where the device was throttled.",
                   lambda: _over_time(samples, shown.document["power"].get("idle_w")))
        )  # fmt: skip
    return found


def _energy(rows: Sequence[Row]) -> Any:
    figure, axes = canvas(width=7.5, height=0.8 + 0.33 * len(rows))
    one, left = axes[0, 0], np.zeros(len(rows))
    for part, hatch in zip(PARTS, HATCHES, strict=False):
        shares = [row[part] / row["energy_j"] if row["energy_j"] else 0.0 for row in rows]
        values = np.array([row["energy_per_token_j"] for row in rows]) * shares
        look = {"color": COLOURS[part], "hatch": hatch, "edgecolor": "white", "label": LABELS[part]}
        one.barh(range(len(rows)), values, left=left, **look)
        left += values
    one.set_yticks(range(len(rows)), row_names(rows))
    one.grid(axis="y", visible=False)
    one.invert_yaxis()
    one.set_xlabel("energy per committed token [J]")
    legend(figure, axes)
    return figure


def _over_time(samples: Samples, idle_w: float | None) -> Any:
    figure, axes = canvas(1, 2, width=8.0, height=1.8, sharex=True)
    top, low = axes[:, 0]
    times_s = samples.time_s - samples.time_s[0]
    every = -(-len(times_s) // MOST_POINTS)
    gaps = np.flatnonzero(np.diff(_thinned(times_s, every)) > samples.gap_s * every) + 1

    def draw(on: Any, values: Any, colour: str, label: str) -> None:
        at, shown = _thinned(times_s, every), _thinned(values, every)
        on.plot(np.insert(at, gaps, np.nan), np.insert(shown, gaps, np.nan), color=colour, label=label, linewidth=0.9)

    draw(top, samples.total_w, COLOURS["draft_j"], "power")
    if idle_w is not None:
        top.axhline(idle_w, color="black", linestyle="--", linewidth=1, label="idle")
    if samples.temp_c is not None and np.isfinite(samples.temp_c).any():
        draw(low, samples.temp_c, "#d55e00", "temperature")
    for begin_s, end_s in throttled_spans(samples):
        for one in (top, low):
            one.axvspan(begin_s, end_s, color="#e69f00", alpha=0.25, linewidth=0, label="throttled")
    top.set_ylabel("power [W]")
    low.set_ylabel("temperature [°C]")
    low.set_xlabel("time [s]")
    legend(figure, axes)
    return figure


def throttled_spans(samples: Samples) -> list[tuple[float, float]]:
    """Start and end of throttled intervals, in seconds since the first sample."""
    if samples.throttled is None:
        return []
    slow = np.array([bool(reason) for reason in samples.throttled], np.int8)
    begins, ends = np.flatnonzero(np.diff(slow, prepend=0) == 1), np.flatnonzero(np.diff(slow, append=0) == -1)
    times_s = np.append(samples.time_s - samples.time_s[0], samples.time_s[-1] - samples.time_s[0])
    return [(float(times_s[a]), float(times_s[b + 1])) for a, b in zip(begins, ends, strict=True)]


def _thinned(values: Any, every: int) -> Any:
    """Means over blocks of `every` values, ignoring nan."""
    if every == 1:
        return values
    known = np.append(values, np.full(-len(values) % every, np.nan)).reshape(-1, every)
    counts = np.isfinite(known).sum(axis=1)
    return np.where(counts > 0, np.nansum(known, axis=1) / np.maximum(counts, 1), np.nan)
