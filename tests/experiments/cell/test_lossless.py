"""Responses of a cell in virtual time are compared with the target's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from testbed.bs.engines.base import Share, VerifyResult
from testbed.bs.engines.runner import nobody
from testbed.errors import EngineError
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.run import run_cell
from testbed.experiments.deployment.traffic_bs import TrafficRunner
from testbed.experiments.deployment.traffic_ue import VOCAB

STEP = TrafficRunner.step


async def corrected_wrongly(self: TrafficRunner, waiting: Callable[[], bool] = nobody) -> list[Share]:
    """Of windows with a mismatch, the verdict has another token than the target's in its place."""
    return [share._replace(result=_wrong(share)) for share in await STEP(self, waiting)]


def _wrong(share: Share) -> VerifyResult:
    assert share.result is not None
    wrong = np.flatnonzero(share.result.argmax[:-1] != share.request.draft)[:1]
    argmax = share.result.argmax.copy()
    argmax[wrong] = (argmax[wrong] + 2) % VOCAB
    return replace(share.result, argmax=argmax)


@pytest.mark.parametrize("group", [{"protocol": "greedy"}, {"protocol": "fh"}, {"protocol": "sh", "lookahead": 1}])
def test_a_response_with_a_token_of_its_own_ends_the_run(
    group: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    ues = (UeGroup(name="a", response=(20, 20), **group),)  # type: ignore[arg-type]
    config = CellConfig(seconds=12.0, ues=ues)
    assert run_cell(config).groups[0][1][0].latencies_s
    monkeypatch.setattr(TrafficRunner, "step", corrected_wrongly)
    with pytest.raises(EngineError, match="differs from the target's own output"):
        run_cell(config)


def test_responses_that_may_differ_are_not_compared() -> None:
    known = {"greedy": True, "fh": True, "sh": True, "target-only": True, "rejection": False, "split": False}
    assert {name: UeGroup(name="a", protocol=name).lossless for name in known} == known
    kept = UeGroup(name="a", protocol="fh", judge_keeps=0.5, response=(20, 20))
    assert not kept.lossless and run_cell(CellConfig(seconds=12.0, ues=(kept,))).groups[0][1][0].latencies_s
