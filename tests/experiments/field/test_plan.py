"""Plans: validation before a run, and balanced orders."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from testbed.assets.bundled_files import find, names
from testbed.errors import BadInput, ConfigError
from testbed.experiments.field.order import cells_of, williams
from testbed.experiments.field.plan import (
    FieldPlan,
    Method,
    Place,
    check_plan,
    check_same,
    load_plan,
    prompts_of,
    run_config,
)
from tests.support.refusals import refuse

PLACES = (Place(name="near", distance_m=2.0), Place(name="far", distance_m=20.0))
METHODS = tuple(Method(name=kind, protocol=kind) for kind in ("greedy", "fh", "sh"))
PLAN = FieldPlan(places=PLACES, methods=METHODS, repeats=6, prompts=3)


def changed(**fields: Any) -> FieldPlan:
    return msgspec.structs.replace(PLAN, **fields)


@pytest.mark.parametrize("n", range(1, 9))
def test_a_williams_design_is_balanced_in_positions_and_in_what_comes_before(n: int) -> None:
    rows = williams(n)
    assert all(sorted(row) == list(range(n)) for row in rows)
    places = Counter((position, one) for row in rows for position, one in enumerate(row))
    assert len(places) == n * n and len(set(places.values())) == 1
    after = Counter(pair for row in rows for pair in itertools.pairwise(row))
    assert len(after) == n * (n - 1) and len(set(after.values())) <= 1


def test_every_method_comes_once_in_every_repeat_and_orders_are_balanced_over_them() -> None:
    for place in PLACES:
        cells = cells_of(PLAN, place.name)
        rows = [[cell.method for cell in cells if cell.repeat == i] for i in range(6)]
        assert all(sorted(row) == ["fh", "greedy", "sh"] for row in rows)
        assert len({tuple(row) for row in rows}) == 6
        assert len({cell.key for cell in cells}) == len(cells) == 18
    firsts = [cells_of(changed(repeats=1), place.name)[0].method for place in PLACES]
    assert len(set(firsts)) == 2  # no method is first everywhere


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"places": ()}, "at least one place"),
        ({"methods": ()}, "at least one method"),
        ({"places": (PLACES[0], PLACES[0])}, "names must be unique"),
        ({"places": (Place(name="a/b", distance_m=1.0),)}, "invalid place 'a/b'"),
        ({"places": (Place(name="here", distance_m=0.0),)}, "distance_m must lie in"),
        ({"places": (Place(name="here", distance_m=1.0, ue="here"),)}, "bad address"),
        ({"places": (Place(name="here", distance_m=1.0, trace="walk"),)}, "traces are replayed by agents"),
        ({"places": (Place(name="here", distance_m=1.0, ue_keys="lab"),)}, "ue_keys need an agent"),
        ({"settle_s": -1.0}, "settle_s"),
        ({"methods": (Method(name="x", protocol="nothing"),)}, "method x: unknown protocol"),
        ({"methods": (Method(name="x", protocol="colocated"),)}, "without a link"),
        ({"methods": (Method(name="x", protocol="fh", threshold=0.5),)}, "judge strict keeps no mismatch"),
        ({"methods": (Method(name="x", protocol="fh", threshold=1.5),), "judge": "head"}, "threshold"),
        ({"methods": (Method(name="x", protocol="greedy", window=0),)}, "window"),
        ({"methods": (Method(name="x", protocol="fh", hidden_bits=7),)}, "hidden"),
        ({"methods": (Method(name="x", protocol="split"),), "pad": "wisv"}, "split"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"prompts": 0}, "prompts must be at least 1"),
        ({"iperf3": "a b"}, "bad iperf3 server"),
        ({"dataset": "nowhere.jsonl"}, "cannot read the data set"),
        ({"repeats": 9999}, "exceeds 10000 runs"),
    ],
)
def test_plans_that_cannot_be_followed_are_refused_in_one_line(fields: dict[str, Any], words: str) -> None:
    refuse(lambda: check_plan(changed(**fields)), BadInput, words)


def test_a_data_set_that_is_too_short_is_noticed_before(tmp_path: Path) -> None:
    path = tmp_path / "few.jsonl"
    path.write_text('{"question": "1 + 1?", "answer": "2"}\n' * 17)
    refuse(lambda: check_plan(changed(dataset=str(path))), BadInput, "need 18", "has 17")


def test_unknown_keys_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("{places: [{name: a, distance_m: 1, distanse: 2}], methods: [{name: g, protocol: greedy}]}")
    refuse(lambda: load_plan(path), ConfigError, "distanse", "did you mean 'distance_m'?")
    path.write_text("{places: [{name: a, distance_m: 1}], methods: [{name: g, protocoll: greedy}]}")
    refuse(lambda: load_plan(path), ConfigError, "protocoll", "did you mean 'protocol'?")


def test_repeats_take_other_prompts_and_methods_the_same() -> None:
    seen = [[e.question for e in prompts_of(PLAN, repeat)] for repeat in range(6)]
    assert all(len(one) == 3 + PLAN.warmup for one in seen)
    assert len({question for one in seen for question in one[:3]}) == 18
    assert all(one[-1] not in one[:3] for one in seen)  # what warms up is not what is measured


def test_a_method_is_run_as_it_is_written() -> None:
    plan = changed(methods=(*METHODS, Method(name="wide", protocol="fh", window=16, threshold=0.3)), judge="head")
    config = run_config(plan, "wide", "tcp://127.0.0.1:5", "passive", "prompts.jsonl")
    assert (config.methods, config.window, config.threshold) == (("fh",), 16, 0.3)
    assert (config.bs, config.limit, config.dataset, config.gate) == ("tcp://127.0.0.1:5", 3, "prompts.jsonl", False)


def test_sessions_must_agree_but_may_add(tmp_path: Path) -> None:
    more = changed(places=(*PLACES, Place(name="third", distance_m=9.0)), repeats=12, bs="tcp://192.0.2.7:5555")
    check_same(PLAN, more, tmp_path, False)
    moved = (PLACES[0], Place(name="far", distance_m=21.0))
    for plan, word in (
        (changed(places=moved), "far was at 20 m before, not at 21 m"),
        (changed(places=PLACES[::-1]), "near, far, in this order"),
        (changed(repeats=3), "6 repeats"),
        (changed(prompts=4), "other prompts"),
        (changed(methods=METHODS[:2]), "other methods"),
    ):
        refuse(lambda plan=plan: check_same(PLAN, plan, tmp_path, False), BadInput, word)  # type: ignore[misc]
    model = changed(model=msgspec.structs.replace(PLAN.model, rtt_ms=99.0))
    check_same(PLAN, model, tmp_path, False)
    refuse(lambda: check_same(PLAN, model, tmp_path, True), BadInput, "other model")


@pytest.mark.parametrize("name", names("plans"))
def test_the_plans_that_come_along_hold_together(name: str) -> None:
    plan = load_plan(find("plans", name))
    assert plan.repeats % len(williams(len(plan.methods))) == 0  # balanced


def test_the_rehearsal_stands_where_it_should() -> None:
    plan = load_plan(find("plans", "rehearsal"))
    assert [place.distance_m for place in plan.places] == [2, 10, 20, 40]
    assert plan.pad == "wisv" and plan.baseline == "greedy"
