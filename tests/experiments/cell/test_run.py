"""Cells in virtual time: UEs on one radio delay each other, and results agree with what formulas give."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from testbed.channel.radio.config import ConstantSource, Harq, RadioConfig
from testbed.channel.radio.model import ModelSource
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellBs, CellConfig, UeGroup, UePower
from testbed.experiments.cell.rows import document, jain, summary, ue_rows
from testbed.experiments.cell.run import run_cell

FH = UeGroup(name="fh", protocol="fh", alpha=0.8, class_tps=6.0)


def rows(config: CellConfig) -> dict[str, Any]:
    return {row["group"]: row for row in document(config, run_cell(config))["rows"]}


def sending(count: int, message_bytes: int, every_s: float, name: str = "bytes", weight: float = 1.0) -> UeGroup:
    return UeGroup(name=name, count=count, weight=weight, traffic="bytes", message_bytes=message_bytes, every_s=every_s)


def test_a_message_alone_takes_its_bits_over_the_rate() -> None:
    radio = RadioConfig(bandwidth_hz=1e6, slot_ms=1.0, source=ConstantSource(bits_per_s_per_hz=2.0), grant_ms=4.0)
    config = CellConfig(seconds=12.0, radio=radio, ues=(sending(1, 20_000, 0.5),))
    found = rows(config)["bytes"]
    assert found["messages"] in (19, 20)
    assert 0.08 + 0.004 - 1e-9 <= found["message_delay_s"]["mean"] <= 0.08 + 0.004 + 0.002
    assert found["uplink_bytes"] == pytest.approx(20 * 20_000, abs=40_000)


@pytest.mark.parametrize(("weight", "share"), [(1.0, 1 / 2), (3.0, 3 / 4)])
def test_saturated_ues_share_as_their_weights_say(weight: float, share: float) -> None:
    radio = RadioConfig(bandwidth_hz=1e6, scheduler="weights")
    ues = (sending(1, 20_000, 0.04, "a", weight), sending(1, 20_000, 0.04, "b"))
    config = CellConfig(seconds=12.0, radio=radio, ues=ues)
    found = rows(config)
    rates = [found[name]["uplink_mbps"] for name in "ab"]
    assert sum(rates) == pytest.approx(2.0, rel=0.02)
    assert rates[0] / sum(rates) == pytest.approx(share, abs=0.02)


def test_rounds_of_one_group_are_delayed_by_another_groups_bytes() -> None:
    """Fails if UEs have links of their own."""
    radio = RadioConfig(bandwidth_hz=2e6)
    alone = CellConfig(seconds=22.0, radio=radio, ues=(msgspec.structs.replace(FH, count=2),))
    beside = msgspec.structs.replace(alone, ues=(*alone.ues, sending(4, 100_000, 0.5)))
    first, second = rows(alone)["fh"], rows(beside)["fh"]
    assert second["message_delay_s"]["mean"] > 1.5 * first["message_delay_s"]["mean"]
    assert second["goodput_tps"] < 0.9 * first["goodput_tps"]
    assert second["radio_share"] > first["radio_share"]


def test_weights_change_what_eight_decoding_ues_get() -> None:
    ues = tuple(
        msgspec.structs.replace(FH, name=name, count=4, weight=weight) for name, weight in (("a", 3.0), ("b", 1.0))
    )
    config = CellConfig(seconds=22.0, radio=RadioConfig(bandwidth_hz=1e6, scheduler="weights"), ues=ues)
    found = rows(config)
    equal = rows(msgspec.structs.replace(config, radio=RadioConfig(bandwidth_hz=1e6)))
    assert found["a"]["message_delay_s"]["mean"] < equal["a"]["message_delay_s"]["mean"]
    assert found["b"]["message_delay_s"]["mean"] > equal["b"]["message_delay_s"]["mean"]
    assert found["a"]["goodput_tps"] > found["b"]["goodput_tps"]


def test_eight_ues_with_hidden_states_share_20_mhz_as_their_weights_say() -> None:
    """Windows of eight UEs come at the same time; one of b bits alone takes b / R. With weights 3 : 1, the four of the
    first group have 3/16 of the rate each, and the others what they leave: 16b / 3R and 8b / R. Fails if links are
    private.
    """
    one = UeGroup(name="a", protocol="fh", alpha=1.0, window=8, response=(9, 9), prompt=(50, 50), together=True)
    radio = RadioConfig(bandwidth_hz=20e6, scheduler="weights")

    def delays_s(*groups: tuple[str, int, float]) -> list[float]:
        ues = tuple(
            msgspec.structs.replace(one, name=name, count=count, weight=weight) for name, count, weight in groups
        )
        found = rows(CellConfig(seconds=12.0, radio=radio, ues=ues))
        return [found[name]["message_delay_s"]["p95"] for name, _, _ in groups]  # of windows, not of prompts

    (alone_s,) = delays_s(("a", 1, 1.0))
    assert alone_s == pytest.approx(8 * 8 * 4096 / 40e6, rel=0.2)  # 8 tokens of 2,048 half-precision numbers
    equal, weighted = delays_s(("a", 4, 1.0), ("b", 4, 1.0)), delays_s(("a", 4, 3.0), ("b", 4, 1.0))
    assert equal == pytest.approx([8 * alone_s] * 2, rel=0.1)
    assert weighted == pytest.approx([16 / 3 * alone_s, 8 * alone_s], rel=0.1)


def test_tokens_come_at_the_rate_of_the_acceptance() -> None:
    """Committed tokens per round of a UE with window K and acceptance α: (1 − α^(K+1)) / (1 − α)."""
    config = CellConfig(seconds=62.0, ues=(UeGroup(name="one", alpha=0.7, window=4, response=(200, 200)),))
    (_, (tally,)), *_ = run_cell(config).groups
    assert tally.tokens / tally.sent == pytest.approx((1 - 0.7**5) / 0.3, rel=0.08)


@pytest.mark.parametrize("protocol", ["rejection", "split", "coupled"])
def test_protocols_that_sample_accept_with_the_same_probability(protocol: str) -> None:
    one = UeGroup(name="one", alpha=0.7, window=4, response=(200, 200), protocol=protocol)
    config = CellConfig(seconds=62.0, radio=RadioConfig(bandwidth_hz=1e9), ues=(one,))
    (_, (tally,)), *_ = run_cell(config).groups
    assert tally.rounds > 200
    assert tally.tokens / tally.rounds == pytest.approx((1 - 0.7**5) / 0.3, rel=0.08)


@pytest.mark.parametrize("protocol", ["fh", "sh"])
def test_a_judge_that_keeps_tokens_raises_the_acceptance(protocol: str) -> None:
    """A token stays with probability α + (1 − α)·κ."""
    one = UeGroup(name="one", alpha=0.7, judge_keeps=0.5, window=4, response=(200, 200), protocol=protocol)
    config = CellConfig(seconds=62.0, radio=RadioConfig(bandwidth_hz=1e9), ues=(one,))
    (_, (tally,)), *_ = run_cell(config).groups
    assert tally.tokens / tally.rounds == pytest.approx((1 - 0.85**5) / 0.15, rel=0.08)


def test_target_only_drafts_nothing_and_hints_bound_windows() -> None:
    alone = UeGroup(name="alone", protocol="target-only", count=2)
    hinted = UeGroup(name="hinted", window_rule="hinted", window=8, count=2)
    found = rows(CellConfig(seconds=12.0, ues=(alone, hinted)))
    assert found["alone"]["window"] == 0 and found["alone"]["goodput_tps"] > 0
    assert 0 <= found["hinted"]["window"] <= 8


def test_joules_are_powers_times_the_times_of_the_activities() -> None:
    power = UePower(idle_w=5.0, draft_w=10.0, transmit_w=2.0, receive_w=1.0)
    group = msgspec.structs.replace(FH, power=power, count=2)
    config = CellConfig(seconds=12.0, radio=RadioConfig(bandwidth_hz=5e6), ues=(group,))
    run = run_cell(config)
    (_, tallies), *_ = run.groups
    (row,) = document(config, run)["rows"]
    parts = [10 * t.computed_s + 2 * t.air_s[True] + 1 * t.air_s[False] for t in tallies]
    assert all(t.air_s[True] > t.air_s[False] > 0 for t in tallies)
    assert row["joules_per_token"] == pytest.approx((2 * 5 * 10 + sum(parts)) / sum(t.tokens for t in tallies))
    assert rows(msgspec.structs.replace(config, ues=(FH,)))["fh"]["joules_per_token"] is None


@pytest.mark.parametrize("duplex", ["fdd", "tdd"])
def test_series_add_up_to_the_rows(duplex: Literal["fdd", "tdd"]) -> None:
    radio = RadioConfig(bandwidth_hz=5e6, duplex=duplex)
    config = CellConfig(seconds=12.0, radio=radio, ues=(msgspec.structs.replace(FH, count=3), sending(2, 5000, 0.05)))
    run = run_cell(config)
    assert run.series is not None
    series = run.series
    (_, tallies), _ = run.groups
    shares = [sum(group.uplink_share) for group in series.groups.values()]
    assert len(series.queue) == 100
    assert sum(shares) / 100 == pytest.approx(run.uplink, rel=1e-6)
    assert sum(rate or 0.0 for rate in series.groups["fh"].goodput_tps) * 0.1 == pytest.approx(
        sum(t.tokens for t in tallies)
    )
    assert set(series.groups["bytes"].goodput_tps) == {None}
    assert series.latencies_s["fh"] == [latency for tally in tallies for latency in tally.latencies_s]


@pytest.mark.parametrize("load", [0.5, pytest.param(0.8, marks=pytest.mark.long)])
def test_random_requests_wait_as_in_an_m_d_1_queue(load: float) -> None:
    """Responses of constant length and acceptance 1 take a constant time D; the mean wait is ρ/(2(1 − ρ))·D."""
    one = UeGroup(name="one", alpha=1.0, response=(20, 20), prompt=(50, 50), profile="edge-sd")
    config = CellConfig(seconds=32.0, radio=RadioConfig(bandwidth_hz=1e9), ues=(one,))
    seconds = rows(config)["one"]["latency_s"]
    queued = msgspec.structs.replace(one, rate_rps=load / seconds)
    runs = [
        rows(msgspec.structs.replace(config, seconds=2000 * seconds, seed=seed, step_s=10.0, ues=(queued,)))["one"]
        for seed in range(3)
    ]
    mean = sum(run["latency_s"] * run["responses"] for run in runs) / sum(run["responses"] for run in runs)
    assert mean == pytest.approx(seconds * (1 + load / (2 * (1 - load))), rel=0.15)


def test_edf_serves_the_ues_with_a_guaranteed_speed_first() -> None:
    ues = (msgspec.structs.replace(FH, name="none", class_tps=None, count=3), msgspec.structs.replace(FH, name="due"))
    found = {}
    for name in ("round-robin", "edf"):
        config = CellConfig(seconds=22.0, radio=RadioConfig(bandwidth_hz=1e6, scheduler=name), ues=ues)
        found[name] = rows(config)["due"]["message_delay_s"]["mean"]
    assert found["edf"] < 0.7 * found["round-robin"]


def test_rows_of_ues_add_up_to_those_of_their_groups() -> None:
    config = CellConfig(seconds=8.0, ues=(msgspec.structs.replace(FH, count=3), sending(2, 5000, 0.05)))
    run = run_cell(config)
    groups, ues = document(config, run)["rows"], ue_rows(config, run)
    assert [(row["ue"], row["group"]) for row in ues] == [(0, "fh"), (1, "fh"), (2, "fh"), (3, "bytes"), (4, "bytes")]
    for group in groups:
        mine = [row for row in ues if row["group"] == group["group"]]
        assert sum(row["uplink_bytes"] for row in mine) == pytest.approx(group["uplink_bytes"], abs=3)
        assert sum(row["goodput_tps"] or 0 for row in mine) == pytest.approx(group["goodput_tps"] or 0)


def test_the_same_seed_gives_the_same_document_and_another_seed_another() -> None:
    radio = RadioConfig(bandwidth_hz=5e6, duplex="tdd", grant_ms=2.0, harq=Harq(bler=0.1), wired_ms=3.0)
    config = CellConfig(seconds=8.0, radio=radio, ues=(msgspec.structs.replace(FH, count=3), sending(2, 5000, 0.05)))

    def once(seed: int) -> bytes:
        return msgspec.json.encode(document(msgspec.structs.replace(config, seed=seed), run_cell(
            msgspec.structs.replace(config, seed=seed))))  # fmt: skip

    assert once(0) == once(0) != once(1)


def test_a_late_response_is_a_violation_and_a_group_that_is_not_judged_has_none() -> None:
    slow = UeGroup(name="slow", class_tps=1000.0, response=(20, 40))
    config = CellConfig(seconds=12.0, ues=(slow, UeGroup(name="free", response=(20, 40))))
    found = rows(config)
    assert found["slow"]["judged"] > 0 and found["slow"]["violations"] == 1.0
    assert found["free"]["judged"] is None and found["free"]["violations"] is None
    starved = msgspec.structs.replace(config, ues=(msgspec.structs.replace(slow, class_tps=0.001),))
    assert rows(starved)["slow"]["violations"] is None  # none was due


@pytest.mark.parametrize("scheduler", ["slo", "fcfs"])
def test_what_binds_is_named(scheduler: str) -> None:
    def bound(bandwidth_hz: float, count: int, profile: str) -> str:
        group = msgspec.structs.replace(FH, count=count, class_tps=None, profile=profile)
        config = CellConfig(
            seconds=7.0, radio=RadioConfig(bandwidth_hz=bandwidth_hz), ues=(group,), bs=CellBs(scheduler=scheduler)
        )
        name: str = document(config, run_cell(config))["cell"]["bound_by"]
        return name

    assert bound(20e6, 1, "wisv") == "drafting"
    assert bound(2e5, 4, "wisv") == "radio"
    assert bound(1e9, 40, "wisv") == "verification"


def test_configurations_that_cannot_be_run() -> None:
    with pytest.raises(BadInput, match="needs groups"):
        CellConfig()
    with pytest.raises(BadInput, match="leaves nothing"):
        CellConfig(seconds=1.0, ues=(FH,))
    with pytest.raises(BadInput, match="different names"):
        CellConfig(ues=(FH, FH))
    with pytest.raises(BadInput, match="at most 5000"):
        CellConfig(ues=tuple(UeGroup(name=name, count=3000) for name in "ab"))
    with pytest.raises(BadInput, match="unknown radio scheduler"):
        RadioConfig(scheduler="lottery")
    with pytest.raises(BadInput, match=r"unknown protocol 'auto'; known: greedy, .*target-only"):
        UeGroup(name="a", protocol="auto")
    with pytest.raises(BadInput, match="no judge keeps tokens under split"):
        UeGroup(name="a", protocol="split", judge_keeps=0.1)
    with pytest.raises(BadInput, match="rate_rps or after think_s"):
        UeGroup(name="a", rate_rps=1.0, think_s=1.0)
    with pytest.raises(BadInput, match="unknown window rule"):
        UeGroup(name="a", window_rule="none")
    with pytest.raises(BadInput, match="do not fit"):
        run_cell(CellConfig(ues=(FH,), radio=RadioConfig(source=ConstantSource(bits_per_s_per_hz=(1.0, 2.0)))))


def test_rows_hold_the_token_speed_beside_the_promise() -> None:
    """The speed of responses that are answered in a constant time is their tokens over it."""
    one = UeGroup(name="one", alpha=1.0, response=(20, 20), prompt=(50, 50), class_tps=4.0)
    found = rows(CellConfig(seconds=22.0, ues=(one, sending(1, 5000, 0.05))))
    assert found["one"]["throughput_tps"] == pytest.approx(20 / found["one"]["latency_s"])
    assert (found["one"]["class_tps"], found["bytes"]["class_tps"], found["bytes"]["throughput_tps"]) == (4, None, None)


def test_a_run_tells_how_far_it_is() -> None:
    told: list[tuple[float, float]] = []
    run_cell(CellConfig(seconds=4.0, step_s=0.5, ues=(FH,)), told=lambda *passed: told.append(passed))
    assert told == [(2.5, 4.0), (3.0, 4.0), (3.5, 4.0), (4.0, 4.0)]


def test_summaries() -> None:
    assert jain([1.0, 1.0, 1.0]) == 1.0 and jain([1.0, 0.0]) == 0.5 and jain([0.0]) is None
    assert summary([]) == {"mean": None, "p50": None, "p95": None}
    assert summary([1.0, 2.0, 3.0])["p50"] == 2.0


def test_ues_near_the_base_station_get_more_than_those_at_the_edge() -> None:
    source = ModelSource(shadowing_db=0.0, load=0.3)
    ues = tuple(
        msgspec.structs.replace(sending(2, 400_000, 0.1, name), distance_m=(at, at), speed_mps=1.0)
        for name, at in (("near", 30.0), ("edge", 350.0))
    )
    found = rows(CellConfig(seconds=8.0, radio=RadioConfig(source=source), ues=ues))
    assert found["near"]["uplink_mbps"] > 2 * found["edge"]["uplink_mbps"] > 0


def test_a_step_longer_than_what_is_counted_is_refused() -> None:
    """Such a run went on to the end of the step, and its counters were divided by the time that should have counted."""
    whole = CellConfig(seconds=5.0, warmup_s=1.0, step_s=4.0, ues=(UeGroup(name="one"),))
    with pytest.raises(BadInput, match="only 4 s are counted"):
        msgspec.structs.replace(whole, step_s=4.5)
