"""Sixteen UE processes at once at one base station, each of another kind: every output passes the gate."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from testbed.config import ServeConfig
from testbed.experiments.inputs.pair import target_for
from testbed.experiments.runs.processes import base_station, environment

KINDS = (
    "greedy --window 1",
    "greedy --window 16",
    "greedy --lookahead 1 --window 4",
    "greedy --lookahead stream --window 8",
    "greedy --lookahead auto --window 32",
    "greedy --drafter suffix",
    "greedy --drafter ngram --no-stream",
    "greedy --drafter suffix+bundled --window 8",
    "coupled --temperature 1 --window 4",
    "coupled --temperature 0.7 --top-p 0.9 --lookahead stream",
    "coupled --temperature 1 --top-k 20 --lookahead auto",
    "fh --lookahead 1 --window 4",
    "fh --lookahead auto --window 16",
    "sh --window 8",
    "sh --lookahead 1 --sampling coupled --temperature 1",
    "fh,sh,greedy --window-rule predicted",
)
WAIT_S = 400.0


async def ue(address: str, seed: int, kind: str) -> dict[str, Any]:
    """What `testbed ue run` printed about two prompts by this kind and by the target alone."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "testbed", "ue", "run", "--json", "--bs", address, "--limit", "2", "--max-tokens", "48",
        "--threads", "1", "--warmup", "0", "--timeout", "150", "--seed", str(seed), "--protocol", *kind.split(),
        stdin=-3, stdout=-1, stderr=-1, env=environment(),
    )  # fmt: skip
    try:
        said, complaints = await asyncio.wait_for(process.communicate(), WAIT_S)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, (kind, complaints.decode()[-500:])
    found: dict[str, Any] = json.loads(said)
    return found


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_sixteen_ues_of_all_kinds_are_lossless() -> None:
    """Greedy decoding and coupled sampling, rounds, lookahead and streams, with and without a model."""
    config = ServeConfig(engine="llama", bind="tcp://127.0.0.1:*", model=target_for("llama", None))
    with base_station(config) as ready:
        runs = await asyncio.gather(*(ue(ready["bind"], seed, kind) for seed, kind in enumerate(KINDS)))
    for kind, run in zip(KINDS, runs, strict=True):
        assert [row["lossless"] for row in run["rows"]] == [True] * len(run["rows"]), kind
        assert len(run["outputs"]) >= 2 * len(kind.split()[0].split(",")), kind
