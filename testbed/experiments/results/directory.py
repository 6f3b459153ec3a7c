"""Run directories: summary rows of outcomes, and reading and writing of result files."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from testbed import __version__
from testbed.channel.csi import Csi
from testbed.errors import BadInput
from testbed.experiments.inputs.formats import Example
from testbed.experiments.inputs.scorers import Scorer
from testbed.experiments.results.energy import energy_columns
from testbed.experiments.results.quality import quality
from testbed.files import file_bytes, whole_file
from testbed.models.scoring import final_number
from testbed.protocols.methods import run_method
from testbed.protocols.sampling import GREEDY, Sampling
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.run import Outcome

SCHEMA = 1
SUMMARY = "summary.json"
PARTS = ("draft_s", "link_s", "queue_s", "verify_s", "judge_s", "overhead_s")


def rows(
    outcomes: Sequence[Outcome],
    examples: Sequence[Example],
    texts: Mapping[tuple[str, int], str],
    *,
    window: int,
    threshold: float,
    hidden_bits: int = 16,
    window_rule: str = "fixed",
    lookahead: int | None = 0,
    own: Mapping[tuple[str, int], str] | None = None,
    idle_w: float | None = None,
    sampling: Sampling = GREEDY,
    score: Scorer = final_number,
) -> list[dict[str, Any]]:
    """One row per method, in order of first appearance; `docs/architecture.md` defines the columns.

    Args:
        examples, texts: prompts, by request index, and output texts, by (method, request).
        lookahead: None: chosen for each window, and rows have the mean.
        own: as `texts`, of the target; None: unknown.
        idle_w: power of the idle device; None: not measured.
        sampling: how methods that sample draw or choose tokens.
        score: extracts the answer from a text.
    """

    def row(method: str) -> dict[str, Any]:
        mine = [o for o in outcomes if o.method == method]
        target = None if own is None else {request: text for (kind, request), text in own.items() if kind == method}
        return {
            **_settings(method, window, window_rule, _looked(mine, lookahead), threshold, hidden_bits, sampling),
            **_channel(outcomes),
            "requests": len(mine),
            **quality({o.request: texts.get((method, o.request), "") for o in mine}, examples, target, score),
            **_speed([o.record for o in mine]),
            **_gate(mine),
            **energy_columns(method, [o.record for o in mine], idle_w),
        }

    return [row(method) for method in dict.fromkeys(o.method for o in outcomes)]


def _looked(outcomes: Sequence[Outcome], lookahead: int | None) -> float:
    """The lookahead of a run, or the mean over its rounds where each window chose its own."""
    if lookahead is not None:
        return lookahead
    return float(np.mean([r.lookahead for o in outcomes for r in o.record.rounds]))


def _settings(
    method: str,
    window: int,
    window_rule: str,
    lookahead: float,
    threshold: float,
    hidden_bits: int,
    asked: Sampling,
) -> dict[str, Any]:
    """Method and settings of a row; None for settings that the method does not use."""
    kind = run_method(method)
    sampling = kind.sampling(asked)
    return {
        "method": method,
        "window": window,
        "window_rule": window_rule,
        "lookahead": lookahead if kind.looks_ahead else None,
        "threshold": threshold if kind.judged or kind.skips else None,
        "hidden_bits": hidden_bits if kind.judged else None,
        "temperature": sampling.temperature if kind.sampled or kind.coupled or sampling.coupled else None,
        "sampling": "coupled" if sampling.coupled else None,
        "verification": "block" if sampling.block else None,
        "q_top": sampling.q_top or None,
        "q_bits": sampling.q_bits if kind.uploads else None,
    }


def _channel(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """Mean channel state over the rounds, without rates of source `passive`: small uploads do not reveal them."""
    seen = [r.csi for o in outcomes for r in o.record.rounds if r.csi is not None]
    sure = [csi for csi in seen if csi.source != "passive"]

    def mean(values: list[float]) -> float | None:
        return math.fsum(values) / len(values) if values else None

    return {
        "uplink_mbps": mean([csi.uplink_mbps for csi in sure]),
        "downlink_mbps": mean([csi.downlink_mbps for csi in sure]),
        "rtt_ms": mean([csi.rtt_ms for csi in seen]),
        "per": mean([csi.per_up for csi in sure]),
    }


def _speed(records: Sequence[RequestRecord]) -> dict[str, Any]:
    rounds = [r for record in records for r in record.rounds]
    drafted, accepted = sum(r.drafted for r in rounds), sum(r.accepted for r in rounds)
    rejections = sum(r.accepted < r.drafted for r in rounds)
    latencies = np.array([record.latency_s for record in records])
    tokens = [len(record.token_ids) for record in records]
    return {
        "aal": sum(r.committed for r in rounds) / len(rounds),
        "rounds": len(rounds) / len(records),
        "acceptance": accepted / drafted if drafted else None,
        "acceptance_cond": accepted / (accepted + rejections) if drafted else None,
        "latency_s": float(latencies.mean()),
        "latency_p95_s": float(np.percentile(latencies, 95)),
        "throughput_tps": sum(tokens) / float(latencies.sum()),
        "tokens": sum(tokens) / len(records),
        "wasted_tokens": (drafted - accepted) / len(records),
        "wasted_s": sum(r.wasted_s for r in rounds) / len(records),
        "drafted_ahead": sum(r.drafted_ahead for r in rounds) / len(records),
        "void": sum(r.void for r in rounds) / len(records),
        "hidden_s": sum(r.hidden_s for r in rounds) / len(records),
        "streamed": sum(r.streamed and not r.drafted for r in rounds) / len(records),
        "uplink_bytes": sum(r.uplink_bytes for r in records) / len(records),
        "downlink_bytes": sum(r.downlink_bytes for r in records) / len(records),
        **{part: sum(getattr(r, part) for r in rounds) / len(records) for part in PARTS},
    }


def _gate(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    if any(o.lossless is None for o in outcomes):
        return {"lossless": None, "ties": 0}
    ties = sum(o.divergence is not None and o.divergence.tie for o in outcomes)
    return {"lossless": all(o.lossless for o in outcomes), "ties": ties}


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
        document: dict[str, Any] = json.loads(file_bytes(path))
    except (OSError, ValueError, RecursionError) as exc:
        raise BadInput(f"{directory} is not a run directory: cannot read summary.json ({exc})") from exc
    if not isinstance(document, dict):
        raise BadInput(f"{directory} is not a run directory: summary.json is not a JSON object")
    schema = document.get("schema")
    if schema != SCHEMA:
        newer = isinstance(schema, int) and schema > SCHEMA
        hint = "; use the version that wrote it" if newer else ""
        raise BadInput(f"{path} has schema {schema}; this version reads {SCHEMA}{hint}")
    if not isinstance(document.get("rows"), list):
        raise BadInput(f"{path} has no rows; it may have been written by another program")
    return document


def round_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Rows of `rounds.parquet`, one per round."""
    return [round_row(o.method, o.request, record) for o in outcomes for record in o.record.rounds]


def round_row(method: str, request: int, record: RoundRecord) -> dict[str, Any]:
    """A row of `rounds.parquet`."""
    row: dict[str, Any] = {"method": method, "request": request}
    row |= {name: getattr(record, name) for name in record.__struct_fields__ if name != "csi"}
    return row | {f"csi_{n}": getattr(record.csi, n) if record.csi else None for n in Csi.__struct_fields__}


def request_rows(outcomes: Sequence[Outcome], texts: Mapping[tuple[str, int], str]) -> list[dict[str, Any]]:
    """Rows of `requests.parquet`, one per request and method."""
    return [
        {
            "method": o.method,
            "request": o.request,
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
