"""Compares the latencies of one workload over the relay, over tc and in virtual time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.channel.spec import parse_channel
from testbed.config import DemoConfig
from testbed.errors import BadInput
from testbed.experiments.runs.demo import run_demo

WAYS = ("proxy", "virtual", "tc")


def agree(channel: str, prompts: int, out: Path | None, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Decode the same prompts with every method over each kind of link; returns one row per method and kind, with the
    relative difference from the relay.

    A kind that is not available on this machine has the reason in `note` and no latency.

    Args:
        channel: channel specification without its kind.

    Raises:
        BadInput: an invalid channel.
        TestbedError: a run failed.
    """
    parse_channel(f"kind=proxy,{channel}")
    latencies: dict[str, dict[str, float]] = {}
    notes: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="testbed-") as scratch:
        for way in WAYS:
            config = DemoConfig(prompts=prompts, channel=f"kind={way},{channel}")
            try:
                summary = run_demo(config, (out or Path(scratch)) / way, say)
            except BadInput as exc:
                if way == "proxy":
                    raise
                notes[way] = str(exc)
                continue
            latencies[way] = {row["method"]: row["latency_s"] for row in summary["rows"]}
    return [_row(method, way, latencies, notes) for method in latencies["proxy"] for way in WAYS]


def _row(method: str, way: str, latencies: dict[str, dict[str, float]], notes: dict[str, str]) -> dict[str, Any]:
    latency_s = latencies.get(way, {}).get(method)
    difference = None if latency_s is None else latency_s / latencies["proxy"][method] - 1
    return {
        "method": method, "link": way, "latency_s": latency_s, "difference": difference, "note": notes.get(way, ""),
    }  # fmt: skip
