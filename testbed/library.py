"""The testbed as a library: run, sweep, load and plot, by the code that the command line uses.

    import testbed

    run = testbed.run(testbed.DemoConfig(channel="kind=virtual,uplink_mbps=20,rtt_ms=50,profile=wisv"))
    run.rows.select("method", "aal", "latency_s")
    testbed.plot(run, "latency")

All names here are imported as `testbed.NAME`. Nothing is loaded before one of them is used.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from testbed.config import DemoConfig, RunConfig, ServeConfig
from testbed.config import load as load_config
from testbed.errors import BadInput, TestbedError
from testbed.experiments.report.data import POINTS, Shown, shown_of
from testbed.experiments.results.files import REQUESTS, ROUNDS, read_requests, read_rounds
from testbed.experiments.sweep.points import SweepConfig
from testbed.options import C

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

__all__ = [
    "BadInput",
    "DemoConfig",
    "Run",
    "RunConfig",
    "ServeConfig",
    "SweepConfig",
    "TestbedError",
    "load",
    "plot",
    "run",
    "sweep",
]

T = TypeVar("T")


class Run:
    """A finished run or sweep, read from its directory.

    Attributes:
        path: the directory, with the files that `docs/reference/files.md` describes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._shown: Shown = shown_of(path, path.resolve().name)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {len(self._shown.rows)} rows)"

    @property
    def summary(self) -> dict[str, Any]:
        """The document of `summary.json`: version, commit, seed, host, configuration and rows."""
        return dict(self._shown.document)

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        return dict(self._shown.document["config"])

    @cached_property
    def rows(self) -> pl.DataFrame:
        """One row a method; of a sweep, one a method and point. `rows.to_pandas()` gives a pandas table."""
        table: pl.DataFrame = _polars().DataFrame(self._shown.rows, infer_schema_length=None)
        return table

    @cached_property
    def rounds(self) -> pl.DataFrame:
        """One row a round: drafted, accepted and committed tokens, bytes, times in seconds and the CSI; of a sweep
        with the column `point`.

        Raises:
            BadInput: the run wrote no rounds.
        """
        return self._table(ROUNDS, read_rounds)

    @cached_property
    def requests(self) -> pl.DataFrame:
        """One row a request and method: token ids, text, latency in seconds, whether it is lossless; of a sweep with
        the column `point`.

        Raises:
            BadInput: the run wrote no requests.
        """
        return self._table(REQUESTS, read_requests)

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the figures that `plot` can draw of it."""
        return tuple(_figures(self._shown))

    def report(self, out: Path | str | None = None) -> Path:
        """Write `report.html`, `plots/` and `tables/`; into its own directory unless `out` names another."""
        from testbed.experiments.report.page import write_report

        return write_report([self.path], Path(out) if out else self.path)

    def _table(self, name: str, read: Callable[[Path], Any]) -> pl.DataFrame:
        points = sorted({str(row["point"]) for row in self._shown.rows if row.get("point")})
        folders = {point: self.path / POINTS / point for point in points} or {"": self.path}
        missing = [str(folder) for folder in folders.values() if not (folder / name).exists()]
        if missing:
            raise BadInput(f"there is no {name} in {', '.join(missing)}")
        polars = _polars()
        tables = [(point, polars.from_arrow(read(folder))) for point, folder in folders.items()]
        found: pl.DataFrame = polars.concat(
            [table.with_columns(polars.lit(point).alias("point")) if point else table for point, table in tables]
        )
        return found


def run(
    config: DemoConfig | RunConfig | Mapping[str, Any] | Path | str = DemoConfig(),  # noqa: B008
    out: Path | str | None = None,
) -> Run:
    """Run once, and return what it left behind.

    Args:
        config: a `DemoConfig` (base station and UE on this machine, or in virtual time where its channel is of kind
            `virtual`), a `RunConfig` (a UE with a base station that serves already), a mapping with the keys of a
            `DemoConfig`, or a YAML file of one.
        out: directory; by default `runs/demo-TIME` or `runs/ue-TIME`.

    Raises:
        BadInput: a configuration that cannot be used; nothing was started then.
        GateError: an output of a lossless method differs from the target's own; the directory is written.
    """
    chosen: DemoConfig | RunConfig = config if isinstance(config, RunConfig) else _config(DemoConfig, config)
    kind = "ue" if isinstance(chosen, RunConfig) else "demo"
    directory = Path(out) if out else Path("runs") / f"{kind}-{datetime.datetime.now():%Y%m%d-%H%M%S-%f}"
    _outside_a_loop(lambda: _run(chosen, directory))
    return Run(directory)


def sweep(
    config: SweepConfig | Mapping[str, Any] | Path | str,
    out: Path | str | None = None,
    *,
    executor: str = "local",
    workers: int | None = None,
) -> Run:
    """Run what is not done yet of a grid of runs, and return the whole.

    Args:
        config: a `SweepConfig`, a mapping with its keys, a YAML file, or the name of a bundled sweep.
        out: directory; by default `runs/NAME`. The same configuration resumes there.
        executor: `local` or `ray`.
        workers: points that run at once; only for runs in virtual time.

    Raises:
        BadInput: a point that cannot run, or a directory of another sweep.
        GateError: a point that had to be lossless was not; the others ran.
    """
    from testbed.experiments.sweep.files import find_sweep
    from testbed.experiments.sweep.grid import Executor, run_sweep

    if isinstance(config, str | Path):
        config = find_sweep(Path(config))
    chosen = _config(SweepConfig, config)
    directory = Path(out) if out else Path("runs") / chosen.name
    _outside_a_loop(lambda: run_sweep(chosen, directory, lambda *_: None, Executor(executor, workers)))
    return Run(directory)


def load(path: Path | str) -> Run:
    """Read the directory of a run or a sweep that has ended.

    Raises:
        BadInput: no `summary.json` there, or one of a newer version.
    """
    return Run(Path(path))


def plot(run: Run, figure: str = "latency") -> Figure:
    """Draw a figure of the report.

    Args:
        figure: one of `run.figures`, such as `latency`.

    Raises:
        BadInput: a figure that the run's rows do not allow; the message lists those that they do.
    """
    import matplotlib as mpl

    from testbed.experiments.plots.style import SETTINGS

    known = _figures(run._shown)
    if figure not in known:
        raise BadInput(f"no figure {figure!r} of this run; known: {', '.join(known) or 'none'}")
    with mpl.rc_context(SETTINGS):
        drawn: Figure = known[figure]()
    return drawn


# ---------------------------------------------------------------- helpers


def _config(kind: type[C], given: C | Mapping[str, Any] | Path | str) -> C:
    if isinstance(given, kind):
        return given
    if isinstance(given, str | Path):
        return load_config(kind, Path(given), pipes=True)
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as exc:
        raise BadInput(f"{kind.__name__}: {exc}") from exc


def _run(config: DemoConfig | RunConfig, directory: Path) -> None:
    from testbed.experiments.runs.demo import run_demo
    from testbed.experiments.runs.uerun import run_ue

    if isinstance(config, RunConfig):
        run_ue(config, None, directory)
    else:
        run_demo(config, directory, lambda _: None)


def _outside_a_loop(work: Callable[[], T]) -> T:
    """Call in this thread, or in another one where this one runs an event loop, as notebooks do."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1, thread_name_prefix="testbed") as thread:
        return thread.submit(work).result()


def _figures(shown: Shown) -> dict[str, Callable[[], Any]]:
    from testbed.experiments.report.figures import figures
    from testbed.experiments.report.intervals import with_intervals

    if not shown.speculates:
        return {}
    intervals = with_intervals(shown.parts, shown.config)
    return {found.name: found.draw for found in figures(shown, intervals)}


def _polars() -> Any:
    try:
        import polars
    except ModuleNotFoundError as exc:
        raise BadInput("tables need polars: install the extra `lab`") from exc
    return polars
