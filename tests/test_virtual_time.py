"""Virtual time: waiting costs nothing, order is that of time, and standing still is an error."""

from __future__ import annotations

import asyncio
import time

import pytest

from testbed.errors import TestbedError
from testbed.virtual_time import LogicalProcess, Simulation, VirtualClock, run_virtually

CLOCK = VirtualClock()


def test_a_day_takes_no_time_and_counts_exactly() -> None:
    async def day() -> float:
        for _ in range(24):
            await CLOCK.sleep(3600.0)
        return CLOCK.time()

    start_s = time.perf_counter()
    assert run_virtually(day()) == 86400.0
    assert time.perf_counter() - start_s < 5


def test_things_happen_in_the_order_of_their_time() -> None:
    seen: list[tuple[float, int]] = []

    async def wait(number: int, seconds: float) -> None:
        await CLOCK.sleep(seconds)
        seen.append((CLOCK.time(), number))

    async def all_of_them() -> None:
        await asyncio.gather(wait(0, 0.3), wait(1, 0.1), wait(2, 0.2), wait(3, 0.0))

    run_virtually(all_of_them())
    assert [n for _, n in seen] == [3, 1, 2, 0]
    assert [t for t, _ in seen] == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_timeouts_are_those_of_virtual_time() -> None:
    async def late() -> float:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.sleep(100), 7)
        return CLOCK.time()

    assert run_virtually(late()) == 7.0


def test_waiting_for_what_never_comes_is_an_error() -> None:
    async def stand_still() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TestbedError, match="stands still"):
        run_virtually(stand_still())


def test_what_is_left_running_is_ended() -> None:
    ended: list[str] = []

    async def linger() -> None:
        try:
            await CLOCK.sleep(1e9)
        finally:
            ended.append("yes")

    async def main() -> str:
        task = asyncio.create_task(linger())
        await CLOCK.sleep(1)
        return "done" if not task.done() else "early"

    assert run_virtually(main()) == "done"
    assert ended == ["yes"]


def test_logical_processes_run_by_time_and_rank_and_call_each_other_at_once() -> None:
    simulation = Simulation()
    clock, log, mail = simulation, list[tuple[float, str]](), asyncio.Queue[str]()

    async def reads() -> None:
        while True:
            word = await mail.get()
            log.append((clock.time(), word))
            await clock.sleep(0.25)

    async def sends(name: str) -> None:
        for _ in range(2):
            await clock.sleep(0.1)
            log.append((clock.time(), f"sent by {name}"))
            mail.put_nowait(f"from {name}")

    reader, second, first = (LogicalProcess(simulation, rank) for rank in (0, 2, 1))
    for process, main in ((second, sends("second")), (first, sends("first")), (reader, reads())):
        process.begin(main)
    simulation.run(0.1)
    assert (log, simulation.time()) == ([], 0.1)
    simulation.run(0.15)
    assert log == [(0.1, "sent by first"), (0.1, "from first"), (0.1, "sent by second")]
    second.pause()
    simulation.run(1.0)
    assert log[3:] == [(0.2, "sent by first"), (0.1 + 0.25, "from second"), (0.1 + 0.25 + 0.25, "from first")]
    simulation.close([first, second, reader])


def test_the_failure_of_a_logical_process_ends_the_simulation() -> None:
    async def fails() -> None:
        await asyncio.sleep(1.0)
        raise TestbedError("broken")

    simulation = Simulation()
    process, other = LogicalProcess(simulation, 0), LogicalProcess(simulation, 1)
    process.begin(fails())
    simulation.run(1.0)
    with pytest.raises(TestbedError, match="broken"):
        simulation.run(1.1)
    simulation.close([process])
    simulation.failure = None
    other.call_at(1.5, [].pop)
    with pytest.raises(IndexError):
        simulation.run(2.0)
    simulation.close([other])


def test_tasks_that_a_logical_process_has_left_end_with_it() -> None:
    """They were destroyed while pending, which Python reported when it next collected garbage."""
    ended: list[str] = []

    async def waits(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def main() -> None:
        other.append(asyncio.create_task(waits("other")))
        await waits("main")

    simulation, other = Simulation(), list[asyncio.Task[None]]()
    process = LogicalProcess(simulation, 0)
    process.begin(main())
    simulation.run(1.0)
    simulation.close([process])
    assert ended == ["main", "other"] and other[0].cancelled()
