"""The system under faults: a BS process, UE processes, and a postman between them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from testbed.experiments.runs.processes import PARENT
from testbed.protocols import PROTOCOLS, TARGET_ONLY
from testbed.synthetic import next_token
from tests.support.faulty_ue import HINTED_METHODS, PROMPTS, SAMPLED, STREAMS, TOKENS, VOCAB, prompt_of
from tests.support.postman import Postman, postman

READY_S = 240.0
STOP_S = 150.0
METHODS = (*PROTOCOLS, TARGET_ONLY, *STREAMS, *HINTED_METHODS)
SYNTHETIC = ("--engine", "synthetic")
ROOT = Path(__file__).resolve().parents[2]
Job = tuple[str, int]


class Child:
    """A process whose words are kept.

    Attributes:
        said: documents that it wrote to stdout, in order.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name, self.process = name, process
        self.said: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        self._news = asyncio.Event()
        self._readers = [asyncio.create_task(self._read()), asyncio.create_task(self._read_complaints())]

    @classmethod
    async def start(
        cls, name: str, module: str, *arguments: str, prefix: Sequence[str] = (), **environment: str
    ) -> Child:
        """`PREFIX python -m MODULE …`, which ends with this process."""
        process = await asyncio.create_subprocess_exec(
            *prefix, sys.executable, "-m", module, *arguments, cwd=ROOT, stdin=-1, stdout=-1, stderr=-1, limit=2**24,
            env={**os.environ, "OMP_NUM_THREADS": "1", PARENT: str(os.getpid()), **environment},
        )  # fmt: skip
        return cls(name, process)

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self.process.pid

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if line.startswith(b"{"):
                self.said.append(json.loads(line))
                self._news.set()

    async def _read_complaints(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.complaints.append(line.decode(errors="replace").rstrip())

    async def word(self, wait_s: float) -> dict[str, Any]:
        """First document that it printed."""
        waiting = asyncio.create_task(self._news.wait())
        await asyncio.wait({waiting, self._readers[0]}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert self.said, f"{self.name} said nothing: {self.complaints[-3:]}"
        return self.said[0]

    async def ended(self, wait_s: float = STOP_S) -> int:
        """Exit code, once it has ended and its output is read."""
        try:
            code = await asyncio.wait_for(self.process.wait(), wait_s)
        except asyncio.TimeoutError:
            raise AssertionError(f"{self.name} does not end: {self.complaints[-3:]}") from None
        await asyncio.gather(*self._readers)
        self._hang_up()
        return code

    def _hang_up(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()

    async def finish(self) -> None:
        """Let it end what is under way."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(b"\n")
        code = await self.ended()
        assert code == 0, f"{self.name} ended with {code}: {self.complaints[-3:]}"

    async def kill(self) -> None:
        """End it at once; a second time does nothing."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        await self.process.wait()
        await asyncio.gather(*self._readers)
        self._hang_up()


class Station:
    """A BS process on one port, which can be killed and started again.

    Args:
        folder: of its log.
        options: of `bs serve`.
        plan: of `tests.support.faulty_bs`.
    """

    def __init__(self, folder: Path, options: Sequence[str] = SYNTHETIC, **plan: Any) -> None:
        self._options, self._plan = options, {"log": str(folder / "bs.log"), "slow_s": 0.003, "hints": True, **plan}
        self.log_path, self.metrics_path = folder / "bs.log", folder / "metrics.jsonl"
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.child: Child | None = None
        self.environment: dict[str, str] = {}
        self.prefix: tuple[str, ...] = ()
        """Command that starts it."""

    @property
    def pid(self) -> int:
        """PID of the base station."""
        assert self.child is not None
        return self.child.pid

    async def restart(self, wait_s: float = 60.0) -> int:
        """Start it again once it has ended; returns how it ended."""
        assert self.child is not None
        code = await self.child.ended(wait_s)
        await self.start()
        return code

    async def start(self) -> None:
        """Start, and wait until it answers."""
        arguments = ["bs", "serve", "--json", "--bind", self.address, "--metrics", str(self.metrics_path)]
        self.child = await Child.start(
            "BS", "tests.support.faulty_bs", json.dumps(self._plan), *arguments, "--metrics-interval-s", "0.1",
            *self._options, prefix=self.prefix, **self.environment,
        )  # fmt: skip
        assert (await self.child.word(READY_S))["ready"]

    async def stop(self) -> None:
        """End it as a user does.

        Raises:
            AssertionError: it has died before.
        """
        assert self.child is not None
        assert self.child.process.returncode is None, f"the BS has died: {self.child.complaints[-3:]}"
        self.child.process.terminate()
        assert await self.child.ended(60.0) == 0, self.child.complaints[-3:]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Events of a kind in its log."""
        if not self.log_path.exists():
            return []
        found = [json.loads(line) for line in self.log_path.read_text().splitlines()]
        return [event for event in found if event["event"] == kind]

    def metrics(self) -> dict[str, Any]:
        """Counters as last written."""
        last: dict[str, Any] = json.loads(self.metrics_path.read_text().splitlines()[-1])
        return last


class Site:
    """All of it; see `site`."""

    def __init__(self, station: Station, between: Postman) -> None:
        self.station, self.postman = station, between
        self.ues: list[Child] = []
        self.environment = station.environment
        """Environment of the UEs that are started next."""

    async def begin(self, ues: int, **orders: Any) -> None:
        """Start UEs, and wait until all have said something."""
        fresh = []
        for seed in range(len(self.ues), len(self.ues) + ues):
            said = {"bs": self.postman.address, "name": f"ue-{seed}", "methods": METHODS, "seed": seed, **orders}
            child = await Child.start(said["name"], "tests.support.faulty_ue", json.dumps(said), **self.environment)
            fresh.append(child)
        self.ues += fresh
        for ue in fresh:
            await ue.word(60.0)

    def pid(self, ue: bytes) -> int:
        """Process id of the UE with an identity."""
        return next(child.pid for child in self.ues if child.name == ue.decode())

    async def until(self, condition: Callable[[], object], wait_s: float = 240.0) -> None:
        """Wait for something, as long as all UEs live.

        Raises:
            AssertionError: one has died, or it did not come about.
        """
        end_s = time.monotonic() + wait_s
        while not condition():
            assert time.monotonic() < end_s, f"it did not come about within {wait_s:g} s"
            for ue in self.ues:
                assert ue.process.returncode is None, f"{ue.name} has died: {ue.complaints[-3:]}"
            await asyncio.sleep(0.02)

    async def finish(self) -> list[tuple[Job, list[int]]]:
        """Let UEs end what is under way; all outputs."""
        await asyncio.gather(*(ue.finish() for ue in self.ues))
        return [((said["job"][0], said["job"][1]), said["tokens"]) for ue in self.ues for said in ue.said]


@contextlib.asynccontextmanager
async def site(station: Station, reached: str | None = None) -> AsyncIterator[Site]:
    """A running BS behind a postman, who reaches it at an address of its own; what still runs in the end is killed."""
    await station.start()
    async with postman(reached or station.address) as between:
        found = Site(station, between)
        try:
            yield found
            await station.stop()
        finally:
            for child in (*found.ues, station.child):
                if child is not None:
                    await child.kill()


async def undisturbed(station: Station) -> dict[Job, list[int]]:
    """Outputs of a run that nothing happens to; those of greedy methods are the target's own, token by token."""
    async with site(station) as found:
        await found.begin(1, bs=station.address, once=True, token_s=0.0)
        outputs = dict(await found.finish())
    assert len(outputs) == len(METHODS) * PROMPTS
    for (method, number), tokens in outputs.items():
        assert method in SAMPLED or tokens == own(prompt_of(number)), (method, number)
    return outputs


def own(prompt: list[int]) -> list[int]:
    """The synthetic target's continuation, straight from its definition."""
    ids = list(prompt)
    for _ in range(TOKENS):
        ids.append(next_token(ids, VOCAB, 0))
    return ids[len(prompt) :]


def free_port() -> int:
    """A port that nobody listens on, and that no connection takes for its own end: where one that asks again and again
    for a BS that is down is given the BS's port, it reaches itself.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
