"""Methods: the protocols and what can stand in their place, with the same questions answered."""

from __future__ import annotations

import pytest

from testbed.errors import BadInput
from testbed.protocols import PROTOCOLS
from testbed.protocols.methods import check_lookahead, methods, round_trips, run_method


def test_every_method_says_whether_it_is_judged_and_sampled() -> None:
    known = methods()
    assert list(known)[:3] == ["target-only", "colocated", "auto"] and set(PROTOCOLS) < set(known)
    assert {name for name, method in known.items() if method.judged} == {"auto", "fh", "sh"}
    assert {name for name, method in known.items() if method.sampled} == {"target-only", "rejection", "split"}
    assert all(method.about for method in known.values())


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"unknown protocol 'pigeon'; known: target-only, colocated, auto, greedy, fh"):
        run_method("pigeon")


def test_only_a_request_for_hidden_states_takes_a_second_round_trip() -> None:
    assert [round_trips("sh", queried) for queried in (0, 1, 5)] == [1, 2, 2]
    assert round_trips("split", 1) == 1  # the target's distribution comes with the verdict
    assert round_trips("target-only", 0) == 1


def test_lookahead_is_refused_where_no_method_has_it() -> None:
    check_lookahead(0, ["rejection"])
    check_lookahead(None, ["target-only"])
    check_lookahead(1, ["target-only", "greedy"])
    check_lookahead(1, ["auto"])
    for names in (["target-only"], ["colocated"], ["rejection", "split"]):
        with pytest.raises(BadInput, match=f"not for {', '.join(names)}"):
            check_lookahead(1, names)
