"""Ranges of the numbers in messages of a base station."""

from __future__ import annotations

import typing

import pytest
from msgspec import inspect

from testbed.errors import ProtocolError
from testbed.protocols.messages import NO_HINT, VERSION, Downlink, Verdict, Welcome
from testbed.protocols.ranges import RANGES, check_accepted, check_ranges
from tests.support.hostile.values import described

COMPARED = {"session", "version", "Pong.token"}
"""Numbers that are compared with known ones; nothing is computed with them."""
VERDICT = {
    "session": 1, "round": 0, "accepted": 0, "token": 5, "candidates": 0, "queried": 0, "gap": 1.0, "batch_size": 1,
    "queue_s": 0.0, "verify_s": 0.1, "judge_s": 0.0, "bs_s": 0.1,
}  # fmt: skip


def test_every_integer_that_a_base_station_sends_has_a_range() -> None:
    found = set()
    for kind in typing.get_args(Downlink):
        for field in described(kind).fields:
            types = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
            if any(isinstance(one, inspect.IntType) for one in types) and field.name not in RANGES.get(kind, {}):
                found.add(f"{kind.__name__}.{field.name}")
    assert {name for name in found if name not in COMPARED and name.partition(".")[2] not in COMPARED} == set()


@pytest.mark.parametrize("name", ["accepted", "token", "candidates", "queried", "batch_size", "kept", "window"])
def test_a_verdict_whose_integers_no_table_can_hold_is_refused(name: str) -> None:
    check_ranges(Verdict(**{**VERDICT, name: NO_HINT if name in ("token", "window") else 2**31 - 1}))
    for value in (-2, 2**63, 2**64 - 1):
        with pytest.raises(ProtocolError, match=f"{name} must lie in"):
            check_ranges(Verdict(**{**VERDICT, name: value}))


@pytest.mark.parametrize(("name", "value"), [("end_ids", (2, 2**64 - 1)), ("vocab_size", -5), ("max_positions", 2**63)])
def test_a_welcome_with_such_integers_is_refused(name: str, value: object) -> None:
    sound = {
        "version": VERSION, "model": "m", "hidden_size": 8, "vocab_size": 512, "end_ids": (2,), "protocols": (),
        "max_window": 256, "max_positions": 4096,
    }  # fmt: skip
    check_ranges(Welcome(**sound))
    with pytest.raises(ProtocolError, match=f"{name} must lie in"):
        check_ranges(Welcome(**{**sound, name: value}))


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"accepted": 5}, "accepts 5 of 4"),
        ({"candidates": 5}, "5 candidates"),
        ({"candidates": 4, "queried": 5}, "5 queried"),
        ({"accepted": 2, "candidates": 4, "kept": 3}, "keeps 3 of 4"),
        ({"accepted": 4, "candidates": 2, "kept": 3}, "keeps 3 of 2"),
    ],
)
def test_a_verdict_counts_no_more_tokens_than_were_drafted(counts: dict[str, int], words: str) -> None:
    """Reports gave rates above 1 of what a base station had counted."""
    check_accepted(Verdict(**VERDICT | {"accepted": 4, "candidates": 4, "queried": 4, "kept": 4}), 4)
    check_accepted(Verdict(**VERDICT | {"queried": 1}), 0)
    with pytest.raises(ProtocolError, match=words):
        check_accepted(Verdict(**VERDICT | counts), 4)
