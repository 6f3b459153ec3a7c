"""Emulation by tc on this machine's kernel: rates between namespaces, and cleanup after crash and Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.channel.tc import commands
from testbed.channel.tc.execute import has, run
from testbed.channel.tc.links import Egress, Namespaces
from testbed.channel.tc.offloads import most_segments, offloads_on
from testbed.channel.tc.pair import NamespacePair
from testbed.channel.tc.run import Plan, emulation
from testbed.channel.tc.session import follow
from testbed.channel.tc.shape import Duplex, LinkShape
from testbed.channel.trace import Trace
from testbed.clock import WallClock
from testbed.errors import BadInput
from tests.support.refusals import refuse

ROOT = Path(__file__).parents[3]
FIRST = 1000 + os.getpid() % 10_000
"""Index of the first UE, different from those of other test runs on this machine."""


def missing() -> str | None:
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "needs Linux and root"
    programs = [name for name in ("ip", "tc", "ethtool", "iperf3", "unshare") if shutil.which(name) is None]
    if programs:
        return f"no {', '.join(programs)}"
    try:
        kinds = [kind for kind in ("tbf", "htb") if not has(kind)]
    except BadInput as exc:
        return str(exc)
    return f"this kernel has no {', '.join(kinds)}" if kinds else None


REASON = missing()
pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.skipif(REASON is not None, reason=REASON or "")]


def left_of(*ues: int) -> list[str]:
    """Namespaces and interfaces of UEs that exist."""
    pairs = [NamespacePair(FIRST + ue) for ue in ues]
    names = [name for name in os.listdir("/sys/class/net") if name in {pair.host_interface for pair in pairs}]
    return names + [pair.namespace for pair in pairs if Path("/run/netns", pair.namespace).exists()]


def root_kind(interface: str) -> str:
    found = commands.root_qdisc(run(["tc", "-j", "qdisc", "show", "dev", interface]))
    return str(found["kind"]) if found else "none"


def offloads(interface: str) -> tuple[list[str], int | None]:
    """Offloads that are on, and segments per packet."""
    link = run(["ip", "-d", "-j", "link", "show", "dev", interface])
    return offloads_on(run(["ethtool", "-k", interface])), most_segments(link)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def iperf(links: Namespaces, *options: str, seconds: float = 2) -> dict[str, Any]:
    """iperf3's result between the first UE (client) and the host (server)."""
    address, port = links.host_address(0), str(free_port())
    client = [*links.prefix(0), "iperf3", "-c", address, "-p", port, "-J", "-t", str(seconds), *options]
    listening = ["iperf3", "-s", "-J", "-i", "0.25", "-B", address, "-p", port]
    with subprocess.Popen(listening, stdout=subprocess.DEVNULL) as server:
        try:
            deadline_s = time.monotonic() + 10
            while True:  # until it listens
                done = subprocess.run(client, capture_output=True, text=True, timeout=30, check=False)
                document: dict[str, Any] = json.loads(done.stdout)
                if "error" not in document or time.monotonic() > deadline_s:
                    break
                time.sleep(0.05)
        finally:
            server.kill()
    assert "error" not in document, document["error"]
    return document


def goodput_mbps(links: Namespaces, *options: str) -> float:
    """TCP goodput after the first second."""
    measured = iperf(links, "-C", "cubic", "-O", "1", *options)
    return float(measured["end"]["sum_received"]["bits_per_second"]) / 1e6


def keeps(links: Namespaces, rate_mbps: float, *options: str) -> bool:
    """Whether TCP reaches a rate in one of three transfers, and exceeds it in none: others may need the CPU."""
    for _ in range(3):
        share = goodput_mbps(links, *options) / (0.956 * rate_mbps)
        if share > 0.9:
            return share < 1.1
    return False


@contextlib.contextmanager
def veth() -> Iterator[str]:
    """An interface to shape."""
    name, peer = f"tv{FIRST}a", f"tv{FIRST}b"
    run(["ip", "link", "add", name, "type", "veth", "peer", "name", peer])
    try:
        for end in (name, peer):
            run(["ip", "link", "set", end, "up"])
        yield name
    finally:
        run(["ip", "link", "delete", name])


@contextlib.contextmanager
def child(body: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `body`; entered when it has printed a line that begins with `ready`."""
    head = """
        import signal, sys, time
        from pathlib import Path
        from testbed.channel.tc.links import Egress, Namespaces
        from testbed.channel.tc.session import TcConfig, run_tc
        from testbed.channel.tc.shape import Duplex, LinkShape
        from testbed.channel.trace import Trace
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        first, state = int(sys.argv[1]), Path(sys.argv[2])
    """
    script = textwrap.dedent(head) + textwrap.dedent(body)
    command = [sys.executable, "-u", "-c", script, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            assert line.startswith("ready"), process.stderr.read()
            yield process
        finally:
            process.kill()


# ---------------------------------------------------------------- what links do


def test_tbf_keeps_the_rate_of_each_direction(tmp_path: Path) -> None:
    """A frame of 1514 bytes carries 1448 bytes of TCP payload, so that the goodput is 0.956 of the rate."""
    with Namespaces([Duplex.of(20, 100)], FIRST, qdisc="tbf", state=tmp_path) as links:
        assert links.kind == "tbf" and root_kind(links.pairs[0].host_interface) == "tbf"
        assert keeps(links, 20) and keeps(links, 100, "-R")
    assert left_of(0) == []


def test_htb_holds_each_of_two_ues_to_its_rate_and_nobody_else(tmp_path: Path) -> None:
    with Namespaces([Duplex()], FIRST, qdisc="tbf", state=tmp_path) as links:
        pair, addresses = links.pairs[0], [f"10.201.{n}.2" for n in range(3)]
        for address in addresses:
            run(["ip", "-n", pair.namespace, "address", "add", f"{address}/32", "dev", pair.ue_interface])
            run(["ip", "route", "add", f"{address}/32", "via", pair.ue_address])
        rates = {addresses[0]: LinkShape(10), addresses[1]: LinkShape(30)}
        with emulation(
            Plan(tuple(commands.htb(pair.host_interface, rates)), interfaces=(pair.host_interface,)), state=tmp_path
        ):
            seen = at_once(links, [("-R", "-B", address) for address in addresses[:2]])
            free = goodput_mbps(links, "-R", "-B", addresses[2])
        assert root_kind(pair.host_interface) == "noqueue"
    assert seen[0] == pytest.approx(10 * 0.956, rel=0.1)
    assert seen[1] == pytest.approx(30 * 0.956, rel=0.1)
    assert free > 100


def at_once(links: Namespaces, all_options: Sequence[Sequence[str]]) -> list[float]:
    seen = [0.0] * len(all_options)

    def measure(number: int) -> None:
        seen[number] = goodput_mbps(links, *all_options[number])

    threads = [threading.Thread(target=measure, args=(number,)) for number in range(len(all_options))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


async def test_a_trace_is_seen_in_the_throughput(tmp_path: Path) -> None:
    trace = Trace(
        t_s=np.array([0, 1.5]), uplink_mbps=np.array([8.0, 32.0]), downlink_mbps=np.array([50.0, 50.0]),
        rtt_ms=np.zeros(2), per_up=np.zeros(2), per_down=np.zeros(2), snr_db=np.full(2, np.nan),
    )  # fmt: skip
    with Namespaces([Duplex.at(trace, 0)], FIRST, qdisc="tbf", state=tmp_path) as links:
        options = ("-u", "-b", "60M", "-l", "1448", "--get-server-output")
        measuring = asyncio.create_task(asyncio.to_thread(iperf, links, *options, seconds=3))
        await follow(trace, lambda link: links.reshape(0, link), WallClock(), 3)
        measured = await measuring
    rates_mbps = [part["sum"]["bits_per_second"] / 1e6 for part in measured["server_output_json"]["intervals"]]
    assert len(rates_mbps) >= 11
    assert statistics.median(rates_mbps[:5]) == pytest.approx(8 * 0.956, rel=0.15)
    assert statistics.median(rates_mbps[7:11]) == pytest.approx(32 * 0.956, rel=0.15)


def test_ues_are_apart_and_each_reaches_the_host(tmp_path: Path) -> None:
    connect = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
    with Namespaces([Duplex()] * 2, FIRST, qdisc="tbf", state=tmp_path) as links, socket.create_server(("", 0)) as bs:
        bs.settimeout(5)
        for ue in range(2):
            where = [links.host_address(ue), str(bs.getsockname()[1])]
            subprocess.run([*links.prefix(ue), sys.executable, "-c", connect, *where], check=True, timeout=20)
            connection, peer = bs.accept()
            connection.close()
            assert peer[0] == links.ue_address(ue)


# ---------------------------------------------------------------- what is left


def test_a_qdisc_sees_single_frames() -> None:
    with Namespaces([Duplex.of(50, 50)], FIRST, "tbf") as links:
        iperf(links, seconds=1)
        sent = commands.root_qdisc(
            run(["tc", "-n", links.pairs[0].namespace, "-s", "-j", "qdisc", "show", "dev", links.pairs[0].ue_interface])
        )
        assert sent is not None and sent["packets"] > 1000
        assert sent["bytes"] / sent["packets"] <= 1514


def test_what_a_killed_emulation_leaves_is_cleaned_by_the_next(tmp_path: Path) -> None:
    body = """
        with Namespaces([Duplex.of(20, 20)] * 2, first, qdisc="tbf", state=state):
            with Egress(sys.argv[3], LinkShape(5), qdisc="tbf", state=state):
                print("ready")
                time.sleep(100)
    """
    with veth() as interface:
        before = root_kind(interface), offloads(interface)
        with child(body, str(FIRST), str(tmp_path), interface) as process:
            pid = process.pid
            refuse(lambda: enter(Namespaces([Duplex()], FIRST + 1, "tbf", state=tmp_path)), BadInput, str(pid))
            refuse(lambda: enter(Egress(interface, LinkShape(5), qdisc="tbf", state=tmp_path)), BadInput, str(pid))
            process.kill()
            process.wait(10)
        assert len(left_of(0, 1)) == 4 and root_kind(interface) == "tbf" and offloads(interface) == ([], 1)
        assert len(list(tmp_path.glob("*.json"))) == 2
        said: list[str] = []
        with Namespaces([Duplex()], FIRST + 5, "tbf", state=tmp_path, say=said.append):
            assert left_of(0, 1) == [] and len(left_of(5)) == 2
            assert (root_kind(interface), offloads(interface)) == before
            assert len(list(tmp_path.glob("*.json"))) == 1
        assert len(said) == 2 and all(str(pid) in line for line in said)
        assert left_of(5) == [] and [path.name for path in tmp_path.iterdir()] == ["lock"]


def enter(held: Namespaces | Egress) -> None:
    with held:
        pytest.fail("it was let in")


def test_a_namespace_lives_on_with_a_process_in_it_but_its_link_goes(tmp_path: Path) -> None:
    with Namespaces([Duplex()], FIRST, qdisc="tbf", state=tmp_path) as links:
        process = subprocess.Popen([*links.prefix(0), "sleep", "100"])
        time.sleep(0.2)
    try:
        assert left_of(0) == []
    finally:
        process.kill()
        process.wait(10)


TRACE = "Trace(*(np.array([a, b]) for a, b in ((0, .2), (5, 9), (5, 9), (0, 0), (0, 0), (0, 0), (1, 1))))"
RUNS = {
    "constant": "run_tc(TcConfig(namespaces=1, first=first, uplink_mbps=5), say=say, state=state)",
    "timed": "run_tc(TcConfig(namespaces=1, first=first, uplink_mbps=5, seconds=99), say=say, state=state)",
    "trace": f"import numpy as np\nrun_tc(TcConfig(namespaces=1, first=first), {TRACE}, say=say, state=state)",
}


@pytest.mark.parametrize(
    ("kind", "number", "code"),
    [
        ("constant", signal.SIGINT, 0),
        ("constant", signal.SIGTERM, 143),
        ("timed", signal.SIGINT, -signal.SIGINT),
        ("trace", signal.SIGINT, 0),
        ("trace", signal.SIGTERM, 143),
    ],
)
def test_an_interrupted_emulation_restores(tmp_path: Path, kind: str, number: int, code: int) -> None:
    say = "def say(line): print('ready' if 'COMMAND' in line else line)\nprint('ready: soon')\n"
    with child(say + RUNS[kind], str(FIRST), str(tmp_path)) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("ready"):
            assert process.poll() is None
        time.sleep(0.5)
        assert len(left_of(0)) == 2
        process.send_signal(number)
        rest, stderr = process.communicate(timeout=20)
    assert process.returncode == code, stderr
    assert ("restored" in rest) == (code == 0)
    assert left_of(0) == [] and [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_command_that_fails_halfway_takes_back_the_rest(tmp_path: Path) -> None:
    with veth() as interface:
        plan = Plan(
            (*commands.tbf(interface, LinkShape(5)), ["tc", "qdisc", "add", "dev", "nowhere", "root", "htb"]),
            (interface,),
        )
        with pytest.raises(BadInput, match="nowhere"), emulation(plan, state=tmp_path):
            pytest.fail("it was let in")
        assert root_kind(interface) == "noqueue" and [path.name for path in tmp_path.iterdir()] == ["lock"]


# ---------------------------------------------------------------- what is refused


def test_netem_on_a_kernel_without_it_names_the_module(tmp_path: Path) -> None:
    if has("netem"):
        pytest.skip("this kernel has netem")
    for links in ([Duplex.of(20, 20, rtt_ms=10)], [Duplex.of(20, 20), Duplex.of(20, 20, per_up=0.01)]):
        refuse(partial(enter, Namespaces(links, FIRST, state=tmp_path)), BadInput, "sch_netem", "tbf")
    refuse(lambda: run(["tc", "qdisc", "add", "dev", "lo", "root", "netem"]), BadInput, "sch_netem")
    assert left_of(0, 1) == [] and list(tmp_path.iterdir()) == []


def test_the_default_routes_interface_is_refused_unless_forced_twice(tmp_path: Path) -> None:
    defaults = commands.default_interfaces(run(["ip", "-j", "route"]))
    if not defaults:
        pytest.skip("this machine has no default route")
    name = min(defaults)
    before = root_kind(name)
    for force in (0, 1):
        held = Egress(name, LinkShape(1000), qdisc="tbf", force=force, state=tmp_path)
        refuse(partial(enter, held), BadInput, name, "default route", "twice")
    assert root_kind(name) == before and not list(tmp_path.glob("*.json"))


def test_what_belongs_to_somebody_else_is_left_alone(tmp_path: Path) -> None:
    pair = NamespacePair(FIRST)
    with veth() as interface:
        run(commands.tbf(interface, LinkShape(7))[0])
        refuse(lambda: enter(Egress(interface, LinkShape(5), qdisc="tbf", state=tmp_path)), BadInput, interface, "tbf")
        assert root_kind(interface) == "tbf"
    run(["ip", "netns", "add", pair.namespace])
    try:
        refuse(lambda: enter(Namespaces([Duplex()], FIRST, "tbf", state=tmp_path)), BadInput, pair.namespace)
        assert left_of(0) == [pair.namespace]
    finally:
        run(["ip", "netns", "delete", pair.namespace])


def test_an_interface_that_is_not_there(tmp_path: Path) -> None:
    refuse(lambda: enter(Egress("nowhere0", LinkShape(5), qdisc="tbf", state=tmp_path)), BadInput, "nowhere0", "lo")
