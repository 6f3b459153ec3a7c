"""Every kind of fault, injected into real processes at random moments: no output differs from those of a quiet run.

`make faults` injects all of them and prints a table; TESTBED_FAULTS names the folder of its JSON, TESTBED_FAULT_SEED
the seed. The default run injects a few of each cheap kind.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import devices, ends, half_open, hosts, limits, links, mixed, runs
from tests.faults.outcome import Outcome, show, write
from tests.faults.site import METHODS, Job, Station, undisturbed
from tests.support.full_disk import full_disk_available
from tests.support.wall_clock import wall_clock_available

SEED = int(os.environ.get("TESTBED_FAULT_SEED", "0"))
OUT = Path(os.environ.get("TESTBED_FAULTS", "runs/faults"))
Kind = Callable[..., Coroutine[Any, Any, Outcome]]

SYNTHETIC: dict[str, tuple[Kind, int]] = {
    "lost": (functools.partial(links.messages, links.lost), 100),
    "delayed": (functools.partial(links.messages, links.delayed), 100),
    "duplicated": (functools.partial(links.messages, links.duplicated), 100),
    "reordered": (functools.partial(links.messages, links.reordered), 100),
    "down-0.1s": (functools.partial(links.link_down, 0.1), 30),
    "down-1s": (functools.partial(links.link_down, 1.0), 30),
    "down-10s": (functools.partial(links.link_down, 10.0), 25),
    "bs-killed": (ends.bs_killed, 25),
    "pass-failed": (ends.pass_failed, 50),
    "ue-silent": (ends.ue_silent, 30),
    "ue-deaf": (ends.ue_deaf, 30),
    "clock-jumps": (ends.clock_jumps, 30),
    "one-clock-jumps": (hosts.one_clock_jumps, 20),
    "bs-stopped": (hosts.bs_stopped, 15),
    "view-stopped": (hosts.view_stopped, 10),
    "relay-stopped": (hosts.relay_stopped, 15),
    "half-open": (half_open.half_open, 20),
    "files-used-up": (limits.files_used_up, 20),
    "memory-limit": (limits.memory_limited, 8),
    "bs-disk-full": (limits.bs_disk_full, 10),
    "background-dies": (limits.background_dies, 8),
    "serving-dies": (limits.serving_dies, 10),
}
"""Faults on the synthetic pair: the function that injects them, and how often."""
BUNDLED: dict[str, tuple[Kind, int]] = {
    "ue-killed": (runs.ue_killed, 25),
    "disk-full": (runs.disk_full, 25),
    "endpoint-stopped": (devices.endpoint_stopped, 15),
    "agent-stopped": (devices.agent_stopped, 12),
    "vllm-pass-failed": (runs.vllm_pass_failed, 25),
    "vllm-bs-killed": (runs.vllm_bs_killed, 4),
}
MISSING = {
    "clock-jumps": wall_clock_available,
    "one-clock-jumps": wall_clock_available,
    "disk-full": full_disk_available,
    "bs-disk-full": full_disk_available,
    "half-open": half_open.namespaces_available,
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[Job, list[int]]:
    """Outputs that nothing happened to."""
    return asyncio.run(undisturbed(Station(tmp_path_factory.mktemp("undisturbed"))))


@pytest.fixture(scope="module")
def table() -> Iterator[list[Outcome]]:
    """Outcomes of the matrix, written and shown in the end."""
    outcomes: list[Outcome] = []
    yield outcomes
    if outcomes:
        show(outcomes)


def check(outcome: Outcome, times: int) -> None:
    """All took effect, and changed nothing."""
    assert outcome.injected >= times
    assert outcome.outputs > 0 and outcome.differing == []
    assert outcome.recovery_s


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SYNTHETIC)
def test_nothing_differs(name: str, expected: dict[Job, list[int]], table: list[Outcome], tmp_path: Path) -> None:
    if why := MISSING.get(name, lambda: None)():
        pytest.skip(why)
    inject, times = SYNTHETIC[name]
    finish(asyncio.run(inject(times, SEED, tmp_path, expected)), times, table)


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", BUNDLED)
def test_nothing_differs_in_real_runs(name: str, table: list[Outcome], tmp_path: Path) -> None:
    if why := MISSING.get(name, lambda: None)():
        pytest.skip(why)
    inject, times = BUNDLED[name]
    finish(asyncio.run(inject(times, SEED, tmp_path)), times, table)


def finish(outcome: Outcome, times: int, table: list[Outcome]) -> None:
    write(outcome, OUT)
    table.append(outcome)
    check(outcome, times)


def test_a_few_of_each_cheap_kind(tmp_path: Path) -> None:
    outcome = asyncio.run(mixed.a_few_of_each(1, tmp_path))
    check(outcome, 12)
    assert all(outcome.notes.values()), outcome.notes


@pytest.mark.faults
def test_the_quiet_run_has_every_method(expected: dict[Job, list[int]]) -> None:
    assert {method for method, _ in expected} == set(METHODS)
    assert len({tuple(tokens) for tokens in expected.values()}) > 5
