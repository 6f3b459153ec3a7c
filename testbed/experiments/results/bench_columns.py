"""Columns of the rows of `testbed bench` in tables: headers and formats, what matters most first."""

from __future__ import annotations

BENCH_COLUMNS = {
    "method": ("method", "{}"),
    "rate_rps": ("req/s", "{:g}"),
    "mean_ttft_ms": ("TTFT ms", "{:.1f}"),
    "p95_ttft_ms": ("p95 TTFT", "{:.1f}"),
    "p99_ttft_ms": ("p99 TTFT", "{:.1f}"),
    "mean_tpot_ms": ("TPOT ms", "{:.2f}"),
    "p95_tpot_ms": ("p95 TPOT", "{:.2f}"),
    "p99_tpot_ms": ("p99 TPOT", "{:.2f}"),
    "mean_itl_ms": ("ITL ms", "{:.2f}"),
    "p95_itl_ms": ("p95 ITL", "{:.2f}"),
    "p99_itl_ms": ("p99 ITL", "{:.2f}"),
    "goodput_rps": ("goodput/s", "{:.2f}"),
    "request_throughput_rps": ("done/s", "{:.2f}"),
    "output_throughput_tps": ("tok/s", "{:.1f}"),
    "mean_e2el_ms": ("latency ms", "{:.1f}"),
    "requests": ("n", "{:d}"),
}
