"""Writes the evaluation of a decision head: a JSON document, two tables and two plots."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from testbed.decision_head.evaluate import Evaluation
from testbed.errors import BadInput
from testbed.experiments.plots.style import COLOURS, canvas, series_styles


def write_evaluation(found: Evaluation, directory: Path) -> list[Path]:
    """Write `eval.json`, `reliability.csv`, `operating.csv`, `reliability.png` and `roc.png`.

    Raises:
        BadInput: matplotlib is missing, or the directory is not writable.
    """
    document = found.document
    contents = {
        "eval.json": json.dumps(document, indent=2, allow_nan=False).encode() + b"\n",
        "reliability.csv": _csv(document["reliability"]),
        "operating.csv": _csv(document["operating"]),
        "reliability.png": _png(_reliability(document["reliability"])),
        "roc.png": _png(_roc(found)),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (directory / name).write_bytes(content)
    except OSError as exc:
        raise BadInput(f"cannot write into {directory}: {exc.strerror or exc}") from exc
    return [directory / name for name in contents]


def _csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _reliability(rows: list[dict[str, float]]) -> Any:
    """Observed critical fraction over predicted probability, labelled with the number of mismatches."""
    figure, axes = _axes("predicted probability", "critical fraction")
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":")
    axes.plot([row["predicted"] for row in rows], [row["observed"] for row in rows], "o-", color=COLOURS[0])
    for row in rows:
        axes.annotate(f"{row['count']:.0f}", (row["predicted"], row["observed"]), (4, -10), textcoords="offset points")
    return figure


def _roc(found: Evaluation) -> Any:
    """Accepted critical over accepted harmless mismatches for varying θ, one line per channel, and the digit rule."""
    from sklearn.metrics import roc_curve

    figure, axes = _axes("harmless mismatches accepted", "critical mismatches accepted")
    both = 0 < found.critical.sum() < len(found.critical)
    for (name, p), style in zip(found.p.items() if both else (), series_styles(), strict=False):
        rejected, caught, _ = roc_curve(found.critical, p)
        axes.plot(1 - rejected, 1 - caught, color=style.colour, linestyle=style.dash, label=f"head, {name}")
    rule = found.document["digits"]
    if both and rule is not None:
        axes.plot(rule["harmless_accepted"], rule["critical_accepted"], "x", color="black", label="digit rule")
    if both:
        axes.legend()
    return figure


def _axes(x: str, y: str) -> tuple[Any, Any]:
    figure, axes = canvas(width=5.1, height=4.2)
    axes[0, 0].set_xlabel(x)
    axes[0, 0].set_ylabel(y)
    return figure, axes[0, 0]


def _png(figure: Any) -> bytes:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    return drawn.getvalue()
