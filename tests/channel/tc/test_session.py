"""Emulation by tc from a configuration: dry runs, refusals, replay of a trace."""

from __future__ import annotations

import asyncio
import re
import shlex
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from testbed.channel.tc import commands, execute
from testbed.channel.tc.links import Egress, Namespaces
from testbed.channel.tc.pair import MOST_PAIRS, create_pair, delete_pair
from testbed.channel.tc.session import TcConfig, follow, run_tc
from testbed.channel.tc.shape import Duplex, LinkShape
from testbed.channel.trace import Trace
from testbed.errors import BadInput
from tests.support.refusals import refuse


def line(lines: list[list[str]]) -> str:
    return "\n".join(map(shlex.join, lines))


def trace_of(t_s: list[float], uplink_mbps: list[float], per_up: float = 0.0, rtt_ms: float = 0.0) -> Trace:
    n = len(t_s)
    return Trace(
        t_s=np.array(t_s), uplink_mbps=np.array(uplink_mbps), downlink_mbps=np.full(n, 50.0),
        rtt_ms=np.full(n, rtt_ms), per_up=np.full(n, per_up), per_down=np.zeros(n), snr_db=np.full(n, np.nan),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({}, "interface"), ({"interface": "eth1", "namespaces": 1}, "interface"), ({"namespaces": -1}, "namespaces"),
        ({"namespaces": 1, "destinations": ("10.0.0.2",)}, "destinations"),
        ({"namespaces": 1, "seconds": 0}, "seconds"),
    ],
)  # fmt: skip
def test_configurations_that_do_not_hold_together(values: dict[str, int], word: str) -> None:
    refuse(lambda: TcConfig(**values), BadInput, word)  # type: ignore[arg-type]


# ---------------------------------------------------------------- runs


def dry(config: TcConfig, trace: Trace | None = None) -> list[str]:
    said: list[str] = []
    assert run_tc(config, trace, dry_run=True, say=said.append) == 0
    return said


def test_a_dry_run_says_the_commands_and_runs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("it ran something"))
    said = dry(TcConfig(namespaces=2, first=4, uplink_mbps=20, rtt_ms=50, per_down=0.01))
    commands = [text for text in said if not text.startswith("#")]
    assert commands[:10] == line(create_pair(4)).splitlines()
    assert commands[-4:] == line(delete_pair(4) + delete_pair(5)).splitlines()
    shaping = [text for text in commands if "qdisc" in text]
    assert len(shaping) == 4 and all("delay 25ms 0ms 0%" in text for text in shaping)
    assert shaping[0].startswith("tc -n tb4 qdisc add dev tb4u ") and "loss random 0% rate 20mbit" in shaping[0]
    assert shaping[1].startswith("tc qdisc add dev tb4h ") and "loss random 1% rate 0bit" in shaping[1]


def test_a_dry_run_goes_along_a_trace_until_its_seconds_are_over() -> None:
    trace = trace_of([0, 1, 2.5, 9], [5, 7, 0, 8], per_up=0.02)
    said = dry(TcConfig(interface="eth1", seconds=5), trace)
    assert [text for text in said if text.startswith("# at")] == [
        "# at 1 s", "# at 2.5 s", "# at the end, with those offloads that were on",
    ]  # fmt: skip
    rates = [re.search(r"loss random 2% rate (\w+)$", text) for text in said if "netem" in text and "#" not in text]
    assert [match and match[1] for match in rates] == ["5mbit", "7mbit", "100kbit"]
    assert said[-3:] == [
        "tc qdisc del dev eth1 root", "ethtool -K eth1 tso on gso on gro on",
        "ip link set dev eth1 gso_max_segs 65535",
    ]  # fmt: skip


def test_a_dry_run_for_destinations() -> None:
    config = TcConfig(
        interface="eth1", direction="downlink", downlink_mbps=8, destinations=("10.0.0.2",), qdisc="tbf"
    )  # fmt: skip
    assert line(commands.htb("eth1", {"10.0.0.2": LinkShape(8)})) in "\n".join(dry(config))


def test_runs_that_make_no_sense() -> None:
    trace = trace_of([0], [5])
    refuse(lambda: dry(TcConfig(namespaces=1, rtt_ms=5), trace), BadInput, "trace")
    refuse(lambda: dry(TcConfig(namespaces=1, rtt_ms=5, qdisc="tbf")), BadInput, "netem")
    refuse(lambda: dry(TcConfig(namespaces=MOST_PAIRS, first=1)), BadInput, str(MOST_PAIRS))
    for many in (MOST_PAIRS + 1, 10**21):
        refuse(lambda many=many: TcConfig(namespaces=many), BadInput, str(MOST_PAIRS))
    refuse(lambda: dry(TcConfig(interface="eth1", destinations=("10.0.0.2",))), BadInput, "rate")
    refuse(lambda: Namespaces([]), BadInput, "one UE")


def test_without_root_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(execute, "attempt", lambda _: pytest.fail("it ran something"))
    word = "root" if execute.INTERFACES.is_dir() else "Linux"
    for config in (TcConfig(namespaces=1, uplink_mbps=5), TcConfig(interface="lo", uplink_mbps=5)):
        refuse(partial(run_tc, config, state=tmp_path), BadInput, word, "proxy")
    assert list(tmp_path.iterdir()) == []


def test_an_egress_changes_as_it_was_set_up() -> None:
    egress = Egress("eth1", LinkShape(8, 10), ["10.0.0.2"])
    assert {command[2] for command in egress.change("netem", LinkShape(9, 20))} == {"change"}
    assert [command[1] for command in egress.change("netem", LinkShape(9, 20))] == ["class", "qdisc"]


# ---------------------------------------------------------------- along a trace


class FakeClock:
    """A clock that advances only by sleeping, or by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def time(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds


def followed(trace: Trace, seconds: float, late_s: float = 0.0) -> list[tuple[float, float | None]]:
    """Times since the start and uplink rates applied, if each update takes `late_s`."""
    clock, applied = FakeClock(), list[tuple[float, float | None]]()

    def apply(link: Duplex) -> None:
        applied.append((round(clock.now_s - 100, 2), link.up.rate_mbps))
        clock.now_s += late_s

    asyncio.run(follow(trace, apply, clock, seconds))
    assert clock.now_s - 100 == pytest.approx(seconds, abs=max(0.01, late_s))
    return applied


def test_each_state_is_applied_when_it_begins_and_again_in_the_next_round() -> None:
    trace = trace_of([0, 1, 3], [5, 6, 7])  # five seconds a round
    assert followed(trace, 9) == [(0, 5), (1, 6), (3, 7), (5, 5), (6, 6), (8, 7)]


def test_a_state_that_changes_nothing_is_left_out() -> None:
    assert followed(trace_of([0, 1, 2, 3], [5, 5, 6, 5]), 8) == [(0, 5), (2, 6), (3, 5), (6, 6), (7, 5)]


def test_a_late_update_skips_what_is_over() -> None:
    assert followed(trace_of([0, 1, 2, 3], [5, 6, 7, 8]), 4, late_s=2.5) == [(0, 5), (2.5, 7)]


def test_an_outage_is_a_very_low_rate_and_never_no_limit() -> None:
    assert followed(trace_of([0, 1], [5, 0]), 2) == [(0, 5), (1, 0.1)]
    assert Duplex.at(trace_of([0], [1e9]), 0).up.rate_mbps == 1e5


def test_half_of_the_rtt_goes_each_way() -> None:
    link = Duplex.at(trace_of([0], [5], per_up=0.1, rtt_ms=50), 0)
    assert link == Duplex(LinkShape(5, 25, loss=0.1), LinkShape(50, 25))
    assert Duplex.of(rtt_ms=50, gilbert=(0.1, 0.5)).down == LinkShape(delay_ms=25, gilbert=(0.1, 0.5))
