"""`testbed optim run`: a plan carried out by two processes behind a shared uplink."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from testbed.cli.options import AsJson, configured
from testbed.cli.output import note, print_json
from testbed.cli.tables import print_table
from testbed.experiments.edge.config import PipelineConfig


@configured(PipelineConfig)
def run(
    config: PipelineConfig,
    out: Annotated[Path, typer.Option(metavar="DIR", help="New directory for the run.")],
    cost: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON of `optim fit`. Default: a quick fit, made first.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Execute a plan: users upload prompts through a relay at their shares, inference starts at the last arrival, and
    two processes decode the batches, one drafting the next while the other verifies.

    Every output is compared with the target's own. Writes plan.json, uploads.csv, steps.csv (measured times beside the
    model's), runs.csv and summary.json. Both nodes need a core of their own.

    Examples:

        testbed optim run --cost runs/fit/fit.json --out runs/pipeline

        testbed optim run --tasks 32 --window 4 --modes pipeline,sequential --out runs/pipeline --json
    """
    from testbed.experiments.edge.pipeline_run import run as carry_out

    document = carry_out(config, _cost(config, cost), out, note)
    if as_json:
        print_json(document)
        return
    _show(document)


def _cost(config: Any, path: Path | None) -> Any:
    """Coefficients of a file, or of a fit made now."""
    from testbed.experiments.edge.fit import read_cost
    from testbed.experiments.edge.pipeline_run import quick_cost

    if path is not None:
        return read_cost(path)
    note("no --cost: fitting c1 and c2 first, on a small grid")
    return quick_cost(config)


def _show(document: Mapping[str, Any]) -> None:
    for policy, row in document["uploads"].items():
        print(f"last upload, {policy} shares: {row['communication_s']:.3f} s (model {row['model_s']:.3f} s)")
    plan = document["plan"]
    print(
        f"plan: window {plan['window']}, {len(plan['batches'])} batches, inference {plan['inference_s']:.3f} s by model"
    )
    table = Table()
    for header in (
        "mode",
        "inference s",
        "least … largest",
        "eqs. 20–22 s",
        "CPU times",
        "model s",
        "α",
        "tokens",
        "lossless",
    ):
        table.add_column(header, justify="left" if header == "mode" else "right", no_wrap=True)
    for mode, row in document["modes"].items():
        cells = [row.get(key) for key in ("recursion_s", "recursion_cpu_s", "model_s", "acceptance_cond")]
        table.add_row(
            mode, f"{row['inference_s']:.3f}", f"{row['least_s']:.3f} … {row['largest_s']:.3f}",
            *("–" if cell is None else f"{cell:.3f}" for cell in cells), str(row["tokens"]), str(row["lossless"]),
        )  # fmt: skip
    print_table(table)
    for key, what in (("model", "time"), ("model_cpu", "CPU time")):
        for node, scores in document[key].items():
            print(
                f"{node} steps, {what} beside the model: R² {scores['r2']:.3f}, MAPE {scores['mape']:.1%}, "
                f"model / measured {scores['ratio']:.2f}, n = {scores['steps']}"
            )
