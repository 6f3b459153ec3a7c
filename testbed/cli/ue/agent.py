"""`testbed ue agent`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.options import ReadyJson
from testbed.cli.output import note, print_json

Keys = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Keys of lab machines, made here by `testbed keys new`.")
]
BsKeys = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Keys of this UE for base stations (`testbed keys new --ue`). Default: KEYS/bs, if it exists.",
    ),
]


def agent(
    listen: Annotated[str, typer.Option(help="Address on which lab machines connect.")] = "tcp://127.0.0.1:5556",
    keys: Keys = None,
    bs_keys: BsKeys = None,
    workdir: Annotated[Path, typer.Option(help="Directory of files, orders and results.")] = Path("agent"),
    insecure: Annotated[bool, typer.Option("--insecure", help="Talk beyond loopback without keys.")] = False,
    carry_out: Annotated[str | None, typer.Option(hidden=True, help="Do this order of the workdir, and end.")] = None,
    as_json: ReadyJson = False,
) -> None:
    """Execute the orders of a lab machine (`testbed field`), and keep the results until it collects them.

    An order is a measurement or a run, never a command. Losing the lab machine changes nothing; killed and started
    again, the agent goes on where it was.

    Examples:

        testbed ue agent

        testbed keys new agent-keys && testbed keys new agent-keys --ue lab

        testbed ue agent --listen tcp://0.0.0.0:5556 --keys agent-keys --bs-keys orin-1 --workdir /var/lib/testbed
    """
    from testbed.experiments.agent.serve import AgentSetup, run_agent
    from testbed.experiments.agent.work import carry_out as do

    if carry_out is not None:
        do(workdir, carry_out, str(bs_keys) if bs_keys else None, insecure, note)
        return

    def ready(address: str) -> None:
        if as_json:
            print_json({"ready": True, "listen": address, "pid": os.getpid()})
        else:
            note(f"waiting for orders on {address} (pid {os.getpid()}); Ctrl-C stops it")

    if bs_keys is None and keys is not None and (keys / "bs").is_dir():
        bs_keys = keys / "bs"
    setup = AgentSetup(listen, workdir, str(keys) if keys else None, str(bs_keys) if bs_keys else None, insecure)
    run_agent(setup, ready, note)
