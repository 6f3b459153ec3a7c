"""Windows that take as long to draft as a verdict takes to arrive."""

from __future__ import annotations

import msgspec
import pytest

from testbed.errors import BadInput
from testbed.ue.records import RoundRecord
from testbed.ue.windows.parallel import MEMORY_ROUNDS, ParallelWindow
from testbed.ue.windows.registry import window_policy

ROUND = RoundRecord(
    round=1, protocol="greedy", base_len=5, drafted=4, accepted=4, committed=5, candidates=0, queried=0, batch_size=1,
    draft_s=0.04, link_s=0.05, queue_s=0.0, verify_s=0.02, judge_s=0.0, overhead_s=0.0, uplink_bytes=1,
    downlink_bytes=1, gap=0.0, sent_s=1.0, verdict_s=1.07,
)  # fmt: skip


def test_drafting_takes_as_long_as_the_wait() -> None:
    rule = ParallelWindow(32)
    assert rule.max_window == 32
    rule.observe(ROUND)
    assert rule.max_window == 7  # 70 ms of 10 ms each
    for _ in range(5 * MEMORY_ROUNDS):
        rule.observe(msgspec.structs.replace(ROUND, verdict_s=1.2))
    assert rule.max_window == 20
    assert rule.fresh().max_window == 32


@pytest.mark.parametrize("more", [{"round": 0}, {"hidden_s": 0.01}, {"drafted": 0}])
def test_rounds_that_tell_nothing_about_drafting(more: dict[str, float]) -> None:
    rule = ParallelWindow(32)
    rule.observe(msgspec.structs.replace(ROUND, **more))
    assert rule.max_window == 32


def test_bounds() -> None:
    rule = ParallelWindow(5)
    rule.observe(ROUND)
    assert rule.max_window == 5
    rule.observe(msgspec.structs.replace(ROUND, draft_s=100.0))
    assert rule.max_window == 1
    with pytest.raises(BadInput, match="window must lie"):
        window_policy("parallel", 0)
