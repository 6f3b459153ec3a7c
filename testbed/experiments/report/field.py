"""Report section of a field run: visits and notes; latency, gain over the baseline and the head's permissiveness over
distance, measured and in virtual time.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from testbed.experiments.plots.style import Figure, SeriesStyle, canvas, legend, styles_of
from testbed.experiments.report.data import Row, Shown
from testbed.experiments.report.rows_table import bounds_of, study_html, table_html, terms_html
from testbed.experiments.report.tables import cell
from testbed.experiments.results.field_columns import CONTENTION_COLUMNS, FIELD_COLUMNS, NAMES, TERMS

KIND = "field"
WAYS = {"field": "measured", "together": "measured, all at once", "replay": "replayed link", "virtual": "modelled link"}
COLUMNS = {
    "latency_s": ("mean latency [s]", "Mean latency per request over distance, with 95 % intervals"),
    "gain": ("speed-up", "Latency of the first method divided by that of each other method, over distance"),
    "permissiveness": ("fraction of mismatches accepted", "Fraction of judged mismatches that the head accepted"),
}  # fmt: skip


def figures(shown: Shown) -> list[Figure]:
    """Figures for a directory of `field run`."""
    if shown.document.get("kind") != KIND:
        return []
    found = []
    looks = styles_of([row["setting"] for row in shown.rows])
    for name, (label, caption) in COLUMNS.items():
        rows = [row for row in shown.rows if None not in (row[name], row[f"{name}_low"], row[f"{name}_high"])]
        if rows:
            how = "emulated" if shown.document.get("emulated") else "in the field"
            found.append(Figure(name, f"{caption} ({how}, and in virtual time).", _drawn(rows, name, label, looks)))
    return found


def table(shown: Shown) -> str:
    """The results by place, method and way, all columns folded, and the terms."""
    rows = shown.rows
    names = [name for name in FIELD_COLUMNS if name not in NAMES and any(row.get(name) is not None for row in rows)]
    titles = [
        f"{html.escape(str(row['place']))}, {row['distance_m']:g} m"
        f"<br><small>{html.escape(str(row['setting']))}, {html.escape(str(row['way']))}</small>"
        for row in rows
    ]
    bounds = [bounds_of(row, names) for row in rows]
    most = table_html("place", titles, names, rows, bounds, lambda name: FIELD_COLUMNS[name][0])
    told = [name for name in TERMS if name in names or name in NAMES]
    return f"{most}<details><summary>All columns</summary>{study_html(rows)}</details>{terms_html(told, TERMS)}"


def notes(shown: Shown) -> str:
    """HTML notes on a field run: completeness, agreement with virtual time, throttling; empty for other kinds."""
    document = shown.document
    if document.get("kind") != KIND:
        return ""
    warnings = [f"Not finished: {document['left']} runs are left."] if document.get("left") else []
    warnings += map(str, document.get("notes") or ())
    slowed = [row for row in shown.rows if row.get("throttled_rounds")]
    if slowed:
        where = ", ".join(f"{row['throttled_rounds']} of {row['setting']} at {row['place']}" for row in slowed)
        warnings.append(f"The device was throttled in rounds of these runs: {where}.")
    marked = "".join(f"<p class='note'>{html.escape(text)}</p>" for text in warnings)
    off = [f"{WAYS[way]}: within {worst:.1%}" for way, worst in (document.get("agreement") or {}).items()]
    agreement = f"<p>Mean latencies in virtual time relative to measured ones: {'; '.join(off)}.</p>" if off else ""
    return f"{marked}{agreement}"


def contention(shown: Shown) -> str:
    """HTML table of what UEs lose to each other at the same time; empty without such runs."""
    rows: Sequence[Row] = shown.document.get("together") or ()
    if shown.document.get("kind") != KIND or not rows:
        return ""
    titles = [f"{html.escape(str(row['place']))}<br><small>{html.escape(str(row['method']))}</small>" for row in rows]
    names = [name for name in CONTENTION_COLUMNS if name not in ("place", "method")]
    table = table_html("place", titles, names, rows, [{}] * len(rows), lambda name: CONTENTION_COLUMNS[name][0])
    said = "Link and drafting time are relative to those alone; overlap: share of the rounds beside all others."
    return f"<h3>All places at the same time</h3>{table}<p><small>{said}</small></p>"


def visits(shown: Shown) -> str:
    """HTML table of a field run's visits, with links and the operator's notes, in order of time; else empty."""
    if shown.document.get("kind") != KIND:
        return ""
    events: Sequence[Row] = shown.document.get("visits") or ()
    heads = ("time", "place", "uplink Mbit/s", "downlink Mbit/s", "RTT ms", "RSSI dBm", "clock ms", "notes")
    lines = []
    for event in events:
        measured = event.get("measured") or {}
        csi, clock = measured.get("csi") or {}, measured.get("clock") or {}
        offset = f"{clock['offset_s'] * 1e3:.3f} ± {clock['error_s'] * 1e3:.3f}" if clock else None
        differs = [f"changed: {text}" for text in event.get("differs") or ()]
        cells = [
            event["time"], event["place"], csi.get("uplink_mbps"), csi.get("downlink_mbps"), csi.get("rtt_ms"),
            csi.get("rssi_dbm"), offset, "; ".join(filter(None, [*differs, event.get("note")])) or None,
        ]  # fmt: skip
        lines.append("<tr>" + "".join(f"<td>{cell(value)}</td>" for value in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    table = f"<div class=wide><table class=visits>{body}</table></div>"
    return f"<h3>Visits</h3>{table}<p><small>Clock: base station's offset from the UE's.</small></p>" if lines else ""


def _drawn(rows: Sequence[Row], name: str, label: str, looks: Mapping[str, SeriesStyle]) -> Callable[[], Any]:
    return partial(_against_distance, rows, name, label, looks)


def _against_distance(rows: Sequence[Row], name: str, label: str, looks: Mapping[str, SeriesStyle]) -> Any:
    """One panel per way of running, one line per method."""
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
                    places, values, yerr=[below, above], **look.line,
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
