"""`testbed demo`."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.options import OUTPUT, AsJson, configured
from testbed.cli.output import COLUMNS, note, print_json
from testbed.cli.tables import print_rows
from testbed.config import DemoConfig
from testbed.errors import BadInput


@configured(DemoConfig)
def demo(
    config: DemoConfig,
    out: Annotated[
        Path | None, typer.Option(help="Run directory. Default: runs/demo-TIME.", rich_help_panel=OUTPUT)
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the unfinished demo in --out.", rich_help_panel=OUTPUT)
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start a BS (vLLM) and a UE (llama.cpp) on loopback and decode bundled problems by every method.

    Examples:

        testbed demo

        testbed demo --prompts 50 --window 16 --methods target-only,greedy,sh --out runs/mine

        testbed demo --channel kind=proxy,uplink_mbps=20,downlink_mbps=20,rtt_ms=50

        testbed demo --channel kind=virtual,uplink_mbps=20,downlink_mbps=20,rtt_ms=50,profile=wisv

        testbed demo --methods target-only,greedy,fh,sh --threshold 0.75 --head runs/head
    """
    from testbed.experiments.results.traffic import by_meaning
    from testbed.experiments.runs.demo import run_demo
    from testbed.protocols.methods import check_temperature
    from testbed.ue.run import sampling_of

    check_temperature(sampling_of(config), config.methods)
    if resume and out is None:
        raise BadInput("--resume needs --out DIR, the directory of the demo to resume")
    directory = out or Path("runs") / f"demo-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    summary = run_demo(config, directory, note, resume)
    if as_json:
        print_json(summary)
        return
    pids = summary["host"]["pids"]
    where = f"BS pid {pids['bs']}, UE pid {pids['ue']}" if "bs" in pids else "virtual time"
    rows = list(map(by_meaning, summary["rows"]))
    print_rows(rows, f"{config.prompts} prompts, window {config.window}; {where}", COLUMNS)
    note(f"wrote {directory}; open {directory}/report.html")
