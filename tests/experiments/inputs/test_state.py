"""The `--csi` option, with the source of each form, over a real socket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.channel.csi import Csi
from testbed.channel.measuring.reading import RadioReading
from testbed.channel.spec import ChannelSpec
from testbed.clock import WallClock
from testbed.errors import BadInput
from testbed.experiments.inputs import state
from testbed.experiments.inputs.state import ASSUMED_MBPS, channel_state, check_csi, csi_text
from testbed.ue.records import RoundRecord
from tests.support.refusals import refuse
from tests.support.stations import client, station

CLOCK = WallClock()


def record(up: int, link_s: float) -> RoundRecord:
    return RoundRecord(
        round=0, protocol="fh", base_len=1, drafted=8, accepted=8, committed=9, candidates=0, queried=0, batch_size=1,
        draft_s=0.0, link_s=link_s, queue_s=0.0, verify_s=0.0, judge_s=0.0, overhead_s=0.0, uplink_bytes=up,
        downlink_bytes=40, gap=0.0,
    )  # fmt: skip


async def state_of(text: str) -> Csi | None:
    async with station() as (_, address), client(address) as connection:
        return (await channel_state(text, connection, CLOCK)).now()


async def test_none_is_not_known() -> None:
    assert await state_of("none") is None


async def test_given_values_are_what_they_are() -> None:
    csi = await state_of("uplink_mbps=20,downlink_mbps=30,rtt_ms=50,per_up=0.1,source=emulated")
    assert csi is not None
    assert (csi.uplink_mbps, csi.downlink_mbps, csi.rtt_ms, csi.per_up, csi.source) == (
        20.0,
        30.0,
        50.0,
        0.1,
        "emulated",
    )


async def test_passive_starts_from_a_handshake_and_learns_from_rounds() -> None:
    async with station() as (_, address), client(address) as connection:
        state = await channel_state("passive", connection, CLOCK)
        first = state.now()
        assert first is not None
        assert 0 < first.rtt_ms < 50
        assert (first.uplink_mbps, first.source) == (ASSUMED_MBPS, "passive")
        for up in [100, 200_000] * 30:  # 20 ms, and 8 Mbit/s
            state.observe(record(up, 0.020 + 8 * up / 8e6))
        learnt = state.now()
        assert learnt is not None
        assert learnt.rtt_ms == pytest.approx(20, rel=0.15)
        assert learnt.uplink_mbps == pytest.approx(8, rel=0.15)


async def test_a_handshake_knows_the_rtt_alone_and_measures_again_before_every_request() -> None:
    async with station() as (_, address), client(address) as connection:
        state = await channel_state("handshake", connection, CLOCK)
        first = state.now()
        assert first is not None and 0 < first.rtt_ms < 50
        assert (first.uplink_mbps, first.source) == (ASSUMED_MBPS, "handshake")
        await state.begin()
        again = state.now()
        assert again is not None and again.time_s > first.time_s


async def test_reports_are_of_the_link_that_follows_and_the_rtt_is_a_handshakes() -> None:
    link = "uplink_mbps=20,downlink_mbps=20,rtt_ms=500,per_up=0.5,source=emulated"
    csi = await state_of(f"report,levels=3001,noise_db=0,{link}")
    assert csi is not None
    assert csi.uplink_mbps == pytest.approx(10.0, rel=0.01)
    assert (csi.per_up, csi.source) == (0.0, "report") and csi.rtt_ms < 50
    csi = await state_of(f"report,trace=walk,origin_s={CLOCK.time() - 5.0}")
    assert csi is not None and csi.source == "report"


LINK = ChannelSpec(kind="virtual", uplink_mbps=20, downlink_mbps=40, rtt_ms=50, per=0.1)


async def test_the_state_that_a_ue_is_told_of_an_emulated_link() -> None:
    truth = await state_of(csi_text(LINK))
    assert truth is not None
    assert (truth.uplink_mbps, truth.downlink_mbps, truth.rtt_ms, truth.per_up) == (20.0, 40.0, 50.0, 0.1)
    assert csi_text(ChannelSpec()) == "passive"
    assert [csi_text(LINK, kind=kind) for kind in ("none", "passive", "handshake")] == ["none", "passive", "handshake"]
    refuse(lambda: csi_text(ChannelSpec(), kind="report"), BadInput, "emulated")
    refuse(lambda: csi_text(LINK, kind="perfect"), BadInput, "'perfect'", "oracle")
    refuse(lambda: csi_text(LINK, kind="report,period_ms=0"), BadInput, "period-ms")
    refuse(lambda: csi_text(LINK, kind="report,speed=2"), BadInput, "bad channel state")


async def test_a_measured_file_is_where_learning_starts(tmp_path: Path) -> None:
    path = tmp_path / "link.json"
    path.write_text(json.dumps({"csi": {"uplink_mbps": 12.5, "rtt_ms": 7.0, "rssi_dbm": -60.0, "source": "probe"}}))
    csi = await state_of(str(path))
    assert csi is not None
    assert (csi.uplink_mbps, csi.downlink_mbps, csi.rtt_ms) == (12.5, ASSUMED_MBPS, 7.0)


async def test_a_trace_is_followed_from_its_origin() -> None:
    csi = await state_of(f"trace=walk,origin_s={CLOCK.time() - 5.0}")
    assert csi is not None
    assert csi.source == "trace"
    assert csi.time_s == pytest.approx(5.0, abs=1.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("maybe", "use none, passive, FILE.json"),
        ("uplink_mbps=20", "use none, passive"),
        ("uplink_mbps=fast,downlink_mbps=1,rtt_ms=1", "use none, passive"),
        ("uplink_mbps=20,downlink_mbps=20,rtt_ms=5,colour=red", "use none, passive"),
        ("uplink_mbps=0,downlink_mbps=20,rtt_ms=5", "uplink_mbps must be positive"),
        ("trace=nowhere", "neither a file nor one of"),
        ("trace=walk,speed=2", "use none, passive"),
    ],
)
def test_what_is_no_channel_state(text: str, words: str) -> None:
    refuse(lambda: check_csi(text), BadInput, words)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"csi": 5}', '{"csi": {"uplink_mbps": 5}}', '{"csi": {"rtt_ms": "a"}}']
)
def test_files_that_hold_no_measurement(content: str, tmp_path: Path) -> None:
    path = tmp_path / "link.json"
    path.write_text(content)
    refuse(lambda: check_csi(str(path)), BadInput, "link.json")


async def test_the_radio_is_read_before_every_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    levels = iter([RadioReading(16.5, -74.0), RadioReading(None, -102.0), RadioReading(3.0, -90.0)])
    monkeypatch.setattr(state, "read_radio", lambda: next(levels))
    measured = tmp_path / "csi.json"
    measured.write_text(json.dumps({"csi": {"uplink_mbps": 5.0, "rtt_ms": 9.0, "snr_db": 1.0}}))
    async with station() as (_, address), client(address) as connection:
        for text, expected in (
            ("passive,radio", [(16.5, -74.0), (None, -102.0)]),
            (f"{measured},radio", [(3.0, -90.0)]),
        ):
            found = await channel_state(text, connection, CLOCK)
            for pair in expected:
                await found.begin()
                found.observe(record(100, 0.02))
                csi = found.now()
                assert csi is not None and (csi.snr_db, csi.rssi_dbm) == pair
                assert csi.source == "passive"
    for text in ("none,radio", "handshake,radio", "uplink_mbps=1,downlink_mbps=1,rtt_ms=1,radio"):
        refuse(lambda text=text: check_csi(text), BadInput, "bad channel state")  # type: ignore[misc]
