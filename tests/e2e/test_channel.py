"""Emulated and virtual links as a user starts them: real processes, a replayed trace, and the demo over both."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from testbed.channel.trace import Trace, write_trace
from testbed.config import ServeConfig
from testbed.experiments.inputs.pair import target_for
from testbed.experiments.runs.processes import base_station

ENGINE = "llama"
"""Starts within a second; these tests are about links."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "testbed", *arguments]


def run(*arguments: str) -> dict[str, Any]:
    """Run a command with --json to its end."""
    return ended(start(*arguments))


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command(*arguments, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    return told(process)[0]


def told(process: subprocess.Popen[str]) -> tuple[dict[str, Any], list[str]]:
    """The document of a process that ends, and its lines on stderr."""
    try:
        out, err = process.communicate(timeout=280)
    finally:
        process.kill()
    assert process.returncode == 0, err
    document: dict[str, Any] = json.loads(out)
    return document, err.splitlines()


@contextlib.contextmanager
def emulating(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A relay process, and its ready line."""
    process = subprocess.Popen(
        command("channel", *arguments, "--listen", "tcp://127.0.0.1:*", "--json"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def station() -> Iterator[str]:
    with base_station(ServeConfig(engine=ENGINE, model=target_for(ENGINE, None), bind="tcp://127.0.0.1:*")) as ready:
        yield ready["bind"]


def test_a_ue_behind_a_relay_sees_its_link(station: str, tmp_path: Path) -> None:
    link = "kind=proxy,uplink_mbps=10,downlink_mbps=10,rtt_ms=20"
    with emulating("emulate", "--channel", link, "--to", station) as (_, ready):
        arguments = ["--limit", "2", "--protocol", "fh", "--max-tokens", "30", "--out", str(tmp_path)]
        document = run("ue", "run", "--bs", ready["listen"], *arguments)
    (row,) = document["rows"]
    assert row["lossless"] is True
    rounds = pq.read_table(tmp_path / "rounds.parquet").to_pylist()
    # measured by the handshake and the rounds, both of which a busy machine delays
    assert 19 <= row["rtt_ms"] <= 1000 * max(r["link_s"] for r in rounds)
    for r in rounds:
        assert r["link_s"] >= 0.020 + 8 * (r["uplink_bytes"] + r["downlink_bytes"]) / 10e6 - 1e-4
    assert {r["csi_source"] for r in rounds} == {"passive"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_relay_stops_cleanly_and_says_what_passed(station: str, number: signal.Signals) -> None:
    with emulating("emulate", "--to", station) as (process, ready):
        assert ready["ready"] is True
        assert ready["pid"] == process.pid
        with socket.create_connection(("127.0.0.1", int(ready["listen"].rsplit(":", 1)[1]))):
            time.sleep(0.3)
            process.send_signal(number)
            rest, stderr = process.communicate(timeout=20)
        assert (process.returncode, rest) == (0, "")
        assert stderr.startswith("1 connections (0 refused)")


def test_throughput_follows_a_replayed_trace(tmp_path: Path) -> None:
    rates = np.array([40.0, 5.0, 20.0, 0.0, 30.0, 10.0, 50.0, 15.0])
    flat = np.zeros(len(rates))
    trace = Trace(np.arange(len(rates)) * 1.0, rates, rates, flat + 10, flat, flat, flat * np.nan)
    write_trace(tmp_path / "steps.csv", trace)
    with socket.create_server(("127.0.0.1", 0)) as sink:
        target = f"tcp://127.0.0.1:{sink.getsockname()[1]}"
        with emulating("replay", str(tmp_path / "steps.csv"), "--to", target) as (_, ready):
            sender = socket.create_connection(("127.0.0.1", int(ready["listen"].rsplit(":", 1)[1])))
            stop = threading.Event()

            def send() -> None:
                with contextlib.suppress(OSError):
                    while not stop.is_set():
                        sender.sendall(bytes(65536))

            thread = threading.Thread(target=send, daemon=True)
            thread.start()
            taken, _ = sink.accept()
            got = np.zeros(2 * len(rates))
            while (age_s := time.monotonic() - ready["origin_s"]) < len(got):
                got[int(age_s)] += len(taken.recv(65536)) * 8 / 1e6
            stop.set()
            taken.close()
            sender.close()
            thread.join(5)
    asked = np.tile(rates, 2)[1:]  # the first second begins before the sender is there
    assert np.corrcoef(asked, got[1:])[0, 1] >= 0.95
    assert got[1:].sum() == pytest.approx(asked.sum(), rel=0.1)


def test_the_demo_over_a_relay_and_in_virtual_time(tmp_path: Path) -> None:
    """The same tokens in the same rounds, over a link that takes as long in both.

    Whole latencies hold this machine's compute times, twice measured; `testbed channel validate --workload` holds them
    against each other on a quiet one.
    """
    link = "uplink_mbps=20,downlink_mbps=20,rtt_ms=50"
    shared = ["--prompts", "2", "--methods", "greedy,fh,target-only", "--engine", ENGINE, "--max-tokens", "32"]
    real = run("demo", *shared, "--channel", f"kind=proxy,{link}", "--out", str(tmp_path / "real"))
    virtual = run("demo", *shared, "--channel", f"kind=virtual,{link}", "--out", str(tmp_path / "virtual"))
    assert {"bs", "ue", "proxy"} <= set(real["host"]["pids"])
    assert not {"bs", "ue", "proxy"} & set(virtual["host"]["pids"])
    for mine, other in zip(real["rows"], virtual["rows"], strict=True):
        assert mine["lossless"] and other["lossless"]
        assert {k: mine[k] for k in ("method", "tokens", "rounds", "aal", "uplink_mbps", "rtt_ms")} == {
            k: other[k] for k in ("method", "tokens", "rounds", "aal", "uplink_mbps", "rtt_ms")
        }
        assert mine["uplink_bytes"] == pytest.approx(other["uplink_bytes"], rel=0.1)
    assert (tmp_path / "virtual" / "profile.yaml").exists()
    for method in ("greedy", "fh"):
        links = [
            float(np.median([r["link_s"] for r in rounds if r["method"] == method]))
            for rounds in (pq.read_table(tmp_path / way / "rounds.parquet").to_pylist() for way in ("real", "virtual"))
        ]
        assert min(links) >= 0.050
        assert links[0] == pytest.approx(links[1], rel=0.3)  # medians: half of all rounds may be late on a busy machine
    tables = [pq.read_table(tmp_path / way / "requests.parquet").to_pylist() for way in ("real", "virtual")]
    outputs = [{(r["method"], r["request"]): r["token_ids"] for r in table} for table in tables]
    assert outputs[0] == outputs[1]


def test_a_virtual_demo_with_a_profile_repeats_to_the_byte(tmp_path: Path) -> None:
    shared = ["--prompts", "2", "--methods", "greedy,sh", "--engine", ENGINE]
    channel = ["--channel", "kind=trace,file=drive,via=virtual,profile=wisv"]
    both = [start("demo", *shared, *channel, "--out", str(tmp_path / name)) for name in "ab"]  # no real time in it
    first, second = map(ended, both)
    assert first["rows"] == second["rows"]
    assert len({r["csi_uplink_mbps"] for r in pq.read_table(tmp_path / "a" / "rounds.parquet").to_pylist()}) > 5


@pytest.mark.long
def test_a_virtual_demo_without_a_profile_measures_this_machine_and_says_so(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["--methods", "greedy", "--prompts", "1", "--max-tokens", "32", "--window", "4", "--out", str(out)]
    process = start("demo", "--engine", ENGINE, "--channel", "kind=virtual,rtt_ms=5", *words)
    document, said = told(process)
    assert said[0].startswith("no profile given: measuring drafts and passes of this machine first, for some minutes")
    windows = [line for line in said if line.startswith("measuring this machine: 6 prompts at window ")]
    assert [line.partition("window ")[2] for line in windows] == ["2 (1 of 3)", "4 (2 of 3)", "8 (3 of 3)"]
    assert any(line.startswith("virtual run with profile measured") for line in said)
    assert document["rows"][0]["lossless"] is True
    profile = yaml.safe_load((out / "profile.yaml").read_text())
    assert profile["name"] == "measured" and "rounds on this machine" in profile["source"]
