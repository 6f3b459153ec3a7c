"""Memory of an endpoint whose drafter `suffix` copies from earlier requests, over many requests.

    python benchmarks/suffix_memory.py [--minutes 3] [--memory 65536] [--every-s 1.5] [--csv FILE]

A base station with the bundled target on one thread, an endpoint, and one client: each prompt is eight sentences of
random names and numbers (seed 1), each answer at most 60 tokens. Once a minute: requests and tokens so far, resident
memory of the endpoint, and mean seconds per request.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from testbed.config import ServeConfig
from testbed.experiments.results.csv_file import write_csv
from testbed.experiments.runs.processes import base_station, command, environment

NAMES = ("Anna", "Ben", "Cara", "Dan", "Eve", "Finn")
THINGS = ("apples", "coins", "books", "pens", "cards")
SENTENCES, TOKENS = 8, 60


def main() -> None:
    """Ask for the given time, and print a line a minute."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--memory", type=int, default=65_536, help="tokens of earlier requests that are kept")
    parser.add_argument("--every-s", type=float, default=1.5, help="time between two requests")
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    with base_station(ServeConfig(engine="llama", threads=1, bind="tcp://127.0.0.1:*")) as bs:
        options = ["--drafter", "suffix", "--drafter-memory", str(asked.memory), "--port", "0", "--json"]
        serve = command("ue", "serve", "--bs", bs["bind"], *options)
        with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, env=environment()) as endpoint:
            try:
                assert endpoint.stdout is not None
                rows = measured(json.loads(endpoint.stdout.readline()), endpoint.pid, asked)
            finally:
                endpoint.terminate()
    if asked.csv is not None:
        write_csv(asked.csv, rows)


def measured(ready: dict[str, Any], pid: int, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows, one a minute."""
    rng, rows, tokens, took_s, begin_s = random.Random(1), list[dict[str, Any]](), 0, list[float](), time.monotonic()
    requests = 0
    while (now_s := time.monotonic() - begin_s) <= 60 * asked.minutes:
        if now_s >= 60 * len(rows):
            mean_s = sum(took_s) / len(took_s) if took_s else 0.0
            rows.append(
                {
                    "minute": len(rows),
                    "requests": requests,
                    "tokens": tokens,
                    "rss_mib": rss_mib(pid),
                    "seconds": mean_s,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
            took_s.clear()
        start_s = time.monotonic()
        tokens += answered(ready["url"], ready["model"], prompt(rng))
        took_s.append(time.monotonic() - start_s)
        requests += 1
        time.sleep(max(0.0, asked.every_s - took_s[-1]))
    return rows


def prompt(rng: random.Random) -> str:
    """A word problem that nobody has asked before."""
    each = (
        f"{rng.choice(NAMES)} has {rng.randrange(1000)} {rng.choice(THINGS)} and gives {rng.randrange(1000)} to "
        f"{rng.choice(NAMES)}."
        for _ in range(SENTENCES)
    )
    return f"{' '.join(each)} How many are left?"


def answered(url: str, model: str, text: str) -> int:
    """Tokens of a request and its answer."""
    body = json.dumps({"model": model, "prompt": text, "max_tokens": TOKENS}).encode()
    request = urllib.request.Request(f"{url}/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return int(json.load(answer)["usage"]["total_tokens"])


def rss_mib(pid: int) -> float:
    """Resident memory of a process (Linux)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return round(int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024, 1)


if __name__ == "__main__":
    main()
