"""Plot of `testbed bench`: TTFT, TPOT, inter-token latency and goodput over the request rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.experiments.plots.style import Figure, canvas, from_zero, legend, styles_of

PANELS = {
    "ttft": "time to first token [ms]",
    "tpot": "time per output token [ms]",
    "itl": "inter-token latency [ms]",
}
TAILS = ("p99", "p95")


def bench_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """The metrics of all loads with a finite rate, by method: means, and the highest percentile that all of them have
    as dotted lines.
    """
    drawn = [row for row in rows if row["rate_rps"] is not None]
    tail = next((tail for tail in TAILS if all(row.get(f"{tail}_ttft_ms") is not None for row in drawn)), None)
    caption = (
        f"Latency of the device–edge pair and of the target alone over the request rate: means{_dotted(tail)}. "
        "Last panel: requests that keep the limits (goodput), or output tokens, per second."
    )
    return Figure("bench", caption, lambda: _drawn(drawn, tail))


def _dotted(tail: str | None) -> str:
    return f", and {tail} as dotted lines" if tail else " (too few requests for percentiles)"


def _drawn(rows: Sequence[Mapping[str, Any]], tail: str | None) -> Any:
    figure, axes = canvas(2, 2, width=3.8, height=2.6)
    looks = styles_of([row["method"] for row in rows])
    bounded = any(row["goodput_rps"] is not None for row in rows)
    last = ("goodput_rps", "goodput [requests/s]") if bounded else ("output_throughput_tps", "output [tokens/s]")
    for method, look in looks.items():
        mine = sorted((row for row in rows if row["method"] == method), key=lambda row: float(row["rate_rps"]))
        rates = [row["rate_rps"] for row in mine]
        for one, name in zip(axes.flat, PANELS, strict=False):
            one.plot(rates, [row[f"mean_{name}_ms"] for row in mine], **look.line, label=method)
            if tail is not None:
                ends = [row[f"{tail}_{name}_ms"] for row in mine]
                one.plot(rates, ends, ":", color=look.colour, linewidth=1, label=f"{method}, {tail}")
        axes.flat[3].plot(rates, [row[last[0]] for row in mine], **look.line, label=method)
    for one, title in zip(axes.flat, (*PANELS.values(), last[1]), strict=True):
        one.set_ylabel(title)
        from_zero(one)
        one.set_xticks(sorted({row["rate_rps"] for row in rows}), minor=False)
        one.xaxis.set_major_formatter("{x:g}")
    for one in axes[-1, :]:
        one.set_xlabel("request rate [1/s]")
    legend(figure, axes)
    return figure
