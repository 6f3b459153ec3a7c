"""`testbed sweep`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from testbed.cli.options import AsJson, completion
from testbed.cli.output import grid_columns, note, print_json
from testbed.cli.tables import print_rows
from testbed.errors import BadInput

if TYPE_CHECKING:
    from testbed.experiments.sweep.grid import Executor
    from testbed.experiments.sweep.points import SweepConfig

LINE_S = 10.0
"""Time between two lines where there is no terminal."""
WORKERS = "Concurrent virtual points. Default: 1; with ray, the cluster's cores."


File = Annotated[
    Path | None,
    typer.Argument(help="YAML: run (as for `demo`), grid; or a name of --list.", autocompletion=completion("sweeps")),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Replace a setting: prompts=5, grid.window=[4,8]; repeat."),
]


def sweep(
    file: File = None,
    out: Annotated[Path | None, typer.Option(help="Directory. Default: runs/NAME. Give it again to resume.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the bundled sweeps.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Check the file and list its points; run nothing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, with what is done; run nothing.")] = False,
    executor: Annotated[str, typer.Option(help="local: processes of this machine. ray: a Ray cluster.")] = "local",
    workers: Annotated[int | None, typer.Option(help=WORKERS)] = None,
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Run every combination of a grid; an interrupted sweep is resumed.

    Example file:

        {name: rates, run: {channel: "kind=virtual,profile=wisv,rtt_ms=50", methods: [greedy, fh], prompts: 50},
        grid: {window: [8, 16], rate_mbps: [20, 500]}}

    Beside grid: zip (lists whose values go together), series, exclude, include, repeats. Seeds count up from run.seed.

    Examples:

        testbed sweep --list

        testbed sweep wisv-table1 --dry-run

        testbed sweep rates.yaml

        testbed sweep rates.yaml --out runs/rates-2 --workers 4 --json

        testbed sweep wisv-table1 --set prompts=5 --set grid.window=[4,8] --out runs/small
    """
    from testbed.experiments.sweep.grid import Executor

    if list_:
        if file is not None:
            raise BadInput(f"--list names all sweeps: leave out {file}, or take --check or --dry-run")
        _print_list(as_json)
        return
    config, how = _config(file, set_ or ()), Executor(executor, workers)
    act = _print_points if check else _print_plan if dry_run else _run
    act(config, out or Path("runs") / config.name, how, as_json)


def _config(file: Path | None, given: Sequence[str]) -> SweepConfig:
    from testbed.experiments.sweep.files import find_sweep
    from testbed.experiments.sweep.points import load_sweep, with_settings

    if file is None:
        raise BadInput("which sweep? give a YAML file, or a name of testbed sweep --list")
    return with_settings(load_sweep(find_sweep(file), pipes=True), given)


def _run(config: SweepConfig, directory: Path, how: Executor, as_json: bool) -> None:
    from testbed.experiments.results.traffic import by_meaning
    from testbed.experiments.sweep.grid import run_sweep

    with _Bar(config.name) as bar:
        document = run_sweep(config, directory, bar.told, how)
    if as_json:
        print_json(document)
        return
    rows = list(map(by_meaning, document["rows"]))
    print_rows(rows, f"{config.name}: {len(rows)} rows", grid_columns(rows))
    state = "wrote" if bar.ran else "nothing left to run in"
    note(f"{state} {directory}; testbed report {directory} makes tables and plots of it")


def _print_list(as_json: bool) -> None:
    from testbed.assets.bundled_files import folder
    from testbed.experiments.sweep.files import sweep_files

    found = sweep_files()
    if as_json:
        print_json({"folder": str(folder("sweeps")), "sweeps": [{**s._asdict(), "path": str(s.path)} for s in found]})
        return
    for one in found:
        print(f"{one.name}\n    {one.about}\n    {one.command}")
    note(f"from {folder('sweeps')}")


def _print_points(config: SweepConfig, directory: Path, how: Executor, as_json: bool) -> None:
    from testbed.experiments.sweep.points import points

    found = points(config)
    how.check(found)
    if as_json:
        print_json({"points": [{"key": point.key, **point.values} for point in found]})
        return
    for point in found:
        print(point.key, ", ".join(f"{k}={v}" for k, v in point.values.items()))


def _print_plan(config: SweepConfig, directory: Path, how: Executor, as_json: bool) -> None:
    from testbed.experiments.sweep.grid import done
    from testbed.experiments.sweep.points import points, values_text

    found = points(config)
    how.check(found)
    plan = [(point, done(point, directory)) for point in found]
    left = [point for point, whole in plan if not whole]
    requests = sum(point.config.prompts * len(point.config.methods) for point in left)
    if as_json:
        rows = [{"key": p.key, "done": whole, "virtual": p.channel.is_virtual, **p.values} for p, whole in plan]
        print_json({"out": str(directory), "points": rows, "left": len(left), "requests": requests})
        return
    for point, whole in plan:
        print(point.key, "done" if whole else "to do", values_text(point.values))
    real = sum(not point.channel.is_virtual for point in left)
    kinds = f"{len(left) - real} in virtual time, {real} in real time"
    print(f"{directory}: {len(found)} points, {len(left)} to run ({kinds}), {requests} requests")


class _Bar:
    """Points done and the time left: a bar on a terminal, a line every `LINE_S` elsewhere."""

    def __init__(self, name: str) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._bar = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
        self._task = self._bar.add_task(name, total=None, left="")
        self._began = self._first = 0.0
        self.ran = False
        """Whether a point was run."""
        self._said = time.monotonic()

    def __enter__(self) -> _Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def told(self, done: int, total: int, text: str) -> None:
        """Callback of `run_sweep`."""
        now = time.monotonic()
        if not text:
            self._began, self._first = now, done
        self.ran = done > self._first
        left = time_left(done - self._first, total - done, now - self._began)
        self._bar.update(self._task, description=text or None, completed=done, total=total, left=left)
        if self._bar.disable and now - self._said >= LINE_S:
            self._said = now
            note(f"{done} of {total} points" + (f", {left}" if left else ""))


def time_left(ran: float, left: float, elapsed_s: float) -> str:
    """Estimated time of the remaining points; empty before the first point ended."""
    if not ran or not left:
        return ""
    minutes, seconds = divmod(round(elapsed_s / ran * left), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02} left"
