"""`testbed bench`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.cli.options import OUTPUT, AsJson, configured
from testbed.cli.output import note, print_json
from testbed.cli.tables import JSON, TEXT, chosen_format, print_rows
from testbed.experiments.latency.bench_config import BenchConfig
from testbed.experiments.results.bench_columns import BENCH_COLUMNS
from testbed.intervals import LEAST_VALUES

WIDTH = 50
"""Characters of a line, as `vllm bench serve` prints them."""
SECTIONS = {
    "ttft": ("Time to First Token", "TTFT"),
    "tpot": ("Time per Output Token (excl. 1st token)", "TPOT"),
    "itl": ("Inter-token Latency", "ITL"),
    "e2el": ("End-to-end Latency", "E2EL"),
}


@configured(BenchConfig)
def bench(
    config: BenchConfig,
    out: Annotated[
        Path | None, typer.Option(help="Write summary.json, bench.csv and plots here.", rich_help_panel=OUTPUT)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure latency and goodput over the request rate, for the device-edge pair and for the target alone.

    Times run from a request's arrival, and tokens of one round arrive together: inter-token latency is the time between
    rounds, as `vllm bench serve` takes it between chunks of a stream.

    Examples:

        testbed bench

        testbed bench --bs tcp://127.0.0.1:5555 --rates 1,2,4 --requests 100 --goodput ttft:500,tpot:50 --out runs/bench
    """
    from testbed.experiments.latency.bench import run_bench

    document = run_bench(config, out, note)
    if as_json:
        print_json(document)
        return
    if chosen_format() == TEXT:
        for row in document["rows"]:
            print("\n".join(report_lines(row)))
    print_rows(list(map(_named, document["rows"])), "Over the request rate", BENCH_COLUMNS)
    if config.requests < max(LEAST_VALUES.values()):
        needed = ", ".join(f"p{share} from {least}" for share, least in LEAST_VALUES.items())
        note(f"percentiles need more --requests at each rate: {needed}")
    if out:
        note(f"wrote {out}; plots are in {out}/plots")


def _named(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row with rate inf, where all requests arrived at once; JSON has no such number."""
    at_once = row["rate_rps"] is None and chosen_format() != JSON
    return {**row, "rate_rps": math.inf} if at_once else row


def report_lines(row: Mapping[str, Any]) -> Sequence[str]:
    """One load as `vllm bench serve` prints it."""
    rate = "inf" if row["rate_rps"] is None else f"{row['rate_rps']:g}"
    facts: list[tuple[str, str | None]] = [
        ("Method:", row["method"]),
        ("Request rate configured (RPS):", rate),
        ("Successful requests:", f"{row['requests']}"),
        ("Benchmark duration (s):", f"{row['duration_s']:.2f}"),
        ("Total input tokens:", f"{row['input_tokens']}"),
        ("Total generated tokens:", f"{row['output_tokens']}"),
        ("Request throughput (req/s):", f"{row['request_throughput_rps']:.2f}"),
        ("Request goodput (req/s):", None if row["goodput_rps"] is None else f"{row['goodput_rps']:.2f}"),
        ("Output token throughput (tok/s):", f"{row['output_throughput_tps']:.2f}"),
        ("Total Token throughput (tok/s):", f"{row['total_throughput_tps']:.2f}"),
    ]
    lines = [" Serving Benchmark Result ".center(WIDTH, "="), *(_line(*fact) for fact in facts if fact[1] is not None)]
    for name, (title, short) in SECTIONS.items():
        if row[f"mean_{name}_ms"] is not None:
            lines.append(title.center(WIDTH, "-"))
            values = {word: row[f"{word.lower()}_{name}_ms"] for word in ("Mean", "Median", "P95", "P99")}
            lines += [_line(f"{word} {short} (ms):", f"{ms:.2f}") for word, ms in values.items() if ms is not None]
    return [*lines, "=" * WIDTH]


def _line(text: str, value: str | None) -> str:
    return f"{text:<40}{value:>10}"
