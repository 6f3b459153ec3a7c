"""`testbed demo`: a BS and a UE as processes on this machine, every method, one table, one run directory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.bs.engines import ENGINES
from testbed.config import BFLOAT16_TIE, DemoConfig, resolved, save
from testbed.errors import BadInput, GateError
from testbed.experiments import results
from testbed.experiments.datasets import load_dataset
from testbed.experiments.processes import base_station, user_equipment
from testbed.experiments.report import write_report
from testbed.models.bundle import bundled
from testbed.ue.run import check_method
from testbed.ue.window import FixedWindow


def run_demo(config: DemoConfig, out: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the demo and write its run directory; returns the document of `summary.json`.

    Raises:
        BadInput: anything in the configuration that cannot be used; nothing was started then.
        GateError: an output of a strict method differs from the target's own.
    """
    _check(config)
    with tempfile.TemporaryDirectory(prefix="testbed-") as scratch:
        local = f"ipc://{scratch}/bs.sock"
        say(f"starting the base station ({config.engine})")
        with base_station(_bs_arguments(config, local)) as ready:
            bind = ready["bind"].split(",")[0]
            say(f"base station ready on {bind} (pid {ready['pid']}); starting the user equipment")
            document, ue_pid = user_equipment(_ue_arguments(config, bind, local, out))
    pids = {"bs": ready["pid"], "ue": ue_pid, "demo": os.getpid()}
    host = {**results.host(), "pids": pids}
    save(config, out / "config.yaml")
    summary = results.summary(resolved(config), config.seed, host, document["rows"])
    results.write_summary(out, summary)
    write_report([out], out)
    lossy = [row["method"] for row in summary["rows"] if row["lossless"] is False]
    if lossy and config.threshold == 0:
        raise GateError(f"outputs of {', '.join(lossy)} differ from the target's own; see {out}/requests.parquet")
    return summary


def _check(config: DemoConfig) -> None:
    """Refuse what cannot run, before anything is started."""
    for method in config.methods:
        check_method(method)
    FixedWindow(config.window)
    if config.engine not in ENGINES:
        raise BadInput(f"unknown engine {config.engine!r}; known: {', '.join(ENGINES)}")
    if config.drafter and not config.model:
        raise BadInput("a drafter of your own needs its target: give --model too")
    if config.channel != "kind=none":
        raise BadInput(f"unknown channel {config.channel!r}; known: kind=none")
    load_dataset(config.dataset, config.prompts)


def _bs_arguments(config: DemoConfig, local: str) -> list[str]:
    model = config.model or str(bundled().require("target"))
    arguments = ["--engine", config.engine, "--bind", f"tcp://127.0.0.1:*,{local}", "--dtype", config.dtype]
    return arguments if config.engine == "synthetic" else [*arguments, "--model", model]


def _ue_arguments(config: DemoConfig, bind: str, local: str, out: Path) -> list[str]:
    tolerance = config.tie_tolerance
    if tolerance is None:
        tolerance = 0.0 if config.dtype == "float32" else BFLOAT16_TIE
    arguments = [
        "--bs", bind, "--local-bs", local, "--protocol", ",".join(config.methods), "--window", str(config.window),
        "--dataset", config.dataset, "--limit", str(config.prompts), "--max-tokens", str(config.max_tokens),
        "--threshold", str(config.threshold), "--tie-tolerance", str(tolerance),
        "--seed", str(config.seed), "--out", str(out),
    ]  # fmt: skip
    if config.drafter:
        arguments += ["--drafter", config.drafter, "--tokenizer", str(config.model)]
    return arguments
