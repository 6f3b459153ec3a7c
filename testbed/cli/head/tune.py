"""`testbed head tune`: θ of a decision head, chosen on calibration problems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from testbed.cli.options import AsJson, configured
from testbed.cli.output import note, print_json
from testbed.cli.tables import print_rows
from testbed.errors import BadInput
from testbed.experiments.head.config import Goal, TuneConfig

COLUMNS = {
    "rate_mbps": ("Mbit/s", "{:g}"), "rtt_ms": ("RTT ms", "{:g}"), "threshold": ("θ", "{:.4f}"),
    "accuracy": ("accuracy", "{:.3f}"), "lost": ("points lost", "{:+.2f}"), "error": ("±", "{:.2f}"),
    "limit": ("at most", "{:g}"), "aal": ("AAL", "{:.2f}"), "rounds": ("rounds", "{:.2f}"),
    "latency_s": ("latency s", "{:.3f}"),
}  # fmt: skip


Goals = Annotated[
    list[str] | None,
    typer.Option(
        help="MBPS,RTT_MS,POINTS: accuracy that may be lost on a channel, in percentage points; repeat for more. "
        "Default: 20,50,2 and 500,50,1.",
        rich_help_panel="Goals",
    ),
]


@configured(TuneConfig, leave=["goals"])
def tune(
    config: TuneConfig,
    head: Annotated[list[Path], typer.Argument(metavar="HEAD...", help="Directories of heads; each gets its θ.")],
    goal: Goals = None,
    as_json: AsJson = False,
) -> None:
    """Choose θ on calibration problems and store it in the head: the largest that meets the goals.

    A head that sees the channel gets one θ, a blind head one per channel. Use other problems than those of the
    training: --first skips them.

    Examples:

        testbed head tune runs/head --first 3000

        testbed head tune runs/head runs/blind --goal 20,50,2 --goal 500,50,1 --prompts 500 --json
    """
    from testbed.decision_head.head import load_head, save_head
    from testbed.experiments.head.tune import load_problems
    from testbed.experiments.head.tune import tune as tune_one

    if goal:
        config = msgspec.structs.replace(config, goals=tuple(_goal(text) for text in goal))
    heads = [(directory, load_head(directory)) for directory in head]
    problems = load_problems(config, note)
    documents: list[dict[str, Any]] = []
    try:
        for directory, loaded in heads:
            tuned, trials = tune_one(loaded, config, problems, note)
            save_head(tuned, directory)
            rows = [msgspec.to_builtins(trial) for trial in trials]
            documents.append({"head": str(directory), "thresholds": tuned.info.thresholds, "rows": rows})
            if not as_json:
                _show(documents[-1])
    finally:
        problems.models.close()
    if as_json:
        print_json({"rows": documents})


def _show(document: dict[str, Any]) -> None:
    """The trials of a head, under the θ chosen."""
    chosen = ", ".join(f"θ {value:g} at quality {quality:.3g}" for quality, value in document["thresholds"])
    print_rows(document["rows"], f"{document['head']}: {chosen}", COLUMNS)


def _goal(text: str) -> Goal:
    try:
        rate_mbps, rtt_ms, points = (float(part) for part in text.split(","))
    except ValueError as exc:
        raise BadInput(f"--goal takes MBPS,RTT_MS,POINTS such as 20,50,2, not {text!r}") from exc
    found = Goal(rate_mbps, rtt_ms, points)
    _ = found.csi  # refuses rates and RTTs that no channel has
    return found
