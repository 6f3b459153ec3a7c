"""Run directories: reading and writing of result files."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed import __version__
from testbed.channel.csi import Csi
from testbed.errors import BadInput
from testbed.experiments.inputs.formats import Example
from testbed.experiments.inputs.marks import Mark
from testbed.files import file_bytes, whole_file
from testbed.ue.records import RoundRecord
from testbed.ue.run import Outcome

SCHEMA = 1
SUMMARY = "summary.json"
ABOUT = ("id", "category", "turn")
"""What `requests.parquet` has of an example."""


def summary(config: Mapping[str, Any], seed: int, host: Mapping[str, Any], table: Sequence[Any]) -> dict[str, Any]:
    """The document of `summary.json`."""
    return {
        "schema": SCHEMA,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "testbed": __version__,
        "commit": _commit(),
        "seed": seed,
        "host": dict(host),
        "config": dict(config),
        "rows": list(table),
    }


def host() -> dict[str, Any]:
    """Description of this machine."""
    return {
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def _commit() -> str | None:
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def write_text(path: Path, text: str) -> None:
    """Write a file atomically.

    Raises:
        TestbedError: the file is not writable.
    """
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


def write_summary(directory: Path, document: Mapping[str, Any]) -> None:
    """Write `summary.json`."""
    write_text(directory / SUMMARY, json.dumps(document, indent=2) + "\n")


def read_summary(directory: Path) -> dict[str, Any]:
    """Read `summary.json` of a run directory.

    Raises:
        BadInput: not a run directory, or an unknown schema.
    """
    path = directory / SUMMARY
    try:
        document: dict[str, Any] = json.loads(file_bytes(path), parse_int=_bounded)
    except (OSError, ValueError, RecursionError) as exc:
        raise BadInput(f"{directory} is not a run directory: cannot read summary.json ({exc})") from exc
    if not isinstance(document, dict):
        raise BadInput(f"{directory} is not a run directory: summary.json is not a JSON object")
    schema = document.get("schema")
    if schema != SCHEMA:
        newer = isinstance(schema, int) and schema > SCHEMA
        hint = "; use the version that wrote it" if newer else ""
        raise BadInput(f"{path} has schema {schema}; this version reads {SCHEMA}{hint}")
    rows = document.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{path} has no rows; it may have been written by another program")
    return document


def _bounded(text: str) -> int:
    """An integer of at most 64 bits.

    Raises:
        ValueError: a larger one.
    """
    if len(text) > 20 or not -(2**63) <= (value := int(text)) < 2**64:
        raise ValueError(f"an integer of {len(text)} digits")
    return value


def round_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Rows of `rounds.parquet`, one per round."""
    return [round_row(o.method, o.request, record) for o in outcomes for record in o.record.rounds]


def round_row(method: str, request: int, record: RoundRecord) -> dict[str, Any]:
    """A row of `rounds.parquet`."""
    row: dict[str, Any] = {"method": method, "request": request}
    row |= {name: getattr(record, name) for name in record.__struct_fields__ if name != "csi"}
    return row | {f"csi_{n}": getattr(record.csi, n) if record.csi else None for n in Csi.__struct_fields__}


def request_rows(
    outcomes: Sequence[Outcome],
    texts: Mapping[tuple[str, int], str],
    examples: Sequence[Example] = (),
    marks: Mapping[tuple[str, int], Mark | None] | None = None,
) -> list[dict[str, Any]]:
    """Rows of `requests.parquet`, one per request and method.

    Args:
        examples: prompts by request; empty: unknown.
        marks: by method and request; None: unknown.
    """

    def marked(outcome: Outcome) -> dict[str, bool]:
        mark = (marks or {}).get((outcome.method, outcome.request))
        return mark._asdict() if mark is not None else {}

    return [
        {
            "method": o.method,
            "request": o.request,
            **marked(o),
            **({name: getattr(examples[o.request], name) for name in ABOUT} if examples else {}),
            "prompt_len": o.record.prompt_len,
            "tokens": len(o.record.token_ids),
            "rounds": len(o.record.rounds),
            "latency_s": o.record.latency_s,
            "uplink_bytes": o.record.uplink_bytes,
            "downlink_bytes": o.record.downlink_bytes,
            "finish_reason": o.record.finish_reason,
            "clock_unix_s": o.record.clock_unix_s,
            "lossless": o.lossless,
            "token_ids": o.record.token_ids,
            "text": texts.get((o.method, o.request)),
        }
        for o in outcomes
    ]


def write_parquet(path: Path, table: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as parquet, atomically.

    Raises:
        BadInput: pyarrow is missing.
        TestbedError: the file is not writable.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as exc:
        raise BadInput("parquet files need pyarrow: install the extra `lab`") from exc
    with whole_file(path) as part:
        pq.write_table(pa.Table.from_pylist(list(table)), part)
