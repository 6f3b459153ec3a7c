"""Where passes run: in the engine's thread, or in the loop where they are short."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from testbed.bs.engines.base import Share, VerifyRequest
from testbed.bs.engines.runner import SHORT_S, ThreadRunner
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.errors import EngineError


class Watched(SyntheticEngine):
    """Notes in which thread its passes run, and how long they take."""

    def __init__(self) -> None:
        super().__init__(vocab_size=64)
        self.passes: list[bool] = []
        """Whether each pass ran in the main thread."""
        self.now_s = self.lasts_s = 0.0
        self.fails = False

    def step(self) -> list[Share]:
        """A pass."""
        self.passes.append(threading.current_thread() is threading.main_thread())
        self.now_s += self.lasts_s
        if self.fails:
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
        engine._submitted.clear()
        await rounds(runner, "first", 1)

    asyncio.run(run())
