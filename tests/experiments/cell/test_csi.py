"""What the UEs of a cell know of their channels: on a constant channel, at a step, and the RTT of an idle cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from testbed.bs.judging.base import Candidates
from testbed.channel.csi import BEST_MBPS, Csi
from testbed.channel.radio.config import ConstantSource, RadioConfig, TraceSource
from testbed.channel.trace import Trace, write_trace
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.csi import WatchedChannel
from testbed.experiments.cell.parts.judge import ChanceJudge
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell
from testbed.experiments.inputs.state import ASSUMED_MBPS

ONE = UeGroup(name="one", protocol="fh", alpha=0.8, response=(200, 200), window=16, window_rule="predicted")
"""Its windows differ in length, without which rounds do not tell rates from RTT."""
CONSTANT = CellConfig(
    seconds=22.0,
    radio=RadioConfig(wired_ms=5.0, grant_ms=2.0, source=ConstantSource(bits_per_s_per_hz=2.0)),
    ues=(ONE,),
)
RATE_MBPS, RTT_MS = 40.0, 14.0
"""Rate of `CONSTANT` (20 MHz x 2 bit/s/Hz) and its RTT: grant, slot and wire up, slot and wire down."""
STEP_S = 6.0
SOURCES = ("oracle", "report,period_ms=100,delay_ms=50,noise_db=0", "handshake", "passive")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, Csi]]:
    """Times since the first slot, and what UEs knew then."""
    found: list[tuple[float, Csi]] = []
    now = WatchedChannel.now

    def watched(self: Any) -> Csi | None:
        csi = now(self)
        assert csi is not None
        found.append((self._truth._clock.time() - self._truth.origin_s, csi))
        return csi

    monkeypatch.setattr(WatchedChannel, "now", watched)
    return found


def run(config: CellConfig, csi: str) -> dict[str, Any]:
    groups = tuple(msgspec.structs.replace(group, csi=csi) for group in config.ues)
    found = msgspec.structs.replace(config, ues=groups)
    return document(found, run_cell(found))["rows"][0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("csi", SOURCES)
def test_on_a_constant_channel_all_sources_agree(csi: str, known: list[tuple[float, Csi]]) -> None:
    """Up to the levels of reports, the rates that handshakes assume, and what slots add to the times of rounds."""
    row = run(CONSTANT, csi)
    half_level = BEST_MBPS ** (0.5 / 14)
    for _, one in known[30:]:
        if csi == "passive":
            assert one.uplink_mbps == pytest.approx(RATE_MBPS, rel=0.1)
            assert one.rtt_ms == pytest.approx(RTT_MS, abs=1.0)
            continue
        assert one.rtt_ms == pytest.approx(RTT_MS, rel=1e-6)
        if csi == "handshake":
            assert one.uplink_mbps == ASSUMED_MBPS
        elif csi == "oracle":
            assert (one.uplink_mbps, one.downlink_mbps, one.per_up) == pytest.approx((RATE_MBPS, RATE_MBPS, 0))
        else:
            assert 1 / half_level <= one.uplink_mbps / RATE_MBPS <= half_level
    assert len(known) > 60
    error_db = {"oracle": 0.0, "handshake": 10 * np.log10(ASSUMED_MBPS / RATE_MBPS)}
    assert row["csi_error_db"] == pytest.approx(error_db.get(csi, 0.0), abs=1e-5 if csi in error_db else 1.08)


@pytest.mark.parametrize("csi", SOURCES)
def test_at_a_step_sources_differ_by_their_delay(csi: str, known: list[tuple[float, Csi]], tmp_path: Path) -> None:
    before, after = 40.0, 10.0
    ones, path = np.ones(2), tmp_path / "step.csv"
    rates = np.array([before, after])
    write_trace(path, Trace(np.array([0.0, STEP_S]), rates, rates, ones, 0 * ones, 0 * ones, ones))
    radio = RadioConfig(source=TraceSource(files=(str(path),)))
    run(CellConfig(seconds=11.0, radio=radio, ues=(ONE,)), csi)
    late = {at_s: one.uplink_mbps < 20 for at_s, one in known}
    assert min(late) < STEP_S - 1 and max(late) > STEP_S + 3
    if csi == "passive":  # three rounds that take longer than expected
        assert not any(low for at_s, low in late.items() if 3 < at_s < STEP_S)
        assert not next(low for at_s, low in late.items() if at_s > STEP_S)
        assert all(low for at_s, low in late.items() if at_s > STEP_S + 2)
    elif csi == "handshake":
        assert not any(late.values())
    else:
        delay_s = 0.0 if csi == "oracle" else 0.05
        assert all(low == (at_s >= STEP_S + delay_s - 1e-9) for at_s, low in late.items())


@pytest.mark.parametrize(
    ("wired_ms", "grant_ms", "request_ms"),
    [(0.0, 0.0, 0.0), (3.0, 0.0, 0.0), (2.5, 4.0, 0.0), (0.3, 1.2, 0.0), (2.5, 4.0, 5.0), (0.0, 1.0, 20.0)],
)
@pytest.mark.parametrize("duplex", ["fdd", "tdd"])
def test_the_oracles_rtt_is_that_of_handshakes(
    duplex: Literal["fdd", "tdd"],
    wired_ms: float,
    grant_ms: float,
    request_ms: float,
    known: list[tuple[float, Csi]],
) -> None:
    radio = RadioConfig(duplex=duplex, wired_ms=wired_ms, grant_ms=grant_ms, request_ms=request_ms)
    config = CellConfig(seconds=4.0, radio=radio, ues=(ONE,))
    run(config, "handshake")
    assert {round(csi.rtt_ms, 3) for _, csi in known} == {round(1e3 * radio.rtt_s, 3)}


def test_ues_know_nothing_unless_the_file_says_so_and_unknown_sources_are_refused() -> None:
    assert run(CONSTANT, "none")["csi_error_db"] is None
    for csi, words in (("perfect", "unknown channel state"), ("report,rtt_ms=3", "reports have no rtt_ms")):
        with pytest.raises(BadInput, match=words):
            msgspec.structs.replace(ONE, csi=csi)


def test_reports_of_ues_err_by_themselves(known: list[tuple[float, Csi]]) -> None:
    pair = msgspec.structs.replace(CONSTANT, seconds=4.0, ues=(msgspec.structs.replace(ONE, count=2),))
    run(pair, "report,levels=3001,noise_db=2,period_ms=1e4")
    assert len({csi.uplink_mbps for _, csi in known}) == 2


@pytest.mark.parametrize("csi", ["none", *SOURCES])
def test_the_judge_of_the_base_station_gets_what_ues_know(
    csi: str, known: list[tuple[float, Csi]], monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[Csi | None] = []
    judge = ChanceJudge.judge

    def watched(self: ChanceJudge, batch: Sequence[Candidates]) -> list[NDArray[np.bool_]]:
        judged.extend(one.csi for one in batch)
        return judge(self, batch)

    monkeypatch.setattr(ChanceJudge, "judge", watched)
    config = msgspec.structs.replace(CONSTANT, ues=(msgspec.structs.replace(ONE, judge_keeps=0.5),), seconds=6.0)
    run(config, csi)
    assert len(judged) > 5
    if csi == "none":
        assert set(judged) == {None}
    else:
        assert set(judged) <= {one for _, one in known}
