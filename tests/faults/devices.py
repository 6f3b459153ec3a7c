"""Faults of a device's other processes: an endpoint, an agent and the process of its order are stopped for a while."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx

from testbed.config import RunConfig
from testbed.experiments.field.devices.agents import AgentConnection
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.results.files import read_requests
from testbed.protocols.orders import Order, Running, State, order_id
from tests.faults.hosts import PAUSE_S, stopped
from tests.faults.limits import recovered, watch_all
from tests.faults.outcome import Outcome, compare, counted
from tests.faults.runs import bundled_station, orders, start, whole
from tests.faults.site import Child, Site, site

T = TypeVar("T")
CLIENTS = 3
STOPS = 4
"""Most stops during one order, of the agent and of the order's process in turn."""
METHODS = ("greedy", "sh")


# ---------------------------------------------------------------- endpoint


class Readers:
    """Clients that request the same streams from an endpoint over and over.

    Attributes:
        outputs: number of the request and bytes of the text, of every complete stream.
        events: number of events of all streams.
    """

    def __init__(self, url: str) -> None:
        self._web = httpx.AsyncClient(base_url=url, timeout=60.0)
        self._questions = [example.question for example in load_dataset("bundled:test", CLIENTS)]
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False
        self.outputs: list[tuple[int, list[int]]] = []
        self.events = 0

    async def once(self, number: int) -> None:
        """One stream, to its end."""
        body = {"prompt": self._questions[number], "max_tokens": 48, "temperature": 0, "stream": True}
        text, reason = "", None
        async with self._web.stream("POST", "/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    self.events += 1
                    (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                    text, reason = text + choice["text"], choice["finish_reason"]
        assert reason is not None
        self.outputs.append((number, list(text.encode())))

    async def _read(self, number: int) -> None:
        while not self._ending:
            await self.once(number)

    def begin(self) -> None:
        """Request until the end."""
        self._tasks = [asyncio.create_task(self._read(number)) for number in range(CLIENTS)]

    async def more(self, wait_s: float = 60.0) -> None:
        """Wait for the next event.

        Raises:
            AssertionError: none came, or a request failed.
        """
        events, end_s = self.events, time.monotonic() + wait_s
        while self.events == events:
            assert time.monotonic() < end_s
            await asyncio.sleep(0.01)
            for task in self._tasks:
                assert not task.done() or task.exception() is None, task.exception()

    async def end(self) -> None:
        """Let all streams end."""
        self._ending = True
        await asyncio.gather(*self._tasks)
        await self._web.aclose()


async def endpoint_stopped(times: int, seed: int, folder: Path) -> Outcome:
    """The endpoint is stopped while clients read streams; counted when no event came meanwhile."""
    fault, start_s, dice = "endpoint stopped", time.monotonic(), random.Random(f"endpoint/{seed}")
    phases, recovery_s = list[str](), list[float]()
    async with site(bundled_station(folder, "transformers")) as found:
        options = ("--json", "--bs", found.station.address, "--port", "0", "--threads", "1")
        endpoint = await Child.start("endpoint", "testbed", "ue", "serve", *options)
        try:
            readers = Readers((await endpoint.word(60.0))["url"])
            for number in range(CLIENTS):
                await readers.once(number)
            expected = dict(readers.outputs)
            readers.begin()
            while len(phases) < times:
                await asyncio.sleep(dice.uniform(0.0, 0.5))
                with stopped(endpoint.pid):
                    await asyncio.sleep(0.1)
                    before = readers.events
                    await asyncio.sleep(dice.uniform(*PAUSE_S))
                    silent = readers.events == before
                since_s = time.monotonic()
                await readers.more()
                if silent:
                    phases.append("stream")
                    recovery_s.append(time.monotonic() - since_s)
            await readers.end()
        finally:
            await endpoint.kill()
    count, differing = compare(readers.outputs, expected)
    return Outcome(
        fault=fault, seed=seed, injected=len(phases), phases=counted(phases), outputs=count, differing=differing,
        recovery_s=sorted(recovery_s), took_s=time.monotonic() - start_s,
    )  # fmt: skip


# ---------------------------------------------------------------- agent


class Lab:
    """A lab machine: what it says to an agent, in a thread of its own."""

    def __init__(self, address: str) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._agent = self._thread.submit(AgentConnection, address, None).result(60.0)

    async def ask(self, what: Callable[[AgentConnection], T]) -> T:
        """Have the thread do something with the connection."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, what, self._agent)

    async def state(self, order: Order) -> State:
        """State of an order."""
        return await self.ask(lambda agent: agent.state(order.id))

    async def collect(self, order: Order, folder: Path) -> list[tuple[tuple[str, int], list[int]]]:
        """Wait until an order is done; its outputs."""

        def fetch(agent: AgentConnection) -> None:
            *_, done = agent.states(order.id)
            agent.fetch(done, folder, 2**20)
            agent.drop(order.id)

        await self.ask(fetch)
        return outputs_in(folder)

    def close(self) -> None:
        """Hang up."""
        self._thread.submit(self._agent.close).result(60.0)
        self._thread.shutdown()


def outputs_in(folder: Path) -> list[tuple[tuple[str, int], list[int]]]:
    """Outputs of a run directory."""
    rows: list[dict[str, Any]] = read_requests(folder).to_pylist()
    return [((row["method"], row["request"]), row["token_ids"]) for row in rows]


async def agent_stopped(times: int, seed: int, folder: Path) -> Outcome:
    """An agent and the process of its order are stopped by turns; counted when the agent did not answer meanwhile, or
    when the order's process sent nothing and the agent answered.
    """
    fault, start_s, dice = "agent stopped", time.monotonic(), random.Random(f"agent/{seed}")
    phases, recovery_s, seen, number = list[str](), list[float](), list[Any](), 0
    station = bundled_station(folder, "transformers", slow_s=0.02)
    async with site(station) as found:
        await whole(await start(station.address, orders(",".join(METHODS)), "--out", str(folder / "undisturbed")))
        options = ["--json", "--listen", "tcp://127.0.0.1:*", "--workdir", str(folder / "agent")]
        agent = await Child.start("agent", "testbed", "ue", "agent", *options)
        lab = await asyncio.to_thread(Lab, (await agent.word(60.0))["listen"])
        try:
            while len(phases) < times:
                order, number = an_order(f"stopped-{number}", found), number + 1
                await lab.ask(lambda to, order=order: to.order(order))  # type: ignore[misc]
                await found.until(found.postman.sessions_of)
                for _ in range(min(STOPS, times - len(phases))):
                    await asyncio.sleep(dice.uniform(0.0, 0.3))
                    agents = len(phases) % 2 == 0
                    stop = agent_once if agents else order_once
                    took_s = await stop(found, agent.pid, lab, order, dice)
                    phases += [] if took_s is None else ["agent" if agents else "order"]
                    recovery_s += [took_s] if took_s else []
                seen += await lab.collect(order, folder / order.id)
        finally:
            await asyncio.to_thread(lab.close)
            await agent.kill()
        recovery_s += [f.recovery_s for f in found.postman.faults if f.recovery_s is not None]
    count, differing = compare(seen, dict(outputs_in(folder / "undisturbed")))
    return Outcome(
        fault=fault, seed=seed, injected=len(phases), phases=counted(phases), outputs=count, differing=differing,
        recovery_s=sorted(recovery_s), took_s=time.monotonic() - start_s, notes={"orders": number},
    )  # fmt: skip


def an_order(name: str, found: Site) -> Order:
    """The run of `orders`, by an agent."""
    config = RunConfig(
        bs=found.postman.address, methods=METHODS, limit=4, max_tokens=64, threads=1, warmup=0, gate=False,
        timeout_s=150.0,
    )  # fmt: skip
    return Order(id=order_id(name, config={}), what=Running(config))


async def agent_once(found: Site, pid: int, lab: Lab, order: Order, dice: random.Random) -> float | None:
    """Stop the agent; the time from then on until it answers a question of meanwhile, None if it answered before."""
    with stopped(pid):
        asking = asyncio.create_task(lab.state(order))
        await asyncio.sleep(dice.uniform(*PAUSE_S))
        silent = not asking.done()
    since_s = time.monotonic()
    assert (await asking).state in ("waiting", "running", "done")
    return time.monotonic() - since_s if silent else None


async def order_once(found: Site, pid: int, lab: Lab, order: Order, dice: random.Random) -> float | None:
    """Stop the process of the agent's order, whose sessions recover by themselves: 0; None if it was not decoding."""
    children = [child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    if not children or not found.postman.sessions_of():
        return None
    os.killpg(int(children[0]), signal.SIGSTOP)
    try:
        await asyncio.sleep(0.1)
        before = sum(found.postman.carried.values())
        await asyncio.sleep(dice.uniform(*PAUSE_S))
        assert (await lab.state(order)).state == "running"
        silent = sum(found.postman.carried.values()) == before
        watch_all(found, "order")
    finally:
        os.killpg(int(children[0]), signal.SIGCONT)
    await recovered(found)
    return 0.0 if silent else None
