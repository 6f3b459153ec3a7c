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
MOST_PLACES = 50
"""Entries of a list that are candidates for a change; with all of them, a body that has grown takes seconds."""
Place = tuple[Any, Any]
"""A list or dictionary, and an index or key of it."""


def mutated(rng: random.Random, body: dict[str, Any], fields: Sequence[str], changes: int) -> bytes:
    """A body with some changes.

    Args:
        rng: generator of random numbers.
        body: the body, which is left as it is.
        fields: names of the fields that the endpoint knows.
        changes: number of changes; its bytes may be changed, too, unless it is 0.
    """
    found = copy.deepcopy(body)
    for _ in range(changes):
        _change(rng, found, fields)
    text = json.dumps(found).encode()
    return patched(rng, [text])[0] if changes and rng.random() < PATCHED else text


def sound(rng: random.Random, chat: bool) -> dict[str, Any]:
    """A request that is answered with an output: a few tokens, and some of the options."""
    text = rng.choice(["w1", "w1 w2 w3", "w5 " * 40])
    turns = [
        {"role": role, "content": text} for role in rng.choice([("user",), ("system", "user", "assistant", "user")])
    ]
    prompt = rng.choice([text, [1, 2, 3], [text, text], [[1], [2, 3]]])
    body: dict[str, Any] = {"messages": turns} if chat else {"prompt": prompt}
    options: dict[str, Any] = {
        "max_tokens": rng.choice([1, 2, 5]), "temperature": rng.choice([0, 0.7, 2]), "top_p": rng.choice([0.1, 1]),
        "top_k": rng.choice([-1, 0, 3]), "seed": rng.choice([0, 7]), "stop": rng.choice(["w9", ["w7", "w8"]]),
        "stream": rng.choice([False, True]), "stream_options": {"include_usage": True}, "ignore_eos": True,
    }  # fmt: skip
    chosen = ["max_tokens", *rng.sample(sorted(options), rng.randint(0, 4))]
    if isinstance(prompt, list) and isinstance(prompt[0], list | str) and not chat:
        chosen = [name for name in chosen if not name.startswith("stream")]
    return body | {name: options[name] for name in chosen}


def _change(rng: random.Random, body: dict[str, Any], fields: Sequence[str]) -> None:
    places = _places(rng, body)
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


def _places(rng: random.Random, found: Any) -> list[Place]:
    """Places within a body: all, but of long lists a random choice."""
    if isinstance(found, dict):
        own: list[Place] = [(found, key) for key in found]
    elif isinstance(found, list):
        own = [(found, index) for index in rng.sample(range(len(found)), min(len(found), MOST_PLACES))]
    else:
        return []
    return own + [place for inside, key in own for place in _places(rng, inside[key])]
