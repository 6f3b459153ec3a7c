"""Where passes run: in the engine's thread, or in the loop where they are short."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from testbed.bs.engines.base import Share, VerifyRequest
from testbed.bs.engines.coupled import unchosen
from testbed.bs.engines.runner import AHEAD_S, SHORT_S, ThreadRunner, nobody
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.errors import EngineError
from testbed.protocols.sampling import Coupling, Sampling


class Watched(SyntheticEngine):
    """Notes in which thread its passes run, and how long they take."""

    def __init__(self) -> None:
        super().__init__(vocab_size=64)
        self.passes: list[bool] = []
        """Whether each pass ran in the main thread."""
        self.now_s = self.lasts_s = 0.0
        self.fails, self.fails_at = False, 0
        """Whether passes fail, and the number of one that does; 0: none."""

    def step(self) -> list[Share]:
        """A pass."""
        self.passes.append(threading.current_thread() is threading.main_thread())
        self.now_s += self.lasts_s
        if self.fails or len(self.passes) == self.fails_at:
            self._submitted.clear()
            raise EngineError("broken")
        return super().step()


@pytest.fixture
def engine() -> Watched:
    return Watched()


@pytest.fixture
def runner(engine: Watched, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadRunner]:
    """A runner that measures passes by the engine's own time."""
    clock = SimpleNamespace(perf_counter=lambda: engine.now_s)
    monkeypatch.setattr("testbed.bs.engines.runner.time", clock)
    with ThreadPoolExecutor(1) as thread:
        yield ThreadRunner(engine, thread)


async def rounds(runner: ThreadRunner, session: str, count: int) -> None:
    """A session's rounds, each of which is finished by one pass."""
    for length in range(1, count + 1):
        runner.submit(VerifyRequest(session, np.ones(length, np.int32), np.zeros(0, np.int32)))
        (share,) = await runner.step()
        assert share.result is not None


def test_short_passes_run_in_the_loop_but_those_with_a_new_session(engine: Watched, runner: ThreadRunner) -> None:
    async def run() -> None:
        await rounds(runner, "first", 3)
        await rounds(runner, "second", 2)

    asyncio.run(run())
    assert engine.passes == [False, True, True, False, True]


@pytest.mark.parametrize(("drafted", "in_loop"), [(3, True), (200, False)])
def test_a_large_window_leaves_the_loop(drafted: int, in_loop: bool, engine: Watched, runner: ThreadRunner) -> None:
    """Rounds without drafts are short; what the next one computes may not be."""

    async def run() -> None:
        await rounds(runner, "first", 3)
        runner.submit(VerifyRequest("first", np.ones(4, np.int32), np.ones(drafted, np.int32)))
        await runner.step()

    asyncio.run(run())
    assert engine.passes == [False, True, True, in_loop]


def test_sessions_that_lost_their_cache_leave_the_loop(engine: Watched, runner: ThreadRunner) -> None:
    async def run() -> None:
        await rounds(runner, "first", 40)
        engine.passes.clear()
        engine._prompts.clear()
        runner.submit(VerifyRequest("first", np.ones(41, np.int32), np.zeros(0, np.int32)))
        await runner.step()
        await rounds(runner, "first", 2)

    asyncio.run(run())
    assert engine.passes == [False, True, True]


def test_passes_that_grow_stay_in_the_loop_while_they_are_short(engine: Watched, runner: ThreadRunner) -> None:
    async def run() -> None:
        await rounds(runner, "first", 2)
        for drafted in (15, 31, 62, 200):
            runner.submit(VerifyRequest("first", np.ones(3, np.int32), np.ones(drafted, np.int32)))
            await runner.step()

    asyncio.run(run())
    assert engine.passes == [False, True, True, True, True, False]


def test_after_a_long_pass_the_thread_is_used(engine: Watched, runner: ThreadRunner) -> None:
    async def run() -> None:
        engine.lasts_s = 2 * SHORT_S
        await rounds(runner, "first", 3)
        engine.lasts_s = 0.0
        await rounds(runner, "first", 2)

    asyncio.run(run())
    assert engine.passes == [False, False, False, False, True]


def test_engines_of_one_thread_stay_there(
    engine: Watched, runner: ThreadRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watched, "any_thread", False)
    asyncio.run(rounds(runner, "first", 3))
    assert engine.passes == [False, False, False]


def test_the_loop_goes_on_between_short_passes(engine: Watched, runner: ThreadRunner) -> None:
    async def run() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await rounds(runner, "first", 20)
        counting.cancel()
        return turns

    assert asyncio.run(run()) >= 20


@pytest.mark.parametrize("before", [0, 2])
def test_errors_reach_the_loop(engine: Watched, runner: ThreadRunner, before: int) -> None:
    async def run() -> None:
        await rounds(runner, "first", before)
        engine.fails = True
        runner.submit(VerifyRequest("first", np.ones(1, np.int32), np.zeros(0, np.int32)))
        with pytest.raises(EngineError, match="broken"):
            await runner.step()
        engine.fails = False
        await rounds(runner, "first", 1)

    asyncio.run(run())


async def streamed(runner: ThreadRunner, ahead: int, waiting: Callable[[], bool] = nobody) -> list[Share]:
    """One step of a stream, after a step that the runner needs to know how long passes take."""
    await rounds(runner, "stream", 1)
    runner.submit(VerifyRequest("stream", np.ones(2, np.int32), np.zeros(0, np.int32), ahead=ahead))
    return await runner.step(waiting)


@pytest.mark.parametrize("ahead", [0, 1, 5])
@pytest.mark.parametrize("any_thread", [True, False])
def test_streams_are_decoded_ahead_as_one_token_at_a_time(
    engine: Watched, runner: ThreadRunner, monkeypatch: pytest.MonkeyPatch, ahead: int, any_thread: bool
) -> None:
    monkeypatch.setattr(Watched, "any_thread", any_thread)
    (share,) = asyncio.run(streamed(runner, ahead))
    assert share.result is not None and share.passes == share.new == ahead + 1
    assert len(engine.passes) == ahead + 2
    prefix = np.ones(2, np.int32)
    for token, margin in zip(share.result.argmax, share.result.margin, strict=True):
        (one,) = engine.verify([VerifyRequest("other", prefix, prefix[:0])])
        assert (token, margin) == (one.argmax[0], one.margin[0])
        prefix = np.append(prefix, token)


def test_nothing_is_decoded_ahead_for_long_or_while_others_wait(engine: Watched, runner: ThreadRunner) -> None:
    (share,) = asyncio.run(streamed(runner, 5, waiting=lambda: True))
    assert share.passes == 1
    engine.lasts_s = 0.45 * AHEAD_S
    (share,) = asyncio.run(streamed(runner, 15))
    assert share.passes == 2
    engine.lasts_s = AHEAD_S
    (share,) = asyncio.run(streamed(runner, 15))
    assert share.passes == 1


def test_a_stream_ends_with_its_end_token_and_at_a_failure(engine: Watched, runner: ThreadRunner) -> None:
    (whole,) = asyncio.run(streamed(runner, 9))
    assert whole.result is not None
    tokens = whole.result.argmax.tolist()

    async def again(ends: tuple[int, ...], fails: int) -> list[int]:
        engine.fails_at = fails and len(engine.passes) + fails
        runner.submit(VerifyRequest("stream", np.ones(2, np.int32), np.zeros(0, np.int32), ahead=9, ends=ends))
        (share,) = await runner.step()
        assert share.result is not None
        return [int(token) for token in share.result.argmax]

    assert asyncio.run(again((tokens[4],), 0)) == tokens[: tokens.index(tokens[4]) + 1]
    assert asyncio.run(again((), 4)) == tokens[:3]
    assert asyncio.run(again((), 0)) == tokens


@pytest.mark.parametrize("leaves", [False, True])
def test_streams_beyond_a_pass_wait_for_the_next_one(engine: Watched, runner: ThreadRunner, leaves: bool) -> None:
    """The engine has more rounds than a pass takes: the others must not take part in passes that decode ahead."""
    engine.max_requests = 2

    async def three() -> list[Share]:
        found = list[Share]()
        for number in range(3):
            runner.submit(VerifyRequest(f"stream {number}", np.ones(2, np.int32), np.zeros(0, np.int32), ahead=5))
        for _ in range(2):
            stepping = asyncio.ensure_future(runner.step())
            await asyncio.sleep(0)
            if leaves:
                runner.release("stream 2")
            found += await stepping
        return found

    assert [share.passes for share in asyncio.run(three())] == ([1, 1] if leaves else [1, 1, 6])


@pytest.mark.parametrize(("most", "unread"), [(8 * 64, 0), (8 * 64 - 1, 8 * 64)])
@pytest.mark.parametrize("in_loop", [True, False])
def test_no_pass_waits_for_coupled_sampling_of_many_values(
    engine: Watched, runner: ThreadRunner, monkeypatch: pytest.MonkeyPatch, most: int, unread: int, in_loop: bool
) -> None:
    monkeypatch.setattr("testbed.bs.engines.runner.MOST_VALUES", most)
    monkeypatch.setattr(Watched, "any_thread", in_loop)

    async def run() -> list[Share]:
        await rounds(runner, "first", 2)
        how = {"logprobs": True, "coupling": Coupling(Sampling(), 3)}
        runner.submit(VerifyRequest("first", np.ones(3, np.int32), np.ones(7, np.int32), **how))
        return await runner.step()

    (share,) = asyncio.run(run())
    assert unchosen(share) == unread


@pytest.mark.parametrize("few", [True, False])
def test_coupled_streams_are_decoded_ahead_while_they_read_few_values(
    engine: Watched, runner: ThreadRunner, monkeypatch: pytest.MonkeyPatch, few: bool
) -> None:
    monkeypatch.setattr("testbed.bs.engines.runner.MOST_VALUES", 64 if few else 63)

    async def run() -> Share:
        await rounds(runner, "stream", 1)
        how = {"logprobs": True, "coupling": Coupling(Sampling(), 3), "ahead": 4}
        runner.submit(VerifyRequest("stream", np.ones(2, np.int32), np.zeros(0, np.int32), **how))
        (share,) = await runner.step()
        return share

    share = asyncio.run(run())
    assert (share.passes, unchosen(share)) == ((5, 0) if few else (1, 64))


def test_streams_beside_a_round_with_drafts_take_one_pass(engine: Watched, runner: ThreadRunner) -> None:
    async def both() -> list[Share]:
        runner.submit(VerifyRequest("stream", np.ones(2, np.int32), np.zeros(0, np.int32), ahead=5))
        runner.submit(VerifyRequest("drafts", np.ones(2, np.int32), np.ones(3, np.int32)))
        return await runner.step()

    assert [share.passes for share in asyncio.run(both())] == [1, 1]
