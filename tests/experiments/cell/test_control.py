"""The controller of a cell: windows and radio weights decided while serving."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from testbed.bs.control.messages import Decided
from testbed.channel.cost import Sizes
from testbed.channel.radio.config import ConstantSource, RadioConfig
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellBs, CellConfig, CellControl, UeGroup
from testbed.experiments.cell.control import controller
from testbed.experiments.cell.control.modes import round_mode
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell
from testbed.protocols import PROTOCOLS
from testbed.ue.session import DecodingSession
from testbed.ue.windows.hinted import Hinted

JOINT = CellControl(windows="joint", weights="joint")
HIDDEN = Sizes(hidden_size=2048, id_bits=17)


def group(name: str, **fields: Any) -> UeGroup:
    return msgspec.structs.replace(UeGroup(name=name, count=3, protocol="fh", response=(40, 80)), **fields)


def cell(*ues: UeGroup, control: CellControl = JOINT, bandwidth_hz: float = 4e6, **fields: Any) -> CellConfig:
    scheduler = "joint" if control.weights == "joint" else "round-robin"
    source = ConstantSource(bits_per_s_per_hz=fields.pop("efficiency", 2.0))
    wired_ms = fields.pop("wired_ms", 0.0)
    radio = RadioConfig(bandwidth_hz=bandwidth_hz, scheduler=scheduler, source=source, wired_ms=wired_ms)
    return CellConfig(seconds=fields.pop("seconds", 7.0), radio=radio, ues=ues, control=control, **fields)


def rows(config: CellConfig) -> dict[str, Any]:
    return {row["group"]: row for row in document(config, run_cell(config))["rows"]}


@pytest.mark.parametrize("kind", sorted(kind for kind in PROTOCOLS if not PROTOCOLS[kind].sampled))
def test_bits_of_a_mode_are_those_of_the_protocol(kind: str) -> None:
    mode = round_mode(kind, (0.8,), HIDDEN, asked=0.25)
    for window in (1, 4, 12):
        bits = mode.fixed_bits + window * (mode.token_bits + mode.asked * mode.asked_bits)
        queried = window / 4 if mode.asked else 0
        plain = PROTOCOLS[kind].payload(window, 0, HIDDEN).uplink_bits
        each = PROTOCOLS[kind].payload(window, 1, HIDDEN).uplink_bits - plain
        assert bits == pytest.approx(plain + queried * each, abs=window)  # positions have fewer bits in short windows


def apt_and_poor(poor_alpha: float, profile: str, control: CellControl) -> dict[str, Any]:
    """Rows of UEs whose drafts are nearly always accepted, and of others."""
    ues = (
        group(name, alpha=alpha, window=12, window_rule="hinted", protocol="greedy", profile=profile)
        for name, alpha in (("apt", 0.95), ("poor", poor_alpha))
    )
    return rows(cell(*ues, control=control, bandwidth_hz=1e8, wired_ms=5.0))


def test_windows_follow_the_acceptance_rate() -> None:
    found = apt_and_poor(0.75, "edge-sd", CellControl(windows="joint"))
    assert found["apt"]["window"] > found["poor"]["window"] + 2 and found["poor"]["window"] > 0.5
    assert found["poor"]["switches_per_s"] < 2


@pytest.mark.parametrize("profile", ["edge-sd", "wisv"])
def test_the_bs_decodes_alone_where_drafts_do_not_pay(profile: str) -> None:
    """A pass takes 15 ms, a drafted token 1.3 ms (edge-sd) or 17 ms (wisv): tokens that are rarely accepted, or that
    take as long as a pass, are not worth their time. The BS's controller of each UE finds this alone, too.
    """
    found = apt_and_poor(0.2, profile, CellControl(windows="joint"))
    alone = apt_and_poor(0.2, profile, CellControl())
    assert found["poor"]["window"] < 0.1
    assert (found["apt"]["window"] > 8) == (profile == "edge-sd")
    total, total_alone = (sum(each[name]["goodput_tps"] for name in ("apt", "poor")) for each in (found, alone))
    assert total >= 0.97 * total_alone


def test_a_promise_gets_the_bandwidth_that_it_needs_from_ues_that_ignore_hints() -> None:
    """Beside UEs with windows of 16 tokens, equal shares break the promise and decided ones keep it."""
    bound = group("bound", count=2, class_tps=22.0, alpha=0.8, window=4)
    greedy = group("greedy", count=6, window=16, alpha=0.6)
    equal = rows(cell(bound, greedy, control=CellControl(), seconds=12.0))
    joint = rows(cell(bound, greedy, control=CellControl(weights="joint"), seconds=12.0))
    assert equal["bound"]["violations"] > 0.5
    assert joint["bound"]["judged"] >= 4 and joint["bound"]["violations"] == 0
    assert joint["greedy"]["goodput_tps"] > 0


@pytest.mark.parametrize("asks", [False, True])
def test_ues_that_ignore_hinted_windows_break_no_promise(asks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside UEs that follow hints, six draft 16 tokens whatever is decided: they ask for no hints, or they ask and
    take only 0, with which the base station decodes alone. Equal shares break the promise.
    """

    def take(rule: Hinted, window: int) -> None:
        rule._window = rule.limit if window and rule.limit == 16 else min(window, rule.limit)

    monkeypatch.setattr(Hinted, "hinted", take)
    bound = group("bound", count=2, class_tps=22.0, alpha=0.8, window=4, window_rule="hinted")
    deaf = group("deaf", count=6, window=16, alpha=0.6, window_rule="hinted" if asks else "fixed")
    fixed = [msgspec.structs.replace(one, window_rule="fixed") for one in (bound, deaf)]
    equal = rows(cell(*fixed, control=CellControl(), seconds=12.0))
    joint = rows(cell(bound, deaf, seconds=12.0))
    assert equal["bound"]["violations"] > 0.5
    assert joint["bound"]["judged"] >= 4 and joint["bound"]["violations"] == 0
    assert joint["deaf"]["goodput_tps"] > 0 and (asks or joint["deaf"]["window"] > 14)


def test_no_weight_falls_below_a_part_of_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    weights: list[float] = []

    def decided(window: int, mode: str, worth: float, weight: float, *rest: Any) -> Decided:
        weights.append(weight)
        return Decided(window, mode, worth, weight, *rest)

    monkeypatch.setattr(controller, "Decided", decided)
    ues = group("long", count=2, window=16), group("short", count=5, window=6)
    rows(cell(*ues, control=CellControl(weights="joint"), bandwidth_hz=1.5e6, seconds=10.0))
    assert min(weights) == 0.05 and max(weights) > 1


@pytest.mark.parametrize("stated_s", [50.0, 3000.0])
def test_a_ue_that_states_a_long_drafting_time_takes_nothing_from_others(
    stated_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A UE that drafts most of the time would send rarely, so that a high weight would cost nobody anything."""
    weights = CellControl(weights="joint")
    ues = group("liar", count=1, window=16), group("honest", count=6, window=6)
    config = cell(*ues, control=weights, bandwidth_hz=1.5e6, seconds=14.0, warmup_s=4.0)
    honest = rows(config)
    outgoing = DecodingSession._outgoing

    def lying(self: DecodingSession, drafted: Any, *given: Any, **named: Any) -> Any:
        found = outgoing(self, drafted, *given, **named)
        if len(drafted.ids) > 6:
            found.draft = msgspec.structs.replace(found.draft, draft_s=stated_s)
        return found

    monkeypatch.setattr(DecodingSession, "_outgoing", lying)
    lied = rows(config)
    assert lied["honest"]["goodput_tps"] == pytest.approx(honest["honest"]["goodput_tps"], rel=0.03)
    assert lied["liar"]["goodput_tps"] == pytest.approx(honest["liar"]["goodput_tps"], abs=0.5)


def test_the_same_configuration_gives_the_same_result() -> None:
    ues = (group("a", window_rule="hinted"), group("b", alpha=0.6))
    assert rows(cell(*ues)) == rows(cell(*ues))


def test_without_control_nothing_is_decided() -> None:
    found = rows(cell(group("a", window=6), control=CellControl()))
    assert found["a"]["switches_per_s"] == 0 and found["a"]["window"] > 5


@pytest.mark.parametrize(
    ("control", "scheduler", "message"),
    [
        (CellControl(weights="joint"), "round-robin", "radio.scheduler round-robin ignores"),
        (CellControl(), "joint", "radio.scheduler joint needs"),
        (CellControl(windows="joint"), "edf", "window_rule: hinted"),
        (CellControl(order="joint"), "edf", "bs.scheduler fcfs does not order by them"),
    ],
)
def test_controls_that_nothing_follows_are_refused(control: CellControl, scheduler: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        CellConfig(radio=RadioConfig(scheduler=scheduler), ues=(group("a"),), control=control)


def test_unknown_objectives_are_refused() -> None:
    with pytest.raises(BadInput, match="goodput, fair"):
        CellControl(objective="speed")


def test_under_fairness_the_order_of_batches_favours_tokens_of_slow_ues() -> None:
    """A pass has room for two requests of eight: the utility of eq. 16 prefers UEs with long accepted windows."""
    apt, poor = (group(n, count=8, alpha=a, protocol="greedy", window=4) for n, a in (("apt", 0.9), ("poor", 0.5)))
    found = {}
    for order, objective in (("fixed", "fair"), ("joint", "fair"), ("joint", "goodput")):
        control = CellControl(order=order, objective=objective)
        config = cell(apt, poor, control=control, bandwidth_hz=1e8, bs=CellBs(scheduler="slo", max_batch=2))
        found[order, objective] = [rows(config)[name]["goodput_tps"] for name in ("apt", "poor")]
    assert found["joint", "fair"][1] > 1.05 * found["fixed", "fair"][1]
    assert found["joint", "goodput"] == found["fixed", "fair"]  # all tokens are worth the same: Algorithm 1


def test_decided_weights_move_bandwidth_to_weak_channels_under_fairness() -> None:
    near, far = group("near", window_rule="hinted"), group("far", window_rule="hinted")
    fair = CellControl(windows="joint", weights="joint", objective="fair")
    config = cell(near, far, control=fair, bandwidth_hz=2e6, efficiency=(4.0, 1.0))
    equal = msgspec.structs.replace(
        config, control=CellControl(), radio=msgspec.structs.replace(config.radio, scheduler="round-robin"),
        ues=tuple(msgspec.structs.replace(ue, window_rule="fixed") for ue in config.ues),
    )  # fmt: skip
    joint, fixed = rows(config), rows(equal)
    mean = [np.prod([found[name]["goodput_tps"] for name in ("near", "far")]) for found in (joint, fixed)]
    assert mean[0] > mean[1]
