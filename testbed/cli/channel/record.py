"""`testbed channel record`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.channel.trace import write_trace
from testbed.cli.options import AsJson, Force, refuse_to_overwrite
from testbed.cli.output import note, print_json

if TYPE_CHECKING:
    from testbed.experiments.links.recording import TraceRecording


def record(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Directory that a run wrote.")],
    out: Annotated[Path | None, typer.Option(help="Trace to write; default: RUN_DIR/trace.csv.")] = None,
    interval_s: Annotated[float, typer.Option("--interval", help="Seconds a sample.")] = 1.0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Turn the channel state that a run saw into a link trace, which can be replayed.

    Examples:

        testbed channel record runs/walk --out walk.csv

        testbed channel record runs/walk --interval 0.2 --force --json
    """
    from testbed.experiments.links.recording import record as resample

    path = out or run_dir / "trace.csv"
    refuse_to_overwrite([path], force)
    recording = resample(run_dir, interval_s)
    write_trace(path, recording.trace, [f"testbed channel record {run_dir.resolve().name}", *recording.header])
    if as_json:
        print_json({"trace": str(path), **_document(recording)})
        return
    for start_s, end_s in recording.gaps:
        note(f"no round from {start_s:g} to {end_s:g} s: the state before is held")
    if recording.without:
        note(f"{recording.without} rounds knew nothing of their channel")
    print(f"{path}: {len(recording.trace)} samples of {interval_s:g} s from {recording.rounds} rounds")


def _document(recording: TraceRecording) -> dict[str, Any]:
    """The JSON answer, without the path."""
    return {
        "samples": len(recording.trace),
        "interval_s": recording.interval_s,
        "duration_s": recording.trace.duration_s,
        "rounds": recording.rounds,
        "rounds_without": recording.without,
        "sources": recording.sources,
        "gaps": recording.gaps,
        "means": recording.trace.means(),
    }
