"""Loads of UE processes: what is asked of each, what is refused, and how their reports are judged."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from testbed.bs.scheduling.registry import SCHEDULERS
from testbed.cli.capacity import combined
from testbed.errors import BadInput, EngineError
from testbed.experiments.capacity import real
from testbed.experiments.capacity.pooled import pooled
from testbed.experiments.capacity.real import _orders, _serving
from testbed.experiments.capacity.real_config import RealConfig, real_system
from testbed.experiments.capacity.real_tally import tally
from testbed.experiments.capacity.real_ue import Report, Response, UeOrder, UeRound
from testbed.experiments.capacity.tally import ClassCount
from testbed.ue.windows.fixed import FIXED

METRICS = Path("metrics.jsonl")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"systems": ("abacus",)}, "known: wisp"),
        ({"systems": ("fixed-0",)}, "1..256"),
        ({"systems": ("fixed-many",)}, "1..256"),
        ({"systems": ()}, "one system or more"),
        ({"ues": (65,)}, "1 to 64"),
        ({"mix": {}}, "a mix"),
        ({"mix": {2.0: 0}}, "a mix"),
        ({"draft_tps": 0.0}, "positive"),
        ({"prompts": 3}, "prompts"),
        ({"max_batch": 0}, "max-batch"),
        ({"channel": "kind=virtual,rtt_ms=40"}, "--real takes kind=none"),
        ({"channel": "kind=proxy,colour=red"}, "bad channel"),
        ({"channel": "kind=proxy,uplink_mbps=1,shares=SHARES"}, "shares for 2 UEs, fewer than the 16"),
        ({"channel": "kind=proxy,uplink_mbps=1", "radio": "CELL"}, "not both"),
        ({"shares": "SHARES"}, "need a radio"),
        ({"radio": "CELL", "shares": "SHARES"}, "radio.scheduler"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, Any], says: str, tmp_path: Path) -> None:
    shares, cell = tmp_path / "shares.json", tmp_path / "cell.yaml"
    shares.write_text('{"bandwidth": [0.25, 0.75]}')
    cell.write_text("radio: {scheduler: round-robin}")
    for name in ("channel", "radio", "shares"):
        if name in values:
            values = {**values, name: values[name].replace("SHARES", str(shares)).replace("CELL", str(cell))}
    with pytest.raises(BadInput, match=says):
        RealConfig(**values)


def test_it_is_configured_as_the_virtual_study_is(tmp_path: Path) -> None:
    path = tmp_path / "real.yaml"
    path.write_text("{mix: {10: 1, 20: 3}, ues: [4]}")
    config = combined(RealConfig(), path, {"systems": ["fixed-3"]}, ["horizon_s=5"])
    assert (config.mix, config.ues, config.systems, config.horizon_s) == ({10.0: 1, 20.0: 3}, (4,), ("fixed-3",), 5.0)
    assert RealConfig(systems=("fixed-12", "wisp")).depth == 12


def test_systems_differ_in_what_they_are_named_for() -> None:
    config = RealConfig(coefficients="a100-qwen3-32b", max_batch=3)
    assert real_system("fixed-7") == (SCHEDULERS["fcfs"], FIXED, True, 7)
    assert not _serving(config, "sled", METRICS).prefix_cache and _serving(config, "wisp", METRICS).prefix_cache
    assert _serving(config, "wisp", METRICS).coefficients and not _serving(config, "fcfs-cache", METRICS).coefficients
    orders = {
        name: _orders(config, name, 7, ["tcp://x"] * 4, Path("d"), 100.0) for name in ("wisp", "sled", "centralized")
    }
    assert {one.promised for one in orders["wisp"]} == {True} and {one.promised for one in orders["sled"]} == {False}
    assert orders["wisp"][0].window == orders["sled"][0].window == config.window
    assert orders["wisp"][0].rule == "before-rejection"
    assert orders["centralized"][0].rule is None and orders["wisp"][0].predictor is not None
    for name, given in orders.items():
        assert sorted(one.speed_tps for one in given) == [2.0, 4.0, 6.0, 8.0], name
        assert all(one.seed == orders["wisp"][0].seed and one.stop_s == 100 + 4 + 20 + 3 for one in given)
    assert _orders(config, "wisp", 7, ["tcp://x"] * 8, Path("d"), 100.0)[0].seed != orders["wisp"][0].seed


def reply(end_s: float, **values: Any) -> UeRound:
    given = {"drafted": 4, "accepted": 3, "committed": 4, "batch_size": 2, "draft_s": 0.1, "link_s": 0.0}
    return UeRound(end_s=end_s, **{**given, "queue_s": 0.2, "verify_s": 0.3, "wasted_s": 0.025, **values})


def test_only_the_horizon_counts() -> None:
    slow = Report(
        8.0,
        [Response(9.9, 11.0, 10, True), Response(10.0, 12.0, 15, True), Response(19.9, 21.0, 10, False)],
        [reply(9.9), reply(10.0), reply(20.0)],
        False,
    )
    fast = Report(2.0, [Response(10.0, 20.0, 20, True), Response(20.0, 90.0, 1, True)], [reply(15.0, accepted=0)], True)
    run = tally("wisp", 2, 0, [slow, fast], 10.0, 20.0)
    assert {name: (c.judged, c.violated) for name, c in run.classes.items()} == {"2": (1, 0), "8": (2, 1)}
    assert run.speeds == {"2": pytest.approx(2.0), "8": pytest.approx((7.5 + 10 / 1.1) / 2)}
    assert run.goodput_tps == pytest.approx(0.8) and (run.drafted, run.accepted, run.rounds) == (8, 3, 2)
    assert run.different == 1 and run.wrapped
    row = run.row(0.05)
    assert row["violations"] == {"2": 0.0, "8": 0.5} and row["violation"] == pytest.approx(1 / 3)
    assert not row["holds"] and not row["lossless"]
    assert row["acceptance"] == pytest.approx(3 / 8)


def test_a_class_holds_only_if_enough_of_its_responses_were_judged() -> None:
    run = tally("wisp", 1, 0, [Report(8.0, [], [], False)], 0.0, 1.0)
    row = run.row(0.05)
    assert not row["holds"] and row["verdicts"] == {"8": "undecided"} and row["violation"] is None
    assert run.goodput_tps == 0 and row["acceptance"] is None and "8: 0.0%" in run.described()
    for judged, verdict in ((59, "undecided"), (60, "kept")):
        fast = [Response(float(i), i + 0.5, 10, True) for i in range(judged)]
        row = tally("wisp", 1, 0, [Report(8.0, fast, [], False)], 0.0, 100.0).row(0.05)
        assert row["verdicts"] == {"8": verdict} and row["holds"] == (verdict == "kept")


def test_a_response_that_never_ends_is_violated_whenever_it_began() -> None:
    """Begun before the horizon and due within it; one that is due after the horizon says nothing."""
    starved, patient, late = Response(5.0, 30.0, 8, True), Response(5.0, 30.0, 200, True), Response(5.0, 15.0, 8, True)
    run = tally("wisp", 1, 0, [Report(8.0, [starved, patient, late], [], False)], 10.0, 20.0)
    assert run.classes["8"] == ClassCount(judged=1, violated=1, starved=1)


def test_seeds_are_pooled_with_the_first_system_where_there_is_no_baseline() -> None:
    rows = []
    for seed, (slow, fast) in enumerate(zip((10.0, 11.0, 10.5), (14.0, 15.5, 14.0), strict=True)):
        for system, goodput in (("fixed-8", slow), ("fcfs-predicted", fast)):
            run = tally(system, 1, seed, [Report(8.0, [Response(0.0, 1.0, 10, True)], [], False)], 0.0, 1.0)
            rows.append(msgspec.structs.replace(run, goodput_tps=goodput).row(0.05))
    base, found = pooled(rows, 0.05)
    assert "goodput_tps_verdict" not in base and found["goodput_tps_verdict"] == "ahead"
    assert (found["seeds"], found["judged"], found["class_verdict"]) == (3, 3, "undecided")


def ends_at_once(order: UeOrder, path: Path) -> None:
    """A UE process that something else ends, or one that goes on for a minute."""
    if not order.number:
        os._exit(1)
    time.sleep(60)


def test_a_ue_that_something_ended_ends_the_load_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It was seen when all other UEs had ended."""
    monkeypatch.setattr(real, "run_ue", ends_at_once)
    orders = _orders(RealConfig(), "fcfs-cache", 0, ["tcp://127.0.0.1:1"] * 2, tmp_path, time.monotonic())
    began_s = time.monotonic()
    with pytest.raises(EngineError, match="UE processes ended without a report"):
        real._reports(orders, tmp_path)
    assert time.monotonic() - began_s < 30


def test_a_base_station_that_stood_still_is_told_of_and_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its load had a quarter of the goodput, without a word, and a resumed study took it as it was."""
    config = RealConfig(
        systems=("fcfs-cache",), ues=(2,), mix={1.0: 1}, speed_scale=1.0, horizon_s=4.0, warmup_s=1.0, tail_s=0.0,
        prompts=8, max_tokens=16, repeats=1, admission=True,
    )  # fmt: skip
    pids: list[int] = []
    serving = real.base_station

    @contextlib.contextmanager
    def stopped(*args: Any, **kwargs: Any) -> Iterator[dict[str, Any]]:
        with serving(*args, **kwargs) as ready:
            pids.append(ready["pid"])
            yield ready

    def stop() -> None:
        os.kill(pids[0], signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(pids[0], signal.SIGCONT)

    reports = real._reports

    def reported(orders: Any, directory: Path) -> list[Report]:
        timer = threading.Timer(orders[0].start_s + 2.0 - time.monotonic(), stop)
        timer.start()
        try:
            return reports(orders, directory)
        finally:
            timer.join()

    monkeypatch.setattr(real, "base_station", stopped)
    monkeypatch.setattr(real, "_reports", reported)
    (row,) = real.study(config, tmp_path, lambda _: None)["rows"]
    assert row["still_s"] > 1.5 and "the base station stood still" in caplog.text
    caplog.clear()
    real.study(config, tmp_path, lambda _: None)
    assert "remove that file to measure it again" in caplog.text and len(pids) == 1
