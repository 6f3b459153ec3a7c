"""The distance-based link model, and detection of a changed link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.channel.trace import Trace
from testbed.errors import BadInput
from testbed.experiments.field.link import LinkModel, check_measured, csi_of, differences, rolled, write_model
from tests.support.refusals import refuse

ANCHORS = {2.0: 498.0, 20.0: 172.0}


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_without_fading_the_model_goes_through_its_anchors(share: float) -> None:
    model = LinkModel(fading="none", share=share, jitter_ms=0.0, seconds=10.0)
    for metres, rate in ANCHORS.items():
        trace = model.trace(metres, 0)
        assert trace.uplink_mbps == pytest.approx(np.full(len(trace), share * rate), rel=1e-4)
        assert trace.rtt_ms == pytest.approx(np.full(len(trace), 8.0))


def test_rates_fall_with_distance_and_fading_lowers_their_mean() -> None:
    model = LinkModel(seconds=300.0)
    means = [float(model.trace(metres, 0).uplink_mbps.mean()) for metres in (2, 10, 20, 40)]
    assert means == sorted(means, reverse=True)
    still = [float(LinkModel(fading="none").trace(metres, 0).uplink_mbps.mean()) for metres in (2, 10, 20, 40)]
    assert all(faded < plain for faded, plain in zip(means, still, strict=True))
    again = model.trace(10.0, 0)
    assert np.array_equal(again.uplink_mbps, model.trace(10.0, 0).uplink_mbps)
    assert not np.array_equal(again.uplink_mbps, model.trace(10.0, 1).uplink_mbps)


def test_models_that_cannot_be_are_refused(tmp_path: Path) -> None:
    refuse(lambda: write_model(tmp_path / "x.csv", LinkModel(), 4000.0, 0), BadInput, "at 4000 m", "no link")
    refuse(lambda: LinkModel(anchors=((2.0, 100.0), (20.0, 200.0))), BadInput, "lower rates at longer distances")
    refuse(lambda: LinkModel(anchors=()), BadInput, "anchors")
    refuse(lambda: LinkModel(share=0.0), BadInput, "share")
    assert LinkModel(anchors=((5.0, 300.0),)).path_loss()[1] == 2.0


@pytest.mark.parametrize("start_s", [0.0, 3.0, 7.25, 19.9, 23.0])
def test_a_rolled_trace_is_the_trace_from_then_on(start_s: float) -> None:
    rng = np.random.default_rng(3)
    flat = np.zeros(20)
    trace = Trace(np.arange(20.0), rng.uniform(1, 9, 20), rng.uniform(1, 9, 20), flat, flat, flat, flat)
    found = rolled(trace, start_s)
    for later_s in np.linspace(0.0137, 18.8, 50):
        assert found.csi(later_s, loop=False).uplink_mbps == trace.csi(start_s + later_s).uplink_mbps


def measured(rtt_ms: float, up: float | None = None, rssi_dbm: float | None = None) -> dict[str, Any]:
    return {
        "rtt_ms": {"value": rtt_ms},
        "uplink_mbps": None if up is None else {"value": up},
        "downlink_mbps": None,
        "wifi": None if rssi_dbm is None else {"station": {"rssi_dbm": rssi_dbm}},
    }


def test_only_gross_differences_are_told() -> None:
    before = measured(12.0, 100.0, -50.0)
    assert differences(before, measured(30.0, 40.0, -58.0)) == []
    assert differences(before, measured(2.0)) == []  # a short RTT is a short RTT
    found = differences(before, measured(80.0, 9.0, -75.0))
    assert len(found) == 3
    assert "80.0 ms" in found[0] and "9 Mbit/s" in found[1] and "-75 dBm" in found[2]


GOOD = {
    "csi": {"rtt_ms": 5.0, "uplink_mbps": 20.0, "snr_db": None, "source": "probe"},
    "rtt_ms": {"value": 5.0, "low": 4.0},
}


@pytest.mark.parametrize(
    "change",
    [
        {"csi": {"rtt_ms": "5"}}, {"csi": {"rtt_ms": None}}, {"csi": {"uplink_mbps": -1.0}}, {"csi": [5.0]},
        {"csi": {"what": 1.0}},
        {"rtt_ms": {}}, {"rtt_ms": {"value": -1.0}}, {"rtt_ms": 5}, {"uplink_mbps": {"value": "fast"}}, {"wifi": 3},
        {"cellular": {"rsrp_dbm": "low"}}, {"cellular": {"rsrp_dbm": 1e308}}, {"rtt_ms": {"value": 1e300}},
        {"wifi": {"station": {"rssi_dbm": 1e308}}}, {"downlink_mbps": {"value": 1e308}},
        {"clock": {}}, {"clock": 5}, {"clock": {"offset_s": 1e300, "error_s": 0.0}},
    ],
)  # fmt: skip
def test_a_measurement_that_another_machine_sent_is_checked(change: dict[str, Any]) -> None:
    """A lying agent ended `field run` with a traceback."""
    check_measured(GOOD)
    check_measured(GOOD | {"clock": {"offset_s": -1e3, "error_s": 0.1, "n": 3}})
    assert csi_of(GOOD).rtt_ms == 5.0
    refuse(lambda: check_measured(GOOD | change), BadInput, "")
    for document in ([], 5, None, True, 1.5, "x"):
        refuse(lambda document=document: check_measured(document), BadInput, "no JSON object")  # type: ignore[misc]
