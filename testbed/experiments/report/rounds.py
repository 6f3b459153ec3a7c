"""Figures from the rounds of a run: acceptance by position, committed lengths, link and protocol over time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.channel.spec import parse_channel
from testbed.channel.trace import Trace
from testbed.errors import BadInput
from testbed.experiments.plots.style import Figure, canvas, legend, styles_of
from testbed.experiments.report.data import RowSource, Shown
from testbed.experiments.report.intervals import LINK
from testbed.experiments.report.tables import link_text
from testbed.experiments.results.directory import read_summary
from testbed.protocols import TARGET_ONLY

MOST = 8
"""Maximum number of lines in a figure."""
COUNTS = ("drafted", "accepted", "committed")
LINK_COLUMNS = ("csi_time_s", "csi_uplink_mbps", "csi_downlink_mbps", "csi_rtt_ms")
GAP = 8
"""Multiple of the median interval between rounds that counts as a gap, where lines are interrupted."""
LINK_CAPTION = "Channel state and protocol of each round. Dots: time of its messages on the link. Grey: replayed trace."
MOST_LINKS = 4
"""Maximum number of runs whose link is shown over time."""


def figures(shown: Shown) -> list[Figure]:
    """Figures of the rounds of a run. For a sweep, rounds of its median window, slowest link and, for a series with
    several thresholds, the median threshold.
    """
    chosen, where = _chosen(shown.parts)
    found = []
    if chosen:
        found += [
            Figure("acceptance", f"Fraction of rounds that accepted the drafted token at each position{where}.",
                   lambda: _acceptance(chosen)),
            Figure("committed", f"Tokens committed per round, including correction or bonus token{where}.",
                   lambda: _committed(chosen)),
        ]  # fmt: skip
    moving = [part for part in shown.parts if _moves(part)][:MOST_LINKS]
    if moving:
        found.append(Figure("link", LINK_CAPTION, lambda: _link(moving)))
    return found


def _chosen(parts: Sequence[RowSource]) -> tuple[list[RowSource], str]:
    """Rows to show in one figure, and text on the settings they share."""
    known = [part for part in parts if part.row["method"] != TARGET_ONLY and _holds(part, COUNTS)]
    if len(known) <= MOST and len({part.name for part in known}) == len(known):
        return known, ""
    windows = sorted({part.row["window"] for part in known})
    window = windows[len(windows) // 2]
    same = [part for part in known if part.row["window"] == window]
    link = min(({key: part.row.get(key) for key in LINK} for part in same), key=_quality)
    same = [part for part in same if {key: part.row.get(key) for key in LINK} == link]
    same, threshold = _middle(same)
    chosen = list({part.name: part for part in reversed(same)}.values())[::-1]
    return chosen[:MOST], f", at K = {window} and {link_text(link)}{threshold}"


def _middle(parts: list[RowSource]) -> tuple[list[RowSource], str]:
    """Rows at the median threshold, for series with several, and text on it."""
    found: dict[str, set[float]] = {}
    for part in parts:
        found.setdefault(part.name, set()).add(_threshold(part))
    most: set[float] = max(found.values(), key=len)
    varying = sorted(most)
    if len(varying) < 2:
        return parts, ""
    middle = varying[len(varying) // 2]
    kept = [part for part in parts if len(found[part.name]) < 2 or _threshold(part) == middle]
    return kept, f", θ = {middle:.4g} where it varies"


def _threshold(part: RowSource) -> float:
    return float(part.row.get("threshold") or 0.0)


def _quality(link: Mapping[str, Any]) -> list[tuple[bool, float]]:
    """Sort key of links, slowest first."""
    signs = {"uplink_mbps": 1, "downlink_mbps": 1, "rtt_ms": -1, "per": -1, "jitter_ms": -1}
    return [(link.get(key) is None, sign * float(link.get(key) or 0)) for key, sign in signs.items()]


def _holds(part: RowSource, names: Sequence[str]) -> bool:
    """Whether a run has these numeric columns for its rounds."""
    rounds = part.rounds
    return rounds is not None and all(len(rounds[name]) and rounds[name].dtype != object for name in names)


def _acceptance(parts: Sequence[RowSource]) -> Any:
    from matplotlib.ticker import MaxNLocator

    figure, axes = canvas(width=6.5)
    curves: dict[tuple[float, ...], list[str]] = {}
    for part in parts:
        curves.setdefault(_shares(part), []).append(part.name)
    for (shares, names), look in zip(curves.items(), styles_of([*curves]).values(), strict=True):
        same = " (the same curve)" if len(names) > 1 else ""
        axes[0, 0].plot(
            range(1, len(shares) + 1), shares, **look.line, label=", ".join(names) + same,
            markevery=max(1, len(shares) // 10),
        )  # fmt: skip
    axes[0, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0, 0].set_xlabel("position in the draft window")
    axes[0, 0].set_ylabel("fraction of rounds accepting it")
    axes[0, 0].set_ylim(0, 1)
    legend(figure, axes)
    return figure


def _shares(part: RowSource) -> tuple[float, ...]:
    """Fraction of rounds that accepted each position, among those that drafted it."""
    assert part.rounds is not None
    drafted, accepted = part.rounds["drafted"], part.rounds["accepted"]
    return tuple(float((accepted[drafted >= at] >= at).mean()) for at in range(1, int(drafted.max()) + 1))


def _committed(parts: Sequence[RowSource]) -> Any:
    from matplotlib.ticker import MaxNLocator

    columns = min(3, len(parts))
    figure, axes = canvas(columns, -(-len(parts) // columns), width=2.9, height=1.9, sharex=True, sharey=True)
    most = max(int(part.rounds["committed"].max()) for part in parts if part.rounds)
    for one, part, look in zip(axes.flat, parts, styles_of([part.name for part in parts]).values(), strict=False):
        assert part.rounds is not None
        committed = part.rounds["committed"]
        shares = np.bincount(committed.astype(int), minlength=most + 1) / len(committed)
        one.bar(range(most + 1), shares, 0.9, color=look.colour)
        one.axvline(committed.mean(), color="black", linestyle="--", linewidth=1)
        one.set_title(f"{part.name}: mean {committed.mean():.2f}", loc="left", fontsize=9)
    for one in axes[:, 0]:
        one.set_ylabel("fraction of rounds")
    for at, one in enumerate(axes.flat):
        one.set_visible(at < len(parts))
        if len(parts) - columns <= at < len(parts):  # the lowest of its column
            one.set_xlabel("tokens committed")
        one.tick_params(labelbottom=True)
        one.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _moves(part: RowSource) -> bool:
    """Whether the known rates of the link or the protocol changed during a run."""
    rounds = part.rounds
    if rounds is None or not _holds(part, LINK_COLUMNS):
        return False
    known = np.isfinite(rounds["csi_time_s"])
    if known.sum() < 2:
        return False
    rates = _rates(rounds, "up")[known]
    return bool(np.isfinite(rates).all() and np.ptp(rates) > 0) or len(set(rounds["protocol"][known])) > 1


def _rates(rounds: Mapping[str, NDArray[Any]], way: str) -> NDArray[np.float64]:
    """Rates of a link [n], nan where they are estimates from the rounds, which small messages do not reveal."""
    rates: NDArray[np.float64] = rounds[f"csi_{way}link_mbps"].astype(np.float64)
    return np.where(rounds["csi_source"] == "passive", np.nan, rates) if "csi_source" in rounds else rates


def _link(parts: Sequence[RowSource]) -> Any:
    figure, axes = canvas(len(parts), 3, width=4.6, height=1.7, sharex="col")
    for column, part in enumerate(parts):
        assert part.rounds is not None
        rounds = {name: values[np.isfinite(part.rounds["csi_time_s"])] for name, values in part.rounds.items()}
        _link_of(axes[:, column], rounds, _replayed(part))
        axes[0, column].set_title(part.name, loc="left", fontsize=9)
        axes[-1, column].set_xlabel("time [s]")
    for one, text in zip(axes[:, 0], ("rate [Mbit/s]", "time [ms]", "protocol"), strict=True):
        one.set_ylabel(text)
    legend(figure, axes)
    return figure


def _replayed(part: RowSource) -> Trace | None:
    """The trace that a run in virtual time replayed from time 0; None: it replayed none, or one that is not here."""
    try:
        spec = parse_channel(read_summary(part.directory)["config"].get("channel") or "kind=none")
        return spec.trace() if spec.is_virtual else None
    except BadInput:
        return None


def _draw_replayed(axes: Sequence[Any], trace: Trace, from_s: float, to_s: float) -> None:
    """Rates and RTT of a trace between two times, behind what a run observed."""
    shown = slice(*np.searchsorted(trace.t_s, (from_s, to_s)))
    times_s = trace.t_s[shown] - from_s
    for one, values in ((axes[0], trace.uplink_mbps), (axes[0], trace.downlink_mbps), (axes[1], trace.rtt_ms)):
        one.step(times_s, values[shown], where="post", color="#bbbbbb", linewidth=2.5, label="trace", zorder=1)


def _link_of(axes: Sequence[Any], rounds: Mapping[str, NDArray[Any]], trace: Trace | None = None) -> None:
    """Rates, RTT and protocol of one run, from top to bottom."""
    top, middle, low = axes
    clock = "csi_time_s"  # begins anew where a run is resumed, as a trace that is replayed does
    if trace is None and "begin_s" in rounds and np.isfinite(rounds["begin_s"]).all():
        clock = "begin_s"
    order = np.argsort(rounds[clock], kind="stable")
    times_s = rounds[clock][order] - rounds[clock][order[0]]
    gaps = np.flatnonzero(np.diff(times_s) > GAP * max(1e-9, float(np.median(np.diff(times_s))))) + 1
    shown_s = np.insert(times_s, gaps, np.nan)
    if trace is not None:
        first_s = rounds["csi_time_s"][order[0]]
        _draw_replayed(axes, trace, first_s, first_s + times_s[-1])
    for name, colour, dash in (("up", "#0072b2", "-"), ("down", "#e69f00", "--")):
        rates = np.insert(_rates(rounds, name)[order], gaps, np.nan)
        if np.isfinite(rates).any():
            top.plot(shown_s, rates, color=colour, linestyle=dash, label=f"{name}link")
    if not top.lines:
        top.text(0.5, 0.5, "rates unknown", ha="center", va="center", transform=top.transAxes, color="#666666")
    rtts_ms = np.insert(rounds["csi_rtt_ms"][order].astype(float), gaps, np.nan)
    middle.plot(shown_s, rtts_ms, color="#009e73", label="RTT")
    if "link_s" in rounds:
        observed_ms = 1e3 * rounds["link_s"][order].astype(float)
        middle.plot(times_s, observed_ms, ".", color="#0072b2", markersize=3, label="time on the link")
        middle.set_yscale("log" if observed_ms.max() > 20 * np.nanmax(rtts_ms) else "linear")
    names = sorted(set(rounds["protocol"]))
    for at, (name, marker) in enumerate(zip(names, itertools.cycle("osd^v"), strict=False)):
        mine = rounds["protocol"][order] == name
        low.plot(times_s[mine], np.full(mine.sum(), at), marker, color=f"C{at}", markersize=3)
    low.set_yticks(range(len(names)), names)
    low.set_ylim(-0.6, len(names) - 0.4)
