"""`testbed optim`: bandwidth, batches and window of a cell that serves many users."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli.optim import figures as optim_figures
from testbed.cli.optim import fit as optim_fit
from testbed.cli.optim import run as optim_run
from testbed.cli.optim import window
from testbed.cli.options import AsJson, completion
from testbed.cli.output import print_json
from testbed.cli.screens import CommandGroup
from testbed.cli.tables import TableCommand
from testbed.errors import BadInput

if TYPE_CHECKING:
    from testbed.optim.tasks import Problem

HELP = "Bandwidth, batches and window of a cell that serves many users by speculative decoding."
app = CommandGroup(no_args_is_help=True, help=HELP)
POLICIES = "optimal, uniform, proportional-fair or max-min."
Tasks = Annotated[Path, typer.Option("--tasks", help="JSON file: tasks, link, models, hardware.")]
Policy = Annotated[str, typer.Option("--bandwidth", help=POLICIES, autocompletion=completion("bandwidth policies"))]
Algorithm = Annotated[
    str,
    typer.Option(
        help="best (ours), dp (the paper's), no-pipeline, no-batching, fixed-window, static, max, heuristic or "
        "autoregressive (window 0).",
        autocompletion=completion("algorithms"),
    ),
]
Window = Annotated[int | None, typer.Option(help="Tokens drafted per step. Default: the best number.")]
LISTED = 20
"""Batches that are shown one by one."""


@app.callback()
def group() -> None:
    """Bandwidth, batches and window of a cell that serves many users by speculative decoding."""


@app.command()
def bandwidth(
    tasks: Tasks,
    policy: Annotated[str, typer.Option(help=POLICIES, autocompletion=completion("bandwidth policies"))] = "optimal",
    as_json: AsJson = False,
) -> None:
    """Share the uplink's bandwidth so that all uploads end at the same time, the optimum (edge SD batching, eq. 27).

    `testbed optim plan --help` shows the file.

    Examples:

        testbed optim bandwidth --tasks cell.json

        testbed optim bandwidth --tasks cell.json --policy uniform --json
    """
    from testbed.optim.tasks import allocation, load_problem

    problem = load_problem(tasks)
    found = allocation(problem, policy)
    if as_json:
        print_json(found)
        return
    print(f"communication  {found['communication_s']:.4f} s")
    for k, (task, share) in enumerate(zip(problem.tasks, found["bandwidth"], strict=True)):
        print(f"task {k}  {task.input_tokens} tokens  {100 * share:.4f} %")


@app.command()
def plan(
    tasks: Annotated[Path | None, typer.Option("--tasks", help="JSON file: tasks, link, models, hardware.")] = None,
    run: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Run of a cell, in place of a file: tasks are its UEs.")
    ] = None,
    window: Window = None,
    algorithm: Algorithm = "best",
    policy: Policy = "optimal",
    as_json: AsJson = False,
) -> None:
    """Choose window, batches and bandwidth for the least total latency (edge SD batching, problem P).

    Batches are in the order of the pipeline, tasks in that of the file, from 0.

    Examples:

        testbed optim plan --tasks cell.json --algorithm dp --window 4 --json

        testbed optim plan --from runs/cell --json

    With --from, spectral efficiencies, lengths, acceptance and bytes of a request are those that the run measured, UEs
    draft for themselves, and the window is the run's unless --window is given. Tasks of a file may have output_tokens
    and upload_bits; with "drafting": "ues" each UE drafts.

    The file (null or no `bits_per_token`: 16 bits for each element of both models' embeddings):

        {"bandwidth_hz": 2e7, "noise_w": 2.5e-14, "tasks": [{"input_tokens": 120, "power_w": 0.2, "gain": 1e-9}],
        "bits_per_token": null, "draft_model": {"layers": 22, "hidden": 2048, "ffn": 5632}, "verify_model": {"layers":
        32, "hidden": 4096, "ffn": 11008}, "cost": {"c1_draft": 4.11e-13, "c2_draft": 5.6e-4, "c1_verify": 2.08e-14,
        "c2_verify": 1.28e-2}, "memory_bytes": 16e9, "max_output_tokens": 2048, "alpha": 0.8, "max_window": 10}
    """
    from testbed.optim.tasks import plan as planned

    problem, window = _problem(tasks, run, window)
    found = planned(problem, algorithm, window, policy)
    if as_json:
        print_json(found)
    else:
        _show_plan(found)


def _problem(tasks: Path | None, run: Path | None, window: int | None) -> tuple[Problem, int | None]:
    """The problem of a file or of a cell's run, and the window: that of the run unless one is given."""
    from testbed.experiments.cell.planning import problem_of
    from testbed.optim.tasks import load_problem

    if tasks is not None and run is None:
        return load_problem(tasks), window
    if run is None or tasks is not None:
        raise BadInput("give either --tasks FILE or --from DIR")
    problem, used = problem_of(run)
    return problem, used if window is None else window


def _show_plan(found: Mapping[str, Any]) -> None:
    print(f"window         {found['window']}")
    print(f"latency        {found['latency_s']:.4f} s")
    print(f"communication  {found['communication_s']:.4f} s")
    print(f"inference      {found['inference_s']:.4f} s")
    print(f"batches        {len(found['batches'])}")
    for batch in found["batches"][:LISTED]:
        print(f"  {len(batch)}: {' '.join(map(str, batch))}")
    if len(found["batches"]) > LISTED:
        print(f"  and {len(found['batches']) - LISTED} more (--json has them all)")


app.command("fit", cls=TableCommand)(optim_fit.fit)
app.command("figures", cls=TableCommand)(optim_figures.figures)
app.command("run", cls=TableCommand)(optim_run.run)
app.command("window", cls=TableCommand)(window.window)
