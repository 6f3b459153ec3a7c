"""Faults of real runs, `testbed ue run` with the bundled pair: killed and resumed, on a full disk, on vLLM."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from testbed.experiments.runs.journal import NAME
from testbed.models.bundle import bundled
from tests.faults.ends import Trigger, from_log
from tests.faults.outcome import Outcome, compare, counted
from tests.faults.site import Child, Site, Station, site
from tests.support.postman import Fault

Outputs = list[tuple[tuple[str, str], list[int]]]
PROMPTS = 4
KILLS = 5
"""Kills of one run."""


def bundled_station(folder: Path, engine: str, **plan: Any) -> Station:
    """A BS with the bundled target."""
    threads = ("--threads", "1") if engine == "transformers" else ()
    options = ("--engine", engine, "--model", str(bundled().require("target")), *threads)
    return Station(folder, options, **{"slow_s": 0.0, **plan})


def orders(methods: str, prompts: int = PROMPTS) -> list[str]:
    """Options of `ue run`, but for the address."""
    run = ["ue", "run", "--json", "--limit", str(prompts), "--protocol", methods, "--max-tokens", "64"]
    return [*run, "--threads", "1", "--warmup", "0", "--no-gate", "--timeout", "150"]


async def start(address: str, options: list[str], *more: str) -> Child:
    """A UE process, a real one."""
    return await Child.start("ue run", "testbed", *options, "--bs", address, *more)


async def whole(child: Child) -> Outputs:
    """Outputs that a run printed at its end."""
    assert await child.ended() == 0, child.complaints[-3:]
    return outputs_of(child.said[-1])


def compare_runs(outputs: Outputs, expected: dict[tuple[str, str], list[int]]) -> tuple[int, list[str]]:
    """Like `compare`, for runs that have all their outputs."""
    assert set(Counter(job for job, _ in outputs).values()) == {len(outputs) // len(expected)}
    assert len({job for job, _ in outputs}) == len(expected)
    return compare(outputs, expected)


def outputs_of(document: dict[str, Any]) -> Outputs:
    """Outputs by method and prompt."""
    return [((o["method"], o["prompt"]), o["token_ids"]) for o in document["outputs"]]


async def ue_killed(times: int, seed: int, folder: Path) -> Outcome:
    """The UE is killed `KILLS` times in each run and goes on with `--resume`; recovery counts from each death to the
    first verdict of the process that goes on, whose start is most of it.
    """
    fault, start_s, options = "UE killed", time.monotonic(), orders("greedy,sh,target-only")
    station = bundled_station(folder, "transformers")
    phases: list[str] = []
    seen: Outputs = []
    async with site(station) as found:
        expected = dict(await whole(await start(station.address, options)))
        while len(phases) < times:
            out = folder / f"run-{len(phases)}"
            killing = Killing(found, options, out, seed=seed + len(phases))
            seen += await killing.run(min(KILLS, times - len(phases)))
            phases += killing.phases
        await found.until(lambda: station.metrics()["sessions"] == 0, 30.0)
        recoveries = [f.recovery_s for f in found.postman.faults if f.recovery_s is not None]
    count, differing = compare_runs(seen, expected)
    return Outcome(
        fault=fault, seed=seed, injected=len(phases), phases=counted(phases), outputs=count, differing=differing,
        recovery_s=sorted(recoveries), took_s=time.monotonic() - start_s,
        notes={"sessions_left": station.metrics()["sessions"]},
    )  # fmt: skip


class Killing:
    """One run that is killed over and over."""

    def __init__(self, found: Site, options: list[str], out: Path, seed: int) -> None:
        self._found, self._options, self._out = found, options, out
        self._dice = random.Random(f"killed/{seed}")
        self.phases: list[str] = []

    async def run(self, times: int) -> Outputs:
        """Kill it so many times, or less where it ends before, and let it end; its outputs."""
        resume: tuple[str, ...] = ()
        for _ in range(times):
            child = await start(self._found.postman.address, self._options, "--out", str(self._out), *resume)
            self._found.ues = [child]
            trigger = Trigger(self._dice, child.process.kill)
            self._found.postman.decide = trigger.decide
            try:
                struck = await trigger.draw(self._found, self._dice.randint(0, 120))
            except AssertionError:
                return await whole(child)  # it was quicker
            finally:
                self._found.ues = []
            await child.kill()
            self.phases.append(struck.kind)
            assert (self._out / NAME).exists() and not (self._out / "summary.json").exists()
            self._found.postman.watch(struck.kind, (struck.ue, -1))
            resume = ("--resume",)
        more = ("--out", str(self._out), *resume)
        found = await whole(await start(self._found.postman.address, self._options, *more))
        assert (self._out / "summary.json").exists() and not (self._out / NAME).exists()
        return found


async def disk_full(times: int, seed: int, folder: Path) -> Outcome:
    """A run's disk fills up; once there is room it goes on with `--resume`. Recovery is the time that this takes."""
    fault, start_s = "disk full", time.monotonic()
    station = bundled_station(folder, "transformers")
    mounted = folder / "disk"
    mounted.mkdir()
    async with site(station):
        options = [*orders("greedy,sh", 2), "--bs", station.address]
        said = {"folder": str(mounted), "times": times, "seed": seed, "options": options}
        child = await Child.start("disk", "tests.support.full_disk", json.dumps(said))
        assert await child.ended(600.0) == 0, child.complaints[-3:]
    expected = dict(outputs_of(child.said[0]["document"]))
    attempts = child.said[1:]
    count, differing = compare_runs([o for a in attempts for o in outputs_of(a["document"])], expected)
    return Outcome(
        fault=fault, seed=seed, injected=len(attempts), phases=counted(a["file"] for a in attempts), outputs=count,
        differing=differing, recovery_s=sorted(a["seconds"] for a in attempts), took_s=time.monotonic() - start_s,
    )  # fmt: skip


async def vllm_bs_killed(times: int, seed: int, folder: Path) -> Outcome:
    """Like `bs_killed`, with vLLM under a real run; recovery counts from when it is ready again."""
    fault, start_s, options = "vLLM BS killed", time.monotonic(), orders("greedy,fh,sh", 3 * times)
    station = bundled_station(folder, "vllm")
    phases: list[str] = []
    restarts_s: list[float] = []
    async with site(station) as found:
        expected = dict(await whole(await start(station.address, options)))
        ue = await start(found.postman.address, options)
        found.ues = [ue]
        dice = random.Random(f"{fault}/{seed}")
        hit: list[Fault] = []
        for _ in range(times):
            assert station.child is not None
            trigger = Trigger(dice, station.child.process.kill)
            found.postman.decide = trigger.decide
            phases.append((await trigger.draw(found, dice.randint(0, 60))).kind)
            killed_s = time.monotonic()
            await station.child.kill()
            await station.start()
            restarts_s.append(time.monotonic() - killed_s)
            hit = [found.postman.watch(phases[-1], session) for session in found.postman.sessions_of()]
            await found.until(lambda hit=hit: all(fault.until_s for fault in hit))  # type: ignore[misc]
        count, differing = compare_runs(await whole(ue), expected)
        recovery_s = sorted(f.recovery_s for f in found.postman.faults if f.recovery_s is not None)
    return Outcome(
        fault=fault, seed=seed, injected=len(phases), phases=counted(phases), outputs=count, differing=differing,
        recovery_s=recovery_s, took_s=time.monotonic() - start_s, notes={"restart_most_s": max(restarts_s)},
    )  # fmt: skip


async def vllm_pass_failed(times: int, seed: int, folder: Path) -> Outcome:
    """Like `pass_failed`, inside vLLM: a step computes and then raises, so that its results are lost."""
    fault, start_s, options = "vLLM pass failed", time.monotonic(), orders("greedy,fh,sh,target-only", 8)
    sound, broken = bundled_station(folder, "vllm"), bundled_station(folder, "vllm", fail=0.06, seed=seed)
    async with site(sound):
        expected = dict(await whole(await start(sound.address, options, "--concurrency", "4")))
    seen: Outputs = []
    async with site(broken):
        while len(broken.events("failed")) < times:
            seen += await whole(await start(broken.address, options, "--concurrency", "4"))
    count, differing = compare_runs(seen, expected)
    outcome = Outcome(
        fault=fault, seed=seed, injected=len(broken.events("failed")), phases={}, outputs=count, differing=differing,
        recovery_s=[], took_s=time.monotonic() - start_s,
    )  # fmt: skip
    return msgspec.structs.replace(outcome, **from_log(broken))
