"""The choice of lookahead and windows after lies of a base station."""

from __future__ import annotations

import pytest

from testbed.ue.records import RoundRecord
from testbed.ue.windows.lookahead import Lookahead


def round_of(number: int, kept: int, verify_s: float) -> RoundRecord:
    """A round of eight drafted tokens."""
    return RoundRecord(
        round=number, protocol="sh", base_len=10, drafted=8, accepted=5, committed=6, candidates=1, queried=0,
        batch_size=1, draft_s=0.08, link_s=0.05, queue_s=0.0, verify_s=verify_s, judge_s=0.0, overhead_s=0.0,
        uplink_bytes=1, downlink_bytes=1, gap=0.0, kept=kept,
    )  # fmt: skip


@pytest.mark.parametrize(("kept", "verify_s"), [(2**31 - 1, 0.02), (0, -86_400.0), (0, 86_400.0)])
def test_a_lie_ends_no_request(kept: int, verify_s: float) -> None:
    """Each request after it was refused, with the words of an invalid request."""
    chosen = Lookahead(None, 16)
    for number in range(1, 60):
        chosen.observe(round_of(number, *((kept, verify_s) if number < 4 else (0, 0.02))))
        assert 1 <= chosen.room(100) <= 16 and chosen.now(chosen.room(100)) in (0, 1)
