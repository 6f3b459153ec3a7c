"""JSON bodies of HTTP requests, mutated: values from the edges of every type, keys and bytes changed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

from tests.support.hostile.frames import patched
from tests.support.hostile.texts import TEXTS
from tests.support.hostile.values import INTS, REALS

OTHERS = (None, True, False, [], {}, [[]], [None], {"": ""}, "\ud800", "w1 " * 2000, [1] * 2000, ["w1"] * 200, 10**400)
PATCHED = 0.2
"""Probability that the bytes of a body are changed, too."""
Place = tuple[Any, Any]
"""A list or dictionary, and an index or key of it."""


def mutated(rng: random.Random, body: dict[str, Any], fields: Sequence[str]) -> bytes:
    """A body with one to three changes.

    Args:
        rng: generator of random numbers.
        body: the body, which is left as it is.
        fields: names of the fields that the endpoint knows.
    """
    found = copy.deepcopy(body)
    for _ in range(rng.randint(1, 3)):
        _change(rng, found, fields)
    text = json.dumps(found).encode()
    return patched(rng, [text])[0] if rng.random() < PATCHED else text


def _change(rng: random.Random, body: dict[str, Any], fields: Sequence[str]) -> None:
    places = _places(body)
    way = rng.choice(["value", "value", "field", "field", "removed", "repeated"])
    if way == "field" or not places:
        body[rng.choice(fields)] = _value(rng)
        return
    inside, key = rng.choice(places)
    if way == "value":
        inside[key] = _value(rng)
    elif way == "removed":
        del inside[key]
    elif isinstance(inside, list):
        inside.extend(inside[key : key + 1] * rng.choice([1, 100]))
    else:
        inside[key] = [inside[key]] * rng.choice([1, 2, 100])


def _value(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(rng.choice([INTS, REALS, TEXTS, OTHERS])))


def _places(found: Any) -> list[Place]:
    """All places within a body."""
    if isinstance(found, dict):
        own: list[Place] = [(found, key) for key in found]
    elif isinstance(found, list):
        own = [(found, index) for index in range(len(found))]
    else:
        return []
    return own + [place for inside, key in own for place in _places(inside[key])]
