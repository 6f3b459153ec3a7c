"""Rows of a run as in the leaderboard of KubeEdge Ianvs, `all_rank.csv`.

Source: kubeedge/ianvs, class `Rank` of its story manager, separated by spaces; metrics by the names and units of its
example of cloud-edge collaborative inference for LLMs.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from testbed.experiments.exports.rows import ExportedRow
from testbed.protocols.methods import run_method
from testbed.table_text import plain_cell

FILE = "all_rank.csv"
PARADIGM = "jointinference"
HYPERPARAMETERS = (
    "window",
    "window_rule",
    "threshold",
    "lookahead",
    "temperature",
    "uplink_mbps",
    "downlink_mbps",
    "rtt_ms",
)
"""Settings of a row that become hyperparameters of the drafter's module."""


def table(exported: Sequence[ExportedRow], about: Mapping[str, Any]) -> str:
    """The leaderboard, fastest first.

    Args:
        about: `target`, `drafter`, `created` and `path` of the run.
    """
    ordered = sorted(exported, key=lambda one: float(one.latency_s.mean()))
    rows = [_row(one, about) for one in ordered]
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=" ", lineterminator="\n")
    writer.writerow(["rank", *rows[0]])
    writer.writerows([rank, *map(_cell, row.values())] for rank, row in enumerate(rows, 1))
    return buffer.getvalue()


def _row(one: ExportedRow, about: Mapping[str, Any]) -> dict[str, Any]:
    row, method = one.row, run_method(str(one.row["method"]))
    at_edge = method.drafts and not method.on_bs
    accuracy = row.get("accuracy")
    return {
        "algorithm": one.name,
        "Accuracy": None if accuracy is None else 100 * accuracy,
        "Time to First Token": float(one.ttft_s.mean()),
        "Throughput": float(one.tokens.sum()) / one.duration_s,
        "Internal Token Latency": float(np.mean(one.tpot_s)) if one.tpot_s.size else None,
        "Cloud Prompt Tokens": int(one.prompt_tokens.sum()),
        "Cloud Completion Tokens": int(one.tokens.sum()),
        "Edge Prompt Tokens": int(one.prompt_tokens.sum()) if at_edge else 0,
        "Edge Completion Tokens": one.drafted if at_edge else 0,
        "Acceptance Rate": row.get("acceptance"),
        "Mean Acceptance Length": row.get("mean_acceptance_length"),
        "Uplink Bytes per Token": row.get("uplink_bytes_per_token"),
        "Joules per Token": row.get("energy_per_token_j"),
        "paradigm": PARADIGM,
        "edgemodel": about["drafter"],
        "cloudmodel": about["target"],
        **{f"edgemodel-{name}": row.get(name) for name in HYPERPARAMETERS},
        "time": about["created"],
        "url": about["path"],
    }


def _cell(value: Any) -> Any:
    """A cell; empty ones as pandas reads them in a line divided by spaces."""
    return "nan" if value is None else plain_cell(value)
