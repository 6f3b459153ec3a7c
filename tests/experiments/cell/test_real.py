"""Cells with processes: a base station, the radio between its connections, and a process for each UE."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec
import pytest

from testbed.channel.radio.config import RadioConfig, TraceSource
from testbed.channel.radio.mac import RadioCell
from testbed.channel.radio.model import RadioUe
from testbed.errors import BadInput, EngineError
from testbed.experiments.cell.config import CellBs, CellConfig, CellControl, UeGroup, UePower
from testbed.experiments.cell.real import radio, run
from testbed.experiments.cell.real.radio import run_radio
from testbed.experiments.cell.real.relayed import RelayedPorts
from testbed.experiments.cell.real.run import run_cell_really
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell
from testbed.experiments.inputs.state import ASSUMED_MBPS
from testbed.experiments.runs import processes as children

CELL = CellConfig(
    seconds=6.0,
    warmup_s=1.5,
    radio=RadioConfig(bandwidth_hz=4e6),
    ues=(
        UeGroup(name="fh", protocol="fh", class_tps=2.0, response=(5, 15), power=UePower(transmit_w=2.0), csi="report"),
        UeGroup(name="greedy", response=(5, 15), csi="passive"),
        UeGroup(name="known", response=(5, 15), csi="oracle"),
        UeGroup(name="timed", response=(5, 15), csi="handshake"),
        UeGroup(name="alone", protocol="target-only", response=(5, 15)),
        UeGroup(name="bytes", traffic="bytes", message_bytes=10_000, every_s=0.1),
    ),
    bs=CellBs(scheduler="slo"),
)


def test_processes_decode_without_loss_over_one_radio() -> None:
    """Lossless, or it raises. Times depend on the machine; bytes do not."""
    told: list[tuple[float, float]] = []
    found = document(CELL, run_cell_really(CELL, lambda *passed: told.append(passed)))
    assert told == sorted(told) and 4.0 < told[-1][0] <= told[-1][1] == 6.0 and len(told) > 5
    expected = document(CELL, run_cell(CELL))
    rows, virtual = ({row["group"]: row for row in one["rows"]} for one in (found, expected))
    for name in ("fh", "greedy", "known", "timed", "alone"):
        assert rows[name]["goodput_tps"] > 0 and rows[name]["responses"] > 0
    per_token = [one["fh"]["uplink_bytes"] / one["fh"]["goodput_tps"] for one in (rows, virtual)]
    assert per_token[0] == pytest.approx(per_token[1], rel=0.6)  # rounds that straddle the ends
    joules = [one["fh"]["joules_per_token"] for one in (rows, virtual)]
    assert joules[0] == pytest.approx(joules[1], rel=0.6)
    assert rows["alone"]["window"] == 0
    for both in (rows, virtual):
        errors_db = {name: row["csi_error_db"] for name, row in both.items()}
        assert errors_db["known"] == 0 and errors_db["alone"] is errors_db["bytes"] is None
        assert 0 < errors_db["fh"] < 4 and errors_db["greedy"] is not None  # token ids alone tell no rate
        assert errors_db["timed"] == pytest.approx(10 * math.log10(ASSUMED_MBPS / 8), abs=1e-3)
    assert rows["bytes"]["uplink_mbps"] == pytest.approx(0.8, rel=0.2)
    assert rows["fh"]["messages"] is rows["fh"]["undelivered"] is None and rows["bytes"]["messages"] > 0
    assert found["cell"]["passes"] > 5 and 0 < found["cell"]["busy_share"] <= 1
    assert 0 < found["cell"]["uplink_utilisation"] < 1


def test_processes_send_their_requests_together() -> None:
    """UEs with short and long responses are answered equally often, as the next requests wait for the last answer."""
    short, long = (UeGroup(name=f"{n} tokens", response=(n, n), together=True) for n in (2, 30))
    run = run_cell_really(msgspec.structs.replace(CELL, ues=(short, long), bs=CellBs()))
    counts = [len(tally.latencies_s) for _, (tally,) in run.groups]
    assert min(counts) > 0 and max(counts) - min(counts) <= 2  # one at each end of the time
    assert all(tally.answered.uplink_bytes > 0 and tally.band_s[True] > 0 for _, (tally,) in run.groups)


@pytest.mark.parametrize("dead", ["the radio", "UE 1"])
def test_a_process_that_dies_ends_the_run_at_once(dead: str) -> None:
    """It was reported when the time of the run was over."""
    context = multiprocessing.get_context("forkserver")
    processes = [
        context.Process(target=os._exit, args=(3,), name=name) if name == dead
        else context.Process(target=time.sleep, args=(20,), name=name)
        for name in ("the radio", "UE 0", "UE 1")
    ]  # fmt: skip
    for process in processes:
        process.start()
    try:
        with pytest.raises(EngineError, match=f"{dead} ended with exit code 3"):
            run._wait(processes[0], processes[1:], time.monotonic() + 15)
    finally:
        for process in processes:
            process.terminate()


def test_a_radio_that_dies_while_ues_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ended without a word, as if its reader had gone."""
    receive = run._received

    def received(line: Connection, timeout_s: float) -> Any:
        found = receive(line, timeout_s)
        [radio_process] = [one for one in multiprocessing.active_children() if one.name == "the radio"]
        radio_process.kill()
        radio_process.join(10)
        return found

    monkeypatch.setattr(run, "_received", received)
    monkeypatch.setattr(radio, "LEAD_S", 0.5)
    with pytest.raises(EngineError, match="the process of the radio ended"):
        run_cell_really(CellConfig(seconds=2.0, warmup_s=0.5, ues=(UeGroup(name="a", response=(5, 15)),)))


@pytest.mark.parametrize(
    ("stopped", "says"),
    [("UE 1", "of 2 UE processes ended without a report"), ("the radio", "of the radio said nothing for 2 s"),
     ("the base station", "the base station has written no counters")],
)  # fmt: skip
def test_a_process_that_is_stopped_ends_the_run(stopped: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two were waited for at Python's exit, for ever; the last left results."""
    receive, wait_for = run._received, run._wait
    waits: list[float] = []

    def received(line: Connection, timeout_s: float) -> Any:
        found = receive(line, timeout_s)
        monkeypatch.setattr(run, "STOPPING_S", 2.0)  # not before: a process may take long to start
        return found

    def wait(radio: BaseProcess, ues: Sequence[BaseProcess], until_s: float, tick: Callable[[], object]) -> None:
        waits.append(until_s)
        if len(waits) == 2:  # after the warm-up
            pids = {one.name: one.pid for one in (radio, *ues)} | {"the base station": children._serving_now[0][1].pid}
            os.kill(pids[stopped] or 0, signal.SIGSTOP)
        wait_for(radio, ues, until_s, tick)

    monkeypatch.setattr(run, "_received", received)
    monkeypatch.setattr(run, "_wait", wait)
    monkeypatch.setattr(radio, "LEAD_S", 0.5)
    monkeypatch.setattr(children, "STOP_S", 3.0)
    cell = CellConfig(seconds=2.0, warmup_s=0.5, ues=(UeGroup(name="a", count=2, response=(5, 15)),))
    try:
        with pytest.raises(EngineError, match=says):
            run_cell_really(cell)
        assert not multiprocessing.active_children()
    finally:
        for process in multiprocessing.active_children():
            process.kill()


@pytest.mark.parametrize("stopped", ["the radio", "the base station"])
def test_a_process_that_stood_still_is_told_of(
    stopped: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run ended as any other."""
    wait_for, waits = run._wait, list[float]()

    def wait(radio: BaseProcess, ues: Sequence[BaseProcess], until_s: float, tick: Callable[[], object]) -> None:
        waits.append(until_s)
        if len(waits) == 2:  # after the warm-up
            pids = {"the radio": radio.pid, "the base station": children._serving_now[0][1].pid}
            os.kill(pids[stopped] or 0, signal.SIGSTOP)
            time.sleep(2.0)
            os.kill(pids[stopped] or 0, signal.SIGCONT)
        wait_for(radio, ues, until_s, tick)

    monkeypatch.setattr(run, "_wait", wait)
    monkeypatch.setattr(radio, "LEAD_S", 0.5)
    run_cell_really(CellConfig(seconds=4.0, warmup_s=0.5, ues=(UeGroup(name="a", response=(5, 15)),)))
    (line,) = (one.getMessage() for one in caplog.records if "stood still" in one.getMessage())
    told, _, after = line.partition(" stood still for ")
    assert told == stopped and 1.7 < float(after.split()[0]) < 3.5


def test_a_radio_whose_parent_has_ended_ends_quietly() -> None:
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    radio = context.Process(target=run_radio, args=(CELL, ["tcp://127.0.0.1:9"], theirs))
    radio.start()
    ours.close()
    theirs.close()
    radio.join(30)
    assert radio.exitcode == 0


def test_the_wait_ends_with_the_last_ue() -> None:
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=time.sleep, args=(seconds,)) for seconds in (20.0, 0.0, 0.2)]
    for process in processes:
        process.start()
    try:
        until_s = time.monotonic() + 15
        run._wait(processes[0], processes[1:], until_s)
        assert time.monotonic() < until_s and processes[0].is_alive() and not processes[2].is_alive()
    finally:
        processes[0].terminate()


def test_too_many_processes_are_refused() -> None:
    many = msgspec.structs.replace(CELL, ues=(UeGroup(name="many", count=100),))
    with pytest.raises(BadInput, match="at most 64, not 100"):
        run_cell_really(many)


@pytest.mark.parametrize(
    "group",
    [UeGroup(name="a", protocol="split"), UeGroup(name="a", protocol="fh", judge_keeps=0.1),
     UeGroup(name="a", window_rule="hinted-predicted")],
)  # fmt: skip
def test_what_only_virtual_time_has_is_refused(group: UeGroup) -> None:
    with pytest.raises(BadInput, match=r"group a: .*--real"):
        run_cell_really(msgspec.structs.replace(CELL, ues=(group,)))


def test_deadlines_are_for_virtual_time() -> None:
    with pytest.raises(BadInput, match="without deadlines"):
        run_cell_really(msgspec.structs.replace(CELL, radio=RadioConfig(scheduler="edf")))


POOR = UeGroup(name="poor", count=2, alpha=0.05, window=6, window_rule="hinted", profile="edge-sd", response=(20, 40))
EITHER = UeGroup(name="either", count=2, protocol="sh", protocol_hints=True, window=4, response=(20, 40))
DECIDED = msgspec.structs.replace(
    CELL, seconds=8.0, warmup_s=3.0, ues=(POOR, EITHER), bs=CellBs(),
    radio=RadioConfig(bandwidth_hz=2e7, scheduler="joint", wired_ms=50.0),
    control=CellControl(windows="joint", weights="joint", protocol="joint"),
)  # fmt: skip


def test_decisions_reach_processes_as_in_virtual_time() -> None:
    """Drafts that are nearly never accepted are given up, and hidden states go along where a further trip takes
    100 ms.
    """
    found = [
        {row["group"]: row for row in document(DECIDED, run)["rows"]}
        for run in (run_cell_really(DECIDED), run_cell(DECIDED))
    ]
    for rows in found:
        assert rows["poor"]["window"] < 0.5 and rows["poor"]["goodput_tps"] > 0
        assert rows["either"]["fh_share"] > 0.7 and rows["either"]["window"] > 2
        assert 0 <= rows["either"]["switches_per_s"] < 2


def test_the_own_hints_of_the_base_station_reach_processes() -> None:
    hinted = msgspec.structs.replace(DECIDED, ues=(POOR,), control=CellControl(), radio=CELL.radio)
    (row,) = document(hinted, run_cell_really(hinted))["rows"]
    assert row["window"] < 1.0 and row["goodput_tps"] > 0 and row["switches_per_s"] == 0


def test_weights_hold_for_all_connections_of_a_ue() -> None:
    """For those that come later, too; slots and shares are sums over them."""
    cell = RadioCell(RadioConfig(scheduler="joint"), RadioConfig().air([RadioUe(0)], 1.0, 0), 0)
    up = RelayedPorts(0, True, 2.0, cell)
    first = up.make()
    up.weight = 5.0
    second = up.make()
    assert (up.weight, first.weight, second.weight) == (5.0, 5.0, 5.0)
    first.slots, second.slots, second.used = 3, 4, 0.5
    assert (up.slots, up.used) == (7, 0.5)


def test_what_processes_could_not_read_is_refused_before_they_start() -> None:
    nowhere = msgspec.structs.replace(CELL, ues=(UeGroup(name="a", profile="nowhere"),))
    with pytest.raises(BadInput, match="no profile 'nowhere'"):
        run_cell_really(nowhere)
    lost = msgspec.structs.replace(CELL, radio=RadioConfig(source=TraceSource(files=("lost",))))
    with pytest.raises(BadInput, match="lost"):
        run_cell_really(lost)
    slow = msgspec.structs.replace(CELL, bs=CellBs(profile="wisv"))
    with pytest.raises(BadInput, match="no coefficients of eq"):
        run_cell_really(slow)
