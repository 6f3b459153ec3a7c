"""Two shared rates of a cell in the kernel's HTB: commands, counters, and shares on this machine's kernel."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.channel.tc.commands import reweighed, shared
from testbed.channel.tc.run import NAMESPACES
from testbed.channel.tc.shared import CELLS, FIRST_PAIR, SharedCell, class_bytes, enter_namespace, free_number, unsent
from testbed.channel.tc.state import Ledger, own_claim
from testbed.errors import BadInput, TestbedError
from tests.channel.tc.test_real import REASON
from tests.support.refusals import refuse

CLASSES = """class htb 1:1 root rate 20Mbit ceil 20Mbit burst 3028b cburst 3028b
 Sent 5000 bytes 4 pkt (dropped 0, overlimits 0 requeues 0)
 backlog 0b 0p requeues 0

class htb 1:2 parent 1:1 leaf 11: prio 0 rate 11Mbit ceil 20Mbit burst 3028b cburst 3028b
 Sent 3014 bytes 2 pkt (dropped 0, overlimits 0 requeues 0)
 backlog 33308b 22p requeues 0

class htb 1:a parent 1:1 leaf 19: prio 0 rate 9Mbit ceil 20Mbit burst 3028b cburst 3028b
 Sent 1986 bytes 2 pkt (dropped 0, overlimits 0 requeues 0)
"""
SOCKETS = """ESTAB      0      36244   10.201.0.1:41234    10.200.250.1:5555
ESTAB      0      0       10.201.0.2:41236    10.200.250.1:5555
FIN-WAIT-1 0      1449    10.201.0.3:41238    10.200.250.1:5555
"""
NUMBER = os.getpid()
SEND = """
import socket, sys, threading, time
host, port, *addresses = sys.argv[1:]
def send(address):
    sender = socket.create_connection((host, int(port)), source_address=(address, 0))
    while True: sender.sendall(b"x" * 65536)
for address in addresses: threading.Thread(target=send, args=(address,), daemon=True).start()
time.sleep(60)
"""


def test_a_machine_without_tc_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ip").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    refuse(SharedCell(NUMBER, (10.0, 10.0), [1.0], tmp_path).__enter__, BadInput, "no program 'tc' on this machine")


def test_a_number_in_use_is_not_taken(tmp_path: Path) -> None:
    assert free_number(7, tmp_path) == 7
    ledger = Ledger(tmp_path)
    for number in (7, 8):
        ledger.write(own_claim({}, [FIRST_PAIR + number]))
    assert free_number(7, tmp_path) == 9
    assert free_number(7 + CELLS, tmp_path) == 9 + CELLS


def test_counters_are_read() -> None:
    assert class_bytes(CLASSES) == {1: 5000, 2: 3014, 10: 1986}
    assert unsent(SOCKETS) == {"10.201.0.1", "10.201.0.3"}


@given(st.lists(st.floats(0.05, 20), min_size=1, max_size=64), st.floats(1, 1000))
def test_the_classes_have_the_whole_rate_together(weights: list[float], rate_mbps: float) -> None:
    commands = reweighed("tb0u", rate_mbps, weights)
    rates = [_bits(command[command.index("rate") + 1]) for command in commands]
    assert sum(rates) == pytest.approx(1e6 * rate_mbps, rel=1e-3)
    assert rates[0] / rates[-1] == pytest.approx(weights[0] / weights[-1], rel=0.01)
    assert {_bits(command[command.index("ceil") + 1]) for command in commands} == {round(1e6 * rate_mbps)}


def _bits(text: str) -> int:
    for unit, size in (("mbit", 10**6), ("kbit", 10**3), ("bit", 1)):
        if text.endswith(unit):
            return int(text.removesuffix(unit)) * size
    raise AssertionError(text)


def test_what_no_cell_can_have() -> None:
    refuse(lambda: shared("lo", 1.0, {}, "src"), BadInput, "1 to 1000 addresses")
    refuse(lambda: shared("lo", 1.0, {"ten": 1.0}, "src"), BadInput, "'ten'")
    refuse(lambda: shared("lo", 0.0, {"10.0.0.1": 1.0}, "src"), BadInput, "rate")
    refuse(lambda: SharedCell(0, (1.0, 1.0), [1.0] * 65), BadInput, "1 to 64 UEs")
    refuse(lambda: enter_namespace("none such"), TestbedError, "none such: No such file")


@contextlib.contextmanager
def saturated(cell: SharedCell) -> Iterator[None]:
    """Every UE sends as much as it can."""
    with socket.create_server((cell.host_address, 0)) as server:

        def receive(taken: socket.socket) -> None:
            while taken.recv(65536):
                pass

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=receive, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        arguments = [cell.host_address, str(server.getsockname()[1]), *cell.addresses]
        command = ["ip", "netns", "exec", cell.namespace, sys.executable, "-c", SEND, *arguments]
        with subprocess.Popen(command) as sending:
            try:
                yield
            finally:
                sending.kill()


def rates(cell: SharedCell, ues: int, seconds: float) -> list[float]:
    """Bits per second of each UE's uplink."""
    before, begun_s = cell.rates.sent_bytes(True, ues), time.monotonic()
    time.sleep(seconds)
    after, passed_s = cell.rates.sent_bytes(True, ues), time.monotonic() - begun_s
    return [8 * (now - then) / passed_s for then, now in zip(before, after, strict=True)]


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(REASON is not None, reason=REASON or "")
def test_weights_divide_the_rate_and_change_while_packets_flow() -> None:
    weights: Sequence[float] = [4.0, 2.0, 1.0]
    with SharedCell(NUMBER, (20.0, 20.0), weights) as cell:
        with saturated(cell):
            time.sleep(1.0)
            assert cell.rates.waiting() == set(cell.addresses)
            for new in (weights, [1.0, 1.0, 1.0], [0.1, 1.0, 1.9]):
                cell.rates.weigh(weights, new)
                time.sleep(0.5)
                found, weights = rates(cell, 3, 2.0), new
                assert sum(found) == pytest.approx(20e6, rel=0.05)
                assert [sum(new) * one / sum(found) for one in found] == pytest.approx(new, rel=0.05)
        assert (NAMESPACES / cell.namespace).exists()
        with pytest.raises(BadInput, match="emulates a link on"), SharedCell(NUMBER, (1.0, 1.0), [1.0]):
            pass
    assert not (NAMESPACES / cell.namespace).exists()
