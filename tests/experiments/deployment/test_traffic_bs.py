"""The verifier's memory and times under synthetic traffic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bs.engines.base import Share, VerifyRequest
from testbed.experiments.deployment.traffic_bs import PrefixCache, TrafficRunner
from testbed.experiments.deployment.traffic_ue import LANGUAGE
from testbed.experiments.inputs.profile import InteractionVerify
from testbed.optim.pass_time import Coefficients, PassOverhead, RequestWork
from testbed.virtual_time import VirtualClock, run_virtually

COST = InteractionVerify(a_s=3e-5, b_compute_s=3e-8, b_read_s=4e-6, c_s=0.015)
USES = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 60)), max_size=40)


@given(USES, st.integers(60, 150), st.booleans())
def test_the_cache_is_the_naive_one(uses: list[tuple[str, int]], capacity: int, tail: bool) -> None:
    """Against a list of single tokens, in the order in which they would leave."""
    cache = PrefixCache(capacity, tail)
    line: list[tuple[str, int]] = []
    for session, tokens in uses:
        cache.hold(session, tokens)
        line = [held for held in line if held[0] != session] + [(session, i) for i in reversed(range(tokens))]
        while len(line) > capacity:
            gone = line.pop(0)
            if not tail:
                line = [held for held in line if held[0] != gone[0]]
        for name in "abcde":
            assert cache.cached(name) == sum(held[0] == name for held in line)


def request(session: str, length: int, drafted: int, wrong: int | None = None) -> VerifyRequest:
    draft = LANGUAGE[length : length + drafted].copy()
    if wrong is not None:
        draft[wrong] += 1
    return VerifyRequest(session, LANGUAGE[:length], draft)


async def verify(runner: TrafficRunner, *requests: VerifyRequest) -> list[Share]:
    """One pass."""
    for one in requests:
        runner.submit(one)
    shares = await runner.step()
    assert [share.request for share in shares] == list(requests)
    return shares


def test_passes_take_what_the_equation_says_and_remember_what_stays() -> None:
    async def passes() -> list[float]:
        clock = VirtualClock()
        runner = TrafficRunner(COST, PrefixCache(1000, tail=False), clock, linger=False)
        ends_s = []
        first = await verify(runner, request("a", 100, 5, wrong=2), request("b", 40, 3))
        ends_s.append(clock.time())
        assert [share.cached for share in first] == [0, 0]
        assert first[0].result is not None and first[0].result.argmax.tolist() == LANGUAGE[100:106].tolist()
        second = await verify(runner, request("a", 103, 5), request("b", 44, 2))
        ends_s.append(clock.time())
        assert [share.cached for share in second] == [102, 43]
        runner.release("a")
        third = await verify(runner, request("a", 109, 0))
        ends_s.append(clock.time())
        assert third[0].cached == 0
        return ends_s

    ends_s = run_virtually(passes())
    times = Coefficients(*(getattr(COST, name) for name in ("a_s", "b_compute_s", "b_read_s", "c_s")))
    batches = [
        [RequestWork(105, 0), RequestWork(43, 0)],
        [RequestWork(6, 102), RequestWork(3, 43)],
        [RequestWork(109, 0)],
    ]
    assert np.diff([0.0, *ends_s]) == pytest.approx([times.batch_s(batch) for batch in batches])


def test_without_a_cache_everything_is_computed_again() -> None:
    async def twice() -> float:
        clock = VirtualClock()
        runner = TrafficRunner(COST, None, clock, linger=False)
        for _ in range(2):
            await verify(runner, request("a", 100, 5))
        return clock.time()

    alone_s = Coefficients(3e-5, 3e-8, 4e-6, 0.015).alone_s(105, 0)
    assert run_virtually(twice()) == pytest.approx(2 * alone_s)


def test_time_between_passes_is_waited_for_if_it_has_not_passed_yet() -> None:
    async def ends(pause_s: float) -> list[float]:
        clock, found = VirtualClock(), list[float]()
        runner = TrafficRunner(COST, None, clock, linger=False, between=PassOverhead(0.004, 0.001))
        for _ in range(2):
            await verify(runner, request("a", 100, 5), request("b", 100, 5))
            found.append(clock.time())
            await clock.sleep(pause_s)
        return found

    pass_s = Coefficients(3e-5, 3e-8, 4e-6, 0.015).batch_s([RequestWork(105, 0)] * 2)
    for pause_s, between_s in ((0.0, 0.006), (0.001, 0.006), (0.1, 0.1)):
        first_s, second_s = run_virtually(ends(pause_s))
        assert first_s == pytest.approx(pass_s)
        assert second_s - first_s == pytest.approx(between_s + pass_s)
