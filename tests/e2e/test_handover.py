"""A UE process that is handed over between three base stations while it decodes: its output stays the target's own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from testbed.channel.emulate import endpoint
from testbed.channel.link_model import Direction, constant
from testbed.channel.proxy import Proxy
from testbed.config import ServeConfig
from testbed.experiments.runs.processes import base_station, counted_in

pytestmark = pytest.mark.slow

STATIONS = 3
ROUNDS = 4
"""Rounds of a base station, after which the UE is handed over."""
PATIENCE_S = 120.0
QUESTION = ["--prompt", "Ada has 12 apples. Ben gives Ada 30 apples. How many?", "--warmup", "0", "--threads", "1"]
QUESTION += ["--window", "2", "--no-gate", "--csi", "none"]
GREEDY, TARGET = ["--protocol", "greedy"], ["--protocol", "target-only"]
COUPLED = ["--sampling", "coupled", "--seed", "5"]


class Serving(NamedTuple):
    """A base station: its address, and the file of its counters."""

    address: str
    metrics: Path

    @property
    def rounds(self) -> int:
        """Rounds that it has verified so far."""
        return int(counted_in(self.metrics)["rounds"])


@pytest.fixture(scope="module")
def stations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Serving]]:
    """Base stations with the bundled target; passes are slow enough for handovers within a response."""
    directory = tmp_path_factory.mktemp("stations")

    def started(number: int) -> Serving:
        metrics = directory / f"{number}.jsonl"
        config = ServeConfig(
            engine="llama", bind="tcp://127.0.0.1:*", threads=1, pace="a100-qwen3-32b-appendix", metrics=str(metrics),
            metrics_interval_s=0.02,
        )  # fmt: skip
        return Serving(held.enter_context(base_station(config))["bind"], metrics)

    with contextlib.ExitStack() as held:
        threads = held.enter_context(ThreadPoolExecutor(STATIONS))  # which stay: Linux ends a child with its thread
        yield list(threads.map(started, range(STATIONS)))


@pytest.fixture(scope="module")
def expected(stations: list[Serving]) -> dict[bool, list[int]]:
    """The target's own output, greedy (False), and its sample with the seed of coupled sampling (True)."""
    found = {coupled: decoded(stations[0].address, *TARGET, *COUPLED * coupled) for coupled in (False, True)}
    assert all(len(ids) > 20 for ids in found.values())
    return found


def decoded(address: str, *options: str) -> list[int]:
    """The output of a UE process."""
    command = [sys.executable, "-m", "testbed", "ue", "run", *QUESTION, "--bs", address, "--json", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    (output,) = json.loads(done.stdout)["outputs"]
    ids: list[int] = output["token_ids"]
    return ids


async def handed_over(path: list[Serving], *options: str) -> tuple[list[int], list[int]]:
    """The output of a UE that goes along `path`, and the rounds that each of its base stations has verified of it."""
    loop = asyncio.get_running_loop()
    proxy = Proxy(endpoint(path[0].address), lambda _: (Direction(constant()), Direction(constant())))
    served = []
    try:
        port = await proxy.start("127.0.0.1", 0)
        ue = loop.run_in_executor(None, lambda: decoded(f"tcp://127.0.0.1:{port}", *options))
        for station, following in itertools.pairwise([*path, None]):
            before = station.rounds
            if following is None:
                await ue
                await asyncio.sleep(0.2)  # until its counters are written
            while following is not None and station.rounds < before + ROUNDS:
                assert not ue.done(), f"the response ended before handover {len(served) + 1}"
                await asyncio.sleep(0.01)
            if following is not None:
                proxy.hand_over(endpoint(following.address))
            served.append(station.rounds - before)
    finally:
        await proxy.close()
    return await ue, served


@pytest.mark.parametrize(
    "options",
    [GREEDY, [*GREEDY, "--lookahead", "stream"], ["--protocol", "sh", *COUPLED],
     *(pytest.param(options, marks=pytest.mark.long) for options in (
        [*GREEDY, "--lookahead", "1"], [*GREEDY, "--drafter", "suffix"], ["--protocol", "fh"], TARGET))],
    ids=" ".join,
)  # fmt: skip
async def test_a_ue_that_crosses_three_cells_keeps_its_output(
    stations: list[Serving], expected: dict[bool, list[int]], options: list[str]
) -> None:
    found, served = await handed_over(stations, *options)
    assert found == expected[COUPLED[0] in options]
    assert all(rounds > 0 for rounds in served), served


async def test_a_base_station_that_knows_an_earlier_part_of_the_response_goes_on(
    stations: list[Serving], expected: dict[bool, list[int]]
) -> None:
    """Its session is still there when the UE comes back, and is behind."""
    first, second, third = stations
    found, served = await handed_over([first, second, first, third], *GREEDY)
    assert found == expected[False] and all(rounds > 0 for rounds in served), served
