"""Reports: tables and plots of run directories in one self-contained HTML file, always made from the files."""

from __future__ import annotations

import base64
import html
import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.errors import BadInput
from testbed.experiments.results import PARTS, read_summary, write_text

TABLE = (
    "method", "series", "judge", "head", "payload", "window", "threshold", "level", "hidden_bits", "uplink_mbps",
    "downlink_mbps", "rtt_ms", "per", "requests", "accuracy", "aal", "rounds", "acceptance", "acceptance_cond",
    "latency_s", "latency_p95_s", "throughput_tps", "tokens", "uplink_bytes", "downlink_bytes", "lossless", "ties",
)  # fmt: skip
COLOURS = ("#0072b2", "#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#999999")
HATCHES = ("", "//", "..", "xx", "\\\\", "--")
STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#222}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}div.wide{overflow-x:auto}
td,th{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left;white-space:nowrap}
img{max-width:100%}code{background:#f3f3f3;padding:0 .2em}
dl{display:grid;grid-template-columns:max-content 1fr;gap:0 1rem}
"""


GRID = (
    "series", "judge", "head", "payload", "window", "threshold", "hidden_bits", "uplink_mbps", "downlink_mbps",
    "rtt_ms", "per",
)  # fmt: skip
"""What rows of one method may differ in, besides results."""
SHORT = {
    "window": "K", "threshold": "θ", "hidden_bits": "b_h", "uplink_mbps": "up", "downlink_mbps": "down",
    "rtt_ms": "RTT", "per": "PER",
}  # fmt: skip


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write `report.html` and `plots/` into `out` from the files of the given run directories.

    Raises:
        BadInput: a directory that is no run directory, or no plotting library.
    """
    documents = [(run, read_summary(run)) for run in runs]
    plots = out / "plots"
    plots.mkdir(parents=True, exist_ok=True)
    parts = [_section(f"{i}-{run.name}", run, document, plots) for i, (run, document) in enumerate(documents, 1)]
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>testbed report</title><style>{STYLE}</style><h1>testbed report</h1>{''.join(parts)}</html>\n"
    )
    write_text(out / "report.html", page)
    return out / "report.html"


def _section(label: str, run: Path, document: Mapping[str, Any], plots: Path) -> str:
    rows = document["rows"]
    figures = {"latency": _latency_plot(rows), "acceptance": _acceptance_plot(run)}
    images = []
    for name, data in figures.items():
        if data is None:
            continue
        (plots / f"{label}-{name}.png").write_bytes(data)
        encoded = base64.b64encode(data).decode()
        images.append(f"<p><img alt='{name}' src='data:image/png;base64,{encoded}'>")
    return f"<h2>{html.escape(run.name)}</h2>{_facts(document)}{_table(rows)}{''.join(images)}"


def _facts(document: Mapping[str, Any]) -> str:
    host, config = document["host"], document["config"]
    facts = {
        "made": document["created"],
        "testbed": f"{document['testbed']}, commit {document['commit'] or 'unknown'}",
        "seed": document["seed"],
        "machine": f"{host.get('cpu', '')}, {host.get('cores', '?')} cores, {host.get('system', '')}",
        "processes": ", ".join(f"{k} {v}" for k, v in host.get("pids", {}).items()) or "–",
        "config": ", ".join(f"{k}={v}" for k, v in config.items() if v is not None),
    }
    return "<dl>" + "".join(f"<dt>{k}<dd>{html.escape(str(v))}" for k, v in facts.items()) + "</dl>"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    shown = [name for name in TABLE if any(row.get(name) is not None for row in rows)]
    head = "".join(f"<th>{name}" for name in shown)
    body = "".join("<tr>" + "".join(f"<td>{_cell(row.get(name))}" for name in shown) for row in rows)
    return f"<div class=wide><table><tr>{head}{body}</table></div>"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else html.escape(str(value))


def _latency_plot(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Mean latency of a request by method, its parts stacked."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.5 * len(rows)))
    names = row_names(rows)
    left = [0.0] * len(rows)
    for part, colour, hatch in zip(PARTS, COLOURS, HATCHES, strict=True):
        values = [row[part] * 1e3 for row in rows]
        label = part.removesuffix("_s")
        axes.barh(names, values, left=left, color=colour, hatch=hatch, edgecolor="white", label=label)
        left = [a + b for a, b in zip(left, values, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("mean latency of a request [ms]")
    axes.legend(ncols=6, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    return _png(figure)


def row_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each row: its method, and whatever else tells it from the others (a sweep's grid)."""
    methods = {row["method"] for row in rows}
    differing = [key for key in GRID if len({(row["method"], str(row.get(key))) for row in rows}) > len(methods)]
    return [", ".join([row["method"], *(f"{SHORT.get(k, k)} {_cell(row.get(k))}" for k in differing)]) for row in rows]


def _acceptance_plot(run: Path) -> bytes | None:
    """Share of rounds in which the token at each window position was accepted, by method."""
    import pyarrow.parquet as pq

    path = run / "rounds.parquet"
    if not path.exists():
        return None
    rounds = pq.read_table(path, columns=["method", "drafted", "accepted"]).to_pylist()
    methods = [m for m in dict.fromkeys(r["method"] for r in rounds) if m != "target-only"]
    if not methods:
        return None
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(8, 3.2))
    for method, colour, marker in zip(methods, itertools.cycle(COLOURS), itertools.cycle("osd^vxP"), strict=False):
        mine = [r for r in rounds if r["method"] == method]
        positions = range(1, max(r["drafted"] for r in mine) + 1)
        reached = [[r for r in mine if r["drafted"] >= p] for p in positions]
        shares = [sum(r["accepted"] >= p for r in at) / len(at) for p, at in zip(positions, reached, strict=True)]
        axes.plot(positions, shares, color=colour, marker=marker, label=method, alpha=0.8)
    axes.set_xlabel("position in the draft window")
    axes.set_ylabel("share of rounds accepted so far")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False)
    return _png(figure)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, bbox_inches="tight")
    _pyplot().close(figure)
    return buffer.getvalue()


def _pyplot() -> Any:
    try:
        import matplotlib as mpl
    except ImportError as exc:
        raise BadInput("plots need matplotlib: install the extra `lab`") from exc
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt
