"""Synthetic directories of runs, sweeps and studies, and a parser of the report made from them."""

from __future__ import annotations

import base64
import csv
import html.parser
from pathlib import Path
from typing import Any

import numpy as np

from testbed.experiments.results import directory as results
from testbed.experiments.results.rows import PARTS

WINDOWS, RATES, SERIES = (4, 8, 16), (20.0, 500.0), ("SD greedy", "50 % & more")
PROMPTS = 12
OF_A_ROW = dict.fromkeys(PARTS, 0.01)
CONFIG = {"run": {"dataset": "bundled:test", "prompts": PROMPTS}, "name": "small"}


def row(method: str, **more: Any) -> dict[str, Any]:
    fixed = {
        "method": method, "window": 8, "threshold": None, "requests": 3, "accuracy": 2 / 3, "aal": 5.25, "rounds": 17.0,
        "lossless": True, "ties": 0, "acceptance": 0.5, "acceptance_cond": 0.8125, "latency_s": 0.4321,
        "latency_p95_s": 0.6, "throughput_tps": 210.0, "tokens": 89.25, "uplink_bytes": 1234.0, "downlink_bytes": 456.0,
    }  # fmt: skip
    return {**fixed, **OF_A_ROW, **more}


def save_run(directory: Path, rows: list[dict[str, Any]], rounds: bool = True) -> Path:
    directory.mkdir()
    config = {"dataset": "<script>alert(1)</script>", "model": None, "bs": "tcp://127.0.0.1:5555"}
    host = {"cpu": "A & B", "cores": 2, "pids": {"bs": 11, "ue": 12}}
    results.write_summary(directory, results.summary(config, 7, host, rows))
    if rounds:
        windows = [(8, 8), (8, 3), (8, 0), (2, 2)]
        table = [
            {"method": r["method"], "request": 0, "drafted": d, "accepted": a, "committed": a + 1}
            for r in rows
            for d, a in windows
        ]
        results.write_parquet(directory / "rounds.parquet", table)
    return directory


def requests_of(series: int, window: int, rate: float) -> list[dict[str, Any]]:
    """The second series takes exactly half of the first one's time on every prompt."""
    dice = np.random.default_rng(window)
    latencies = dice.uniform(1, 3, PROMPTS) * (1 + 20 / rate) / (1 + series)
    return [
        {"method": "fh", "request": i, "prompt_len": 9 + i, "tokens": 24, "rounds": 24 // window + i, "latency_s": s}
        for i, s in enumerate(latencies)
    ]


def make_field(out: Path) -> Path:
    """The summary of an unfinished field run with two places."""
    out.mkdir()
    ends = {
        f"{name}_{end}": 1.0 for name in ("latency_s", "gain", "permissiveness", "differs") for end in ("low", "high")
    }
    rows = [
        {"place": place, "distance_m": metres, "setting": setting, "way": way, "requests": PROMPTS, "latency_s": 1.0,
         "aal": 4.5, "accuracy": 0.75, "same_outputs": 1.0, "gain": 1.5, "permissiveness": 0.5,
         "differs": None if way == "field" else 0.01, **ends,
         "temp_c_max": 61.5, "throttled_rounds": 7 if (place, setting, way) == ("far", "sh", "field") else 0}
        for place, metres in (("near", 2.0), ("far", 40.0))
        for setting in ("greedy", "sh")
        for way in ("field", "replay", "virtual")
    ]  # fmt: skip
    link = {
        "csi": {"uplink_mbps": 45.25, "rtt_ms": 9.5, "rssi_dbm": -48.0},
        "clock": {"offset_s": 0.25, "error_s": 5e-4},
    }
    visits = [
        {"event": "visit", "time": "2026-11-21T09:00:00", "place": "near", "measured": link, "differs": [], "note": ""},
        {"event": "visit", "time": "2026-11-21T09:20:00", "place": "far", "measured": {"csi": {}},
         "differs": ["RTT 30 ms, before 9 ms"], "note": "rain & <b>wind"},
        {"event": "note", "time": "2026-11-21T09:40:00", "place": "far", "note": "somebody walked through"},
    ]  # fmt: skip
    document = results.summary(CONFIG, 0, {}, rows)
    more = {"kind": "field", "emulated": False, "left": 3, "agreement": {"virtual": 0.0114}, "visits": visits}
    results.write_summary(out, {**document, **more, "notes": ["no virtual runs: there is no target"]})
    return out


def make_sweep(out: Path, level: bool = False) -> Path:
    rows = []
    for number, series in enumerate(SERIES):
        for window in WINDOWS:
            for rate in RATES:
                key = f"{number}{window}{rate:g}"
                (out / "points" / key).mkdir(parents=True)
                table = requests_of(number, window, rate)
                results.write_parquet(out / "points" / key / "requests.parquet", table)
                csi = {"csi_time_s": 1.0, "csi_uplink_mbps": rate, "protocol": "fh"}
                rounds = [
                    {"method": "fh", "request": 0, "drafted": window, "accepted": a, "committed": a + 1, **csi}
                    for a in range(window + 1)
                ]
                results.write_parquet(out / "points" / key / "rounds.parquet", rounds)
                latency_s = float(np.mean([row["latency_s"] for row in table]))
                row = {
                    "method": "fh", "series": series, "window": window, "threshold": None, "requests": PROMPTS,
                    "uplink_mbps": rate, "downlink_mbps": rate, "rtt_ms": 50.0, "per": 0.0, "accuracy": 0.75,
                    "aal": 3.5, "rounds": 7.0, "latency_s": latency_s, "throughput_tps": 24 / latency_s, "point": key,
                    **dict.fromkeys(PARTS, latency_s / len(PARTS)),
                }  # fmt: skip
                rows.append(row | ({"level": window} if level else {}))
    results.write_summary(out, results.summary(CONFIG, 0, {}, rows))
    return out


def make_capacity(directory: Path) -> Path:
    """A directory of `capacity --out`: capacities, violations over UEs, rounds in the queue-compute plane."""
    directory.mkdir()
    rows = [
        {"system": system, "class_tps": speed, "capacity": base // speed, "paper": base // speed + 3}
        for system, base in (("wisp", 700), ("sled", 300))
        for speed in (2, 4, 6, 8)
    ]
    results.write_summary(directory, results.summary({"systems": ["wisp"], "epsilon": 0.05}, 0, {}, rows))
    dice = np.random.default_rng(1)
    rounds = [
        {"queue_s": q, "verify_s": v, "cause": "queue" if q > 0.4 else "compute" if v > 0.3 else ""}
        for q, v in dice.exponential(0.2, (300, 2))
    ]
    write_csv(directory / "fig8.csv", rounds)
    over = [
        {"system": system, "ues": n, "class_tps": speed, "violation": min(1, (n / most) ** 6)}
        for system, most in (("wisp", 180), ("sled", 90)) for n in range(20, 200, 20) for speed in (2, 8)
    ]  # fmt: skip
    write_csv(directory / "fig7.csv", over)
    return directory


def make_bench(directory: Path) -> Path:
    """A directory of `bench --out`: two methods at two rates."""
    directory.mkdir()
    times = {
        f"{kind}_{name}_ms": 123.456 for kind in ("mean", "median", "p99") for name in ("ttft", "tpot", "itl", "e2el")
    }
    rows = [
        {"method": method, "window": 8, "rate_rps": rate, "requests": 40, "duration_s": 7.5, "input_tokens": 3440,
         "output_tokens": 3900, "request_throughput_rps": rate, "output_throughput_tps": 97.5 * rate,
         "total_throughput_tps": 180.0 * rate, "goodput_rps": rate, **times}
        for method in ("greedy", "target-only") for rate in (1.0, 4.0)
    ]  # fmt: skip
    results.write_summary(directory, {**results.summary({"rates": [1.0, 4.0]}, 0, {}, rows), "kind": "bench"})
    return directory


def make_load(directory: Path) -> Path:
    """A directory of `latency measure`: latency under load."""
    directory.mkdir()
    dice, loads = np.random.default_rng(2), np.linspace(0.5, 9, 15).tolist()
    rows = [{"rps": rps, "latency_s": 0.8 / (1 - rps * 0.09) * dice.normal(1, 0.01)} for rps in loads]
    write_csv(directory / "points.csv", rows)
    results.write_summary(directory, results.summary({}, 0, {}, rows))
    return directory


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


class Page(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.images: list[bytes] = []
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "td":
            self.cells.append("")
        for name, value in attrs:
            if name in ("src", "href") and value:
                self.links.append(value)
                if value.startswith("data:image/png;base64,"):
                    self.images.append(base64.b64decode(value.partition(",")[2], validate=True))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "td":
            self.cells[-1] += data
