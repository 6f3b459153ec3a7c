"""Links of the UE processes of a load: each UE has its own share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.experiments.capacity.real import _links
from testbed.experiments.capacity.real_config import RealConfig
from tests.support.transfers import receiving, transfers_s


@pytest.mark.parametrize("kind", ["channel", "radio"])
def test_the_nth_ue_has_the_nth_share(kind: str, tmp_path: Path) -> None:
    """60,000 bytes over a cell of 0.25 Mbit/s: the UE of 10 % takes as long as both together, the other little longer
    than alone. Over fixed parts of 1 Mbit/s it takes 4.8 s. Over seconds, a late begin counts little.
    """
    shares, cell = str(tmp_path / "shares.json"), str(tmp_path / "cell.yaml")
    Path(shares).write_text(json.dumps({"bandwidth": [0.1, 0.6, 0.3]}))
    Path(cell).write_text(
        "radio: {bandwidth_hz: 250000, scheduler: weights, source: {kind: constant, bits_per_s_per_hz: 1.0}}"
    )
    links = {
        "channel": {"channel": f"kind=proxy,uplink_mbps=1,shares={shares}"},
        "radio": {"radio": cell, "shares": shares},
    }
    with receiving() as server, _links(RealConfig(ues=(2,), **links[kind]), 2, server) as (addresses, _):
        small_s, large_s = transfers_s(addresses)
    assert len(set(addresses)) == 2
    assert small_s > 3.8 and small_s > 1.4 * large_s > 0


def test_a_channel_without_shares_is_each_ues_own() -> None:
    """Twice as much would take twice as long over one link of all."""
    with receiving() as server, _links(RealConfig(channel="kind=proxy,uplink_mbps=1"), 2, server) as (addresses, _):
        assert 0.47 < max(transfers_s(addresses)) < 0.9
        assert min(transfers_s(addresses)) > 0.47
    with _links(RealConfig(), 2, "tcp://127.0.0.1:5") as (addresses, _):
        assert addresses == ["tcp://127.0.0.1:5"] * 2
