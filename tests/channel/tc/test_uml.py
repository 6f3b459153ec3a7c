"""Real netem, in a user-mode Linux guest: one boot measures all links."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.uml import boot, uml_available
from tests.support.uml_links import PACKETS

ROOT = Path(__file__).parents[3]
MISSING = [name for name in ("tc", "ip", "ethtool", "ping", "iperf3") if shutil.which(name) is None]
REASON = uml_available() or (f"no {', '.join(MISSING)}" if MISSING else None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(REASON is not None, reason=REASON or "")]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    script = f"cd {shlex.quote(str(ROOT))} && exec {shlex.quote(sys.executable)} -B -m tests.support.uml_links\n"
    booted = boot(script, tmp_path_factory.mktemp("uml"), timeout_s=120)
    assert booted.code == 0, booted.output + booted.console
    document: dict[str, Any] = json.loads(booted.output.splitlines()[-1])
    return document


def assert_rtt(rtts_ms: list[float], expected_ms: float, count: int) -> None:
    """None is shorter; most are hardly longer, since the guest has one processor of a shared machine."""
    assert len(rtts_ms) == count
    assert expected_ms <= rtts_ms[0] and rtts_ms[count // 2] < expected_ms + 2


def test_a_kernel_with_netem_is_told_and_used(seen: dict[str, Any]) -> None:
    assert seen["has"] == {"netem": True, "tbf": True, "htb": True}
    assert seen["kind"] == "netem"


def test_a_delay_is_half_of_the_rtt_each_way(seen: dict[str, Any]) -> None:
    assert_rtt(seen["delay"], 50, 40)


def test_a_delay_changes_while_the_link_is_up(seen: dict[str, Any]) -> None:
    assert_rtt(seen["changed"], 10, 40)


def test_a_change_keeps_no_old_option(seen: dict[str, Any]) -> None:
    assert seen["rich"]["delay"] == {"delay": 0.015, "jitter": 0.003, "correlation": 0.25}
    assert seen["rich"]["loss-random"]["loss"] == pytest.approx(0.01)
    assert seen["rich"]["rate"]["rate"] == 20e6 / 8
    assert seen["bare"]["delay"] == {"delay": 0.005, "jitter": 0, "correlation": 0}
    assert not {"loss-random", "loss-gemodel", "rate"} & set(seen["bare"])


def test_a_change_keeps_packets_under_way(seen: dict[str, Any]) -> None:
    assert seen["kept"] == 100


def test_jitter_is_uniform(seen: dict[str, Any]) -> None:
    """±10 ms around 25 ms: a tenth is below 17 ms, half below 25, nine tenths below 33."""
    rtts_ms = seen["jitter"]
    assert len(rtts_ms) == 150 and rtts_ms[0] >= 15
    for share, expected_ms in ((0.1, 17), (0.5, 25), (0.9, 33)):
        assert rtts_ms[round(share * 150)] == pytest.approx(expected_ms, abs=3)


def test_a_rate_is_kept(seen: dict[str, Any]) -> None:
    """20 Mbit/s of frames are 19.1 Mbit/s of TCP payload: 1448 of 1514 bytes."""
    assert seen["goodput_mbps"] == pytest.approx(19.1, rel=0.05)


@pytest.mark.parametrize("kind", ["loss", "gilbert"])
def test_counters_and_receiver_agree_on_what_is_lost(seen: dict[str, Any], kind: str) -> None:
    lost = seen[kind]
    assert lost["dropped"] == pytest.approx(lost["missing"], abs=3)
    assert lost["dropped"] + lost["passed"] == pytest.approx(PACKETS, abs=3)


def test_random_losses_come_singly(seen: dict[str, Any]) -> None:
    """5 %: 500 of 10,000 packets, a standard deviation of 22; in bursts of 1/0.95 on average."""
    lost = seen["loss"]
    assert lost["dropped"] == pytest.approx(0.05 * PACKETS, abs=5 * 22)
    assert sum(lost["bursts"]) / len(lost["bursts"]) == pytest.approx(1.053, abs=0.06)


def test_gilbert_losses_come_in_bursts(seen: dict[str, Any]) -> None:
    """p/(p + r) = 9.1 % in some 180 bursts of geometric length, 1/r = 5 packets on average: 0.33 uncertain."""
    lost = seen["gilbert"]
    assert lost["dropped"] / PACKETS == pytest.approx(0.0909, abs=0.035)
    assert sum(lost["bursts"]) / len(lost["bursts"]) == pytest.approx(5, abs=1.4)


def test_a_destination_behind_htb_has_its_own_netem(seen: dict[str, Any]) -> None:
    assert_rtt(seen["leaf"], 15, 20)
    assert_rtt(seen["leaf_changed"], 40, 20)


def test_nothing_is_left(seen: dict[str, Any]) -> None:
    state, interfaces, namespaces = seen["left"]
    assert state == ["lock"] and namespaces == []
    assert not [name for name in interfaces if name.startswith("tb")]
