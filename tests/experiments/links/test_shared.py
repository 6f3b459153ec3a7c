"""UEs behind the relay of a shared radio take each other's slots."""

from __future__ import annotations

import os
import signal
import time

import pytest

from testbed.channel.radio.config import ConstantSource, RadioConfig
from testbed.errors import BadInput, EngineError, TestbedError
from testbed.experiments.links import shared
from testbed.experiments.links.shared import shared_radio
from testbed.experiments.runs.processes import check_serving
from tests.support.transfers import receiving, transfers_s

RADIO = RadioConfig(bandwidth_hz=1e6, source=ConstantSource(bits_per_s_per_hz=1.0))


def test_two_ues_cannot_have_more_than_the_radio() -> None:
    """Lower bounds: a busy machine can only make transfers longer."""
    with receiving() as server, shared_radio(RADIO, 3, server) as found:
        assert len(set(found.listens)) == 3 and found.origin_s <= time.monotonic()
        (alone_s,) = transfers_s(found.listens[:1])
        assert alone_s > 0.47
        assert max(transfers_s(found.listens[1:])) > 0.94
        assert max(transfers_s([found.listens[0]] * 2)) > 0.94  # connections of one UE share, too


def test_what_cannot_be_relayed_is_refused_at_once() -> None:
    with pytest.raises(BadInput, match="bad address"), shared_radio(RADIO, 1, "nowhere"):
        pass
    radio = RadioConfig(source=ConstantSource(bits_per_s_per_hz=(1.0, 2.0)))
    with pytest.raises(BadInput, match="2 efficiencies"), shared_radio(radio, 1, "tcp://127.0.0.1:5"):
        pass


def test_a_relay_that_is_killed_is_named() -> None:
    """UEs waited for a minute, and were blamed."""
    with shared_radio(RADIO, 2, "tcp://127.0.0.1:9") as found:
        check_serving()
        os.kill(found.pid, signal.SIGKILL)
        with pytest.raises(TestbedError, match="the relay of the shared radio ended during the run by SIGKILL"):
            _watch()
    check_serving()


def test_a_relay_for_which_nobody_waits_any_longer(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C while it started printed its traceback."""
    monkeypatch.setattr(shared, "READY_S", 0.0)
    with pytest.raises(EngineError, match="did not start"), shared_radio(RADIO, 2, "tcp://127.0.0.1:9"):
        pass
    assert not capfd.readouterr().err


def _watch() -> None:
    until_s = time.monotonic() + 30
    while time.monotonic() < until_s:
        check_serving()
        time.sleep(0.01)
