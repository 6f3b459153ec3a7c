"""The losslessness check over a real socket: position and logit gap of a divergence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from testbed.bs.engines.base import VerifyRequest
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.sessions import SessionTable
from testbed.clock import WallClock, within
from testbed.errors import ProtocolError
from testbed.protocols.messages import Busy, Draft, Open, Opened, Resync, Verdict
from testbed.ue.client import Client
from testbed.ue.gate import Divergence, compare, first_difference
from tests.support.answering import Answer, Link
from tests.support.stations import VOCAB, client, station

PROMPT = [3, 1, 4, 1, 5]
LENGTH = 20
IDS = st.lists(st.integers(0, 2), max_size=8)


@given(output=IDS, target=IDS)
def test_the_first_difference_is_the_shortest_prefix_that_differs(output: list[int], target: list[int]) -> None:
    longest = max(len(output), len(target))
    differing = [i for i in range(longest) if output[: i + 1] != target[: i + 1]]
    assert first_difference(output, target) == (differing[0] if differing else None)


def log_probs(prefix: list[int]) -> NDArray[np.float32]:
    """[VOCAB] after a prefix, by the engine itself and apart from the gate."""
    request = VerifyRequest("oracle", np.array(prefix, np.int32), np.zeros(0, np.int32), logprobs=True)
    scores = SyntheticEngine(vocab_size=VOCAB).verify([request])[0].logprobs
    assert scores is not None
    first: NDArray[np.float32] = scores[0]
    return first


def targets_own() -> list[int]:
    ids = list(PROMPT)
    for _ in range(LENGTH):
        ids.append(int(log_probs(ids).argmax()))
    return ids[len(PROMPT) :]


OWN = targets_own()


def wrong_at(position: int, rank: int) -> tuple[list[int], float]:
    """The target's own output with another token at one position (1: the second best), and the logit gap there."""
    scores = log_probs(PROMPT + OWN[:position])
    token = int(np.argsort(-scores, kind="stable")[rank])
    return [*OWN[:position], token, *OWN[position + 1 :]], float(scores[OWN[position]] - scores[token])


async def gate(output: list[int], target: list[int], tolerance: float = 0.0) -> Divergence | None:
    table = SessionTable()
    async with station(sessions=table) as (_, address), client(address) as connection:
        found = await compare(connection, 7, PROMPT, output, target, tolerance)
        await connection.rtt_s(1)  # the BS has taken everything that was sent before
        assert len(table) == 0
    return found


async def test_the_targets_own_output_passes() -> None:
    assert await gate(OWN, list(OWN)) is None
    assert await gate([], []) is None


@pytest.mark.parametrize("position", [0, 7, LENGTH - 1])
@pytest.mark.parametrize("rank", [1, 30])
async def test_a_wrong_token_is_found_with_its_position_and_gap(position: int, rank: int) -> None:
    output, gap = wrong_at(position, rank)
    found = await gate(output, OWN)
    assert found is not None
    assert (found.request, found.position, found.tie) == (7, position, False)
    assert found.output == output[position : position + 8]
    assert found.target == OWN[position : position + 8]
    assert gap > 0
    assert found.gap == pytest.approx(gap, rel=1e-4)


async def test_a_gap_within_the_tolerance_is_a_tie() -> None:
    output, gap = wrong_at(11, 1)
    for tolerance, tie in ((0.99 * gap, False), (1.01 * gap, True)):
        found = await gate(output, OWN, tolerance)
        assert found is not None
        assert (found.position, found.tie) == (11, tie)


async def test_it_asks_after_the_common_prefix_whichever_side_left_the_argmax() -> None:
    other, gap = wrong_at(4, 1)
    found = await gate(OWN, other)
    assert found is not None
    assert found.position == 4
    assert found.gap == pytest.approx(gap, rel=1e-4)


@pytest.mark.parametrize("tolerance", [0.0, 1e9])
async def test_an_output_that_ends_elsewhere_is_no_tie_at_any_tolerance(tolerance: float) -> None:
    for output, target in ((OWN[:12], OWN), (OWN, OWN[:12]), ([], OWN)):
        found = await gate(output, target, tolerance)
        assert found is not None
        assert found.position == min(len(output), len(target))
        assert found.gap == float("inf")
        assert not found.tie


async def test_a_token_that_the_target_does_not_know_is_refused_by_the_bs() -> None:
    with pytest.raises(ProtocolError, match="token ids must lie in"):
        await gate([VOCAB, *OWN[1:]], OWN)


# ---------------------------------------------------------------- base stations that do not answer at once


async def behind(answer: Answer, tolerance: float = 0.0) -> Divergence | None:
    link = Link(answer, (Open, Draft))
    connection = Client(link, WallClock(), 1, 1.0)
    try:
        await connection.connect("", 1)
        return await within(5.0, compare(connection, 7, [1], [2], [3], tolerance))
    finally:
        await connection.close()


def verdict(draft: Draft, round_: int = 0, gap: float = 2.5) -> Verdict:
    return Verdict(
        session=draft.session, round=round_, accepted=0, token=3, candidates=0, queried=0, gap=gap, batch_size=1,
        queue_s=0.0, verify_s=0.0, judge_s=0.0, bs_s=0.0,
    )  # fmt: skip


async def test_a_full_bs_is_waited_for() -> None:
    """The run failed, and did not say that its outputs differ."""

    def answer(message: Open | Draft, number: int) -> Iterable[Any]:
        if number == 0:
            yield Busy(session=message.session, reason="full", retry_s=0.1)
        elif isinstance(message, Open):
            yield Opened(session=message.session, length=1)
        else:
            yield from (Resync(session=message.session),) if number == 1 else (verdict(message, 9), verdict(message))

    found = await behind(answer)
    assert found is not None and found.gap == 2.5


async def test_a_bs_that_only_confirms_holds_the_gate_for_no_longer_than_the_timeout() -> None:
    """One message a second held it for ever."""

    def answer(message: Open | Draft, number: int) -> Iterable[Any]:
        yield from (Opened(session=message.session, length=1) for _ in range(1000))

    found = await behind(answer)
    assert found is not None and found.gap == float("inf") and not found.tie


async def test_each_question_has_the_timeout() -> None:
    """A slow base station that answers both in time was said to be lossy, since they shared one."""

    def answer(message: Open | Draft, number: int) -> Iterable[Any]:
        if isinstance(message, Draft):
            yield from (Resync(session=-1) for _ in range(35))
            yield verdict(message)

    found = await behind(answer)
    assert found is not None and found.gap == 2.5


async def test_a_gap_that_is_no_number_is_no_tie() -> None:
    def answer(message: Open | Draft, number: int) -> Iterable[Any]:
        if isinstance(message, Draft):
            yield verdict(message, gap=float("nan"))

    found = await behind(answer, tolerance=1.0)
    assert found is not None and not found.tie
