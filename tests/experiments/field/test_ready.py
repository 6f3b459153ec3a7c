"""Checks of a plan's files and keys on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from testbed.channel.keys import new_client, new_server
from testbed.errors import BadInput
from testbed.experiments.field.plan import FieldPlan, Method, Place
from testbed.experiments.field.ready import check_here
from tests.support.refusals import refuse

HERE = Place(name="desk", distance_m=2.0)
FAR = "tcp://192.0.2.21:5556"
PLAN = FieldPlan(places=(HERE,), methods=(Method(name="g", protocol="greedy"),))


def changed(**fields: Any) -> FieldPlan:
    return msgspec.structs.replace(PLAN, **fields)


def agent(**fields: Any) -> tuple[Place, ...]:
    return (Place(name="hall", distance_m=9.0, **fields),)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"drafter": "/no/such.gguf"}, ["drafter", "/no/such.gguf"]),
        ({"tokenizer": "nowhere"}, ["tokenizer", "nowhere"]),
        ({"methods": (Method(name="p", protocol="greedy", window_rule="predicted", predictor="nowhere"),)},
         ["method p", "no predictor in nowhere"]),
        ({"methods": (Method(name="p", protocol="greedy", predictor="nowhere"),)}, ["method p", "needs no predictor"]),
        ({"keys": "nowhere"}, ["place desk", "nowhere holds no client.key_secret"]),
        ({"bs": "tcp://192.0.2.7:5555"}, ["place desk", "keys: DIR", "insecure: true"]),
        ({"places": agent(ue=FAR), "bs": "tcp://192.0.2.7:5555"}, ["place hall", "ue_keys: DIR"]),
        ({"places": agent(ue=FAR, ue_keys="lab"), "bs": "tcp://192.0.2.7:5555"}, ["place hall", "lab holds no client"]),
        ({"places": agent(ue=FAR, ue_keys="lab"), "insecure": True}, ["ue_keys or insecure"]),
        ({"places": agent(ue=FAR), "insecure": True}, ["place hall", "the agent's own machine"]),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_in_the_plans_own_words(fields: dict[str, Any], words: list[str]) -> None:
    refuse(lambda: check_here(changed(**fields)), BadInput, *words)


def test_what_is_there_is_enough(tmp_path: Path) -> None:
    new_server(tmp_path / "keys")
    lab = new_client(tmp_path / "keys", "lab")
    check_here(PLAN)
    check_here(changed(places=agent(ue=FAR, ue_keys=str(lab)), bs="tcp://192.0.2.7:5555"))
    check_here(changed(keys=str(lab), bs="tcp://192.0.2.7:5555"))
    check_here(changed(insecure=True, bs="tcp://192.0.2.7:5555"))


def test_a_rehearsal_needs_no_keys() -> None:
    check_here(changed(places=agent(ue=FAR, ue_keys="lab")), emulated=True)
    refuse(lambda: check_here(changed(drafter="no.gguf"), emulated=True), BadInput, "no.gguf")
