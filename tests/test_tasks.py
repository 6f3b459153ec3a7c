"""Tasks that end together."""

from __future__ import annotations

import asyncio

import pytest

from testbed.tasks import Background, beside, to_its_end, together
from testbed.virtual_time import VirtualClock, run_virtually


class Log:
    """Tasks that ended, and how."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    async def sleep(self, name: str, seconds: float) -> str:
        try:
            await VirtualClock().sleep(seconds)
        except asyncio.CancelledError:
            self.ended.append(f"{name} cancelled")
            raise
        self.ended.append(name)
        return name

    async def fail(self, seconds: float) -> None:
        await self.sleep("failing", seconds)
        raise ValueError("broken")

    async def forever(self, name: str) -> None:
        await self.sleep(name, 1e9)


def test_results_come_in_order() -> None:
    log = Log()
    assert run_virtually(together(log.sleep(name, 3 - i) for i, name in enumerate("abc"))) == ["a", "b", "c"]
    assert log.ended == ["c", "b", "a"]


def test_the_first_failure_cancels_the_others() -> None:
    log = Log()
    with pytest.raises(ValueError, match="broken"):
        run_virtually(together([log.forever("a"), log.fail(1.0), log.forever("b")]))
    assert log.ended == ["failing", "a cancelled", "b cancelled"]


def test_services_last_as_long_as_the_main_work() -> None:
    log = Log()

    async def main() -> float:
        found = await beside([log.forever("service"), log.forever("other")], log.sleep("main", 2.0))
        assert found == "main"
        assert log.ended == ["main", "service cancelled", "other cancelled"]
        return VirtualClock().time()

    assert run_virtually(main()) == 2.0


def test_a_service_that_fails_ends_the_main_work_and_one_that_is_done_does_not() -> None:
    log = Log()
    with pytest.raises(ValueError, match="broken"):
        run_virtually(beside([log.fail(1.0), log.forever("service")], log.sleep("main", 2.0)))
    assert log.ended == ["failing", "service cancelled", "main cancelled"]

    async def done() -> None:
        return

    assert run_virtually(beside([done()], log.sleep("main", 2.0))) == "main"


def test_cancellation_reaches_everybody() -> None:
    log = Log()

    async def main() -> None:
        work = asyncio.create_task(beside([log.forever("service")], log.sleep("main", 5.0)))
        await VirtualClock().sleep(1.0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert work.cancelled()

    run_virtually(main())
    assert sorted(log.ended) == ["main cancelled", "service cancelled"]


def test_cancellation_waits_for_those_that_clean_up() -> None:
    """The first to end had the others cancelled again: an agent left its order's process behind."""
    log = Log()

    async def slow() -> None:
        try:
            await log.forever("slow")
        finally:
            await log.sleep("clean-up", 3.0)

    async def main() -> float:
        work = asyncio.create_task(together([log.forever("fast"), slow()]))
        await VirtualClock().sleep(1.0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert work.cancelled()
        return VirtualClock().time()

    assert run_virtually(main()) == 4.0
    assert log.ended == ["fast cancelled", "slow cancelled", "clean-up"]


async def test_background_tasks_are_started_again_when_they_fail_or_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.tasks.RESTART_S", 0.001)
    begun = asyncio.Queue[int]()

    async def work() -> None:
        begun.put_nowait(1)
        if begun.qsize() == 1:
            raise ValueError("broken")
        if begun.qsize() == 3:
            await asyncio.Event().wait()

    background = Background()
    task = background.start("work", work)
    assert background.failures == {"work": 0} and background.failing == []
    while begun.qsize() < 3:
        await asyncio.sleep(0.001)
    assert background.failures == {"work": 2} and background.failing == ["work"] and not task.done()
    monkeypatch.setattr("testbed.tasks.RECENT_S", 0.0)
    assert background.failing == []
    background.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_work_that_may_end_is_counted_and_started_again_only_when_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("testbed.tasks.RESTART_S", 0.001)
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise ValueError("broken")

    background = Background()
    await asyncio.wait_for(background.start("work", work, endless=False), 20)
    assert begun == 3 and background.failures == {"work": 3} and background.failing == ["work"]


async def test_what_has_to_end_ends_however_often_its_task_is_cancelled() -> None:
    ended = asyncio.Event()

    async def ending() -> None:
        await asyncio.sleep(0.2)
        ended.set()

    task = asyncio.create_task(to_its_end(ending()))
    for _ in range(3):
        await asyncio.sleep(0.02)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
