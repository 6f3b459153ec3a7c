"""`testbed bs serve` with an engine that is slowed down, parts that fail, and limits, for tests of faults.

    python -m tests.support.faulty_bs '{"log": "bs.jsonl", "slow_s": 0.003, "fail": 0.05}' bs serve --engine synthetic …

Only tests start it; the package knows nothing of it. What happened is written to `log`, a line of JSON each, with the
host's monotonic clock.
"""

from __future__ import annotations

import functools
import gc
import json
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from testbed.bs import serve
from testbed.bs.engines.base import Share, VerifyEngine, VerifyRequest
from testbed.bs.server import BaseStation
from testbed.channel.limits import sockets
from testbed.cli.main import run
from testbed.errors import EngineError
from testbed.tasks import beside
from tests.support.breakable import breakable
from tests.support.heartbeat import Heartbeat
from tests.support.hints import RandomHints

JUMP_S = 1.0
"""Least change between wall clock and monotonic clock that counts as a jump."""


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Faults to inject."""

    log: str
    slow_s: float = 0.0
    """Additional time per pass."""
    fail: float = 0.0
    """Probability that a pass fails; a request is in at most one failed pass."""
    failures: int = 10**9
    """Largest number of failed passes."""
    seed: int = 0
    heartbeat: bool = False
    """Whether stalls of the event loop are measured."""
    breakable: bool = False
    """Whether its tasks fail on signals (`tests.support.breakable`)."""
    gone_s: float | None = None
    """Silence of a host after which connections to it are closed; None: the BS's own."""
    hints: bool = False
    """Whether it hints at random (`tests.support.hints`)."""
    most_files: int | None = None
    """File descriptors that it may open."""


class FaultyEngine:
    """An engine with the faults of a plan."""

    def __init__(self, engine: VerifyEngine, plan: Plan) -> None:
        self._engine, self._plan = engine, plan
        self._dice = random.Random(plan.seed)
        self._failed: dict[str, float] = {}
        self._failures = 0
        self._asked: list[VerifyRequest] = []
        self._inside: set[str] = set()
        """Sessions whose prompts the engine computes in pieces."""
        self._wall_s = time.time() - time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: VerifyRequest) -> None:
        """Add a round."""
        self._asked.append(request)

    def step(self) -> list[Share]:
        """Run a pass, or fail."""
        batch, self._asked = self._asked, []
        self._look_at_the_wall()
        time.sleep(self._plan.slow_s)
        spared = self._failures >= self._plan.failures or any(request.session in self._failed for request in batch)
        if batch and self._dice.random() < self._plan.fail and not spared:
            self._fail(batch)
        for request in batch:
            self._engine.submit(request)
        shares = self._engine.step()
        self._inside = {share.request.session for share in shares if share.result is None}
        for share in shares:
            since_s = None if share.result is None else self._failed.pop(share.request.session, None)
            if since_s is not None:
                self._say("recovered", seconds=time.monotonic() - since_s)
        return shares

    def _fail(self, batch: list[VerifyRequest]) -> None:
        """Fail in the middle of a pass: inside vLLM where that computes, else when half of it is done."""
        self._failures += 1
        self._failed |= {request.session: time.monotonic() for request in batch}
        self._say("failed", requests=len(batch))
        runner = getattr(self._engine, "_runner", None)
        while self._inside:
            self._engine.release(self._inside.pop())
        if runner is None:
            self._engine.verify(batch[: len(batch) // 2 or 1])
            raise EngineError("this pass was made to fail")
        core, step = runner._core, runner._core.step_fn

        def broken() -> Any:
            core.step_fn = step
            step()
            raise RuntimeError("this step was made to fail")

        core.step_fn = broken
        try:
            self._engine.verify(batch)
        finally:
            core.step_fn = step

    def _look_at_the_wall(self) -> None:
        wall_s = time.time() - time.monotonic()
        if abs(wall_s - self._wall_s) > JUMP_S:
            self._say("jumped", seconds=wall_s - self._wall_s)
            self._wall_s = wall_s

    def _say(self, event: str, **more: Any) -> None:
        say(self._plan, event, **more)


def say(plan: Plan, event: str, **more: Any) -> None:
    """Write to the log."""
    with Path(plan.log).open("a", encoding="utf-8") as log:
        log.write(json.dumps({"event": event, "at_s": time.monotonic(), **more}) + "\n")


def measure_stalls(plan: Plan) -> None:
    """Have a heartbeat beside the base station; what it measured is logged at the end."""
    serve_ = BaseStation.serve

    async def beating(bs: BaseStation) -> None:
        heartbeat = Heartbeat()
        try:
            await beside([heartbeat.beat()], serve_(bs))
        finally:
            say(plan, "heartbeat", beats=heartbeat.beats, stall=heartbeat.stall, frozen=gc.get_freeze_count())

    BaseStation.serve = beating  # type: ignore[method-assign]


def main() -> None:
    """Serve as the plan says."""
    plan = msgspec.json.decode(sys.argv.pop(1), type=Plan)
    load = serve.load_engine
    serve.load_engine = lambda *args, **options: FaultyEngine(load(*args, **options), plan)  # type: ignore[assignment]
    if plan.hints:
        serve._windows = lambda *_: RandomHints(plan.seed)  # type: ignore[assignment, return-value]
    if plan.most_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (plan.most_files, plan.most_files))
    if plan.gone_s is not None:
        sockets.GONE_S = plan.gone_s
    if plan.breakable:
        breakable(functools.partial(say, plan))
    if plan.heartbeat:
        measure_stalls(plan)
    run()


if __name__ == "__main__":
    main()
