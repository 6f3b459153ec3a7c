"""Fixed weights of a radio cell beside HTB of this machine's kernel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from testbed.channel.radio.config import ConstantSource, RadioConfig
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell

BPS = 20e6
KERNEL = """
import json, re, socket, subprocess, sys, threading, time
bps, weights, seconds = float(sys.argv[1]), [float(w) for w in sys.argv[2].split(",")], float(sys.argv[3])
def run(text): return subprocess.run(text.split(), check=True, capture_output=True, text=True).stdout
run("ip link set lo mtu 1500 up")
run("tc qdisc add dev lo root handle 1: htb")
run(f"tc class add dev lo parent 1: classid 1:1 htb rate {bps:.0f}bit ceil {bps:.0f}bit")
for i, weight in enumerate(weights):
    rate = bps * weight / sum(weights)
    share = f"rate {rate:.0f}bit ceil {bps:.0f}bit quantum {1500 * weight:.0f}"
    run(f"tc class add dev lo parent 1:1 classid 1:{10 + i} htb {share}")
    run(f"tc filter add dev lo parent 1: protocol ip u32 match ip dport {7000 + i} 0xffff flowid 1:{10 + i}")
def receive(sock):
    while sock.recv(65536): pass
def send(port):
    sender = socket.create_connection(("127.0.0.1", port))
    sender.setsockopt(socket.SOL_SOCKET, 32, 2**23)  # SO_SNDBUFFORCE: a busy machine starves no class
    while True: sender.sendall(b"x" * 65536)
for i in range(len(weights)):
    server = socket.create_server(("127.0.0.1", 7000 + i))
    server.setsockopt(socket.SOL_SOCKET, 33, 2**23)  # SO_RCVBUFFORCE
    threading.Thread(target=lambda s=server: receive(s.accept()[0]), daemon=True).start()
    threading.Thread(target=send, args=(7000 + i,), daemon=True).start()
def counted():
    shown = run("tc -s class show dev lo")
    return {name: int(sent) for name, sent in re.findall(r"class htb (\\S+) .*\\n Sent (\\d+) bytes", shown)}
time.sleep(1.0)
before, start = counted(), time.monotonic()
time.sleep(seconds)
after, seconds = counted(), time.monotonic() - start
print(json.dumps([8 * (after[f"1:{10 + i}"] - before[f"1:{10 + i}"]) / seconds for i in range(len(weights))]))
"""
"""Saturates the classes of a rate on the loopback of a namespace of its own; prints the bits per second of each."""


def kernel(weights: tuple[float, ...], seconds: float) -> list[float]:
    arguments = [f"{BPS}", ",".join(map(str, weights)), f"{seconds}"]
    done = subprocess.run(
        ["unshare", "-n", sys.executable, "-c", KERNEL, *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rates: list[float] = json.loads(done.stdout)
    return rates


def cell(weights: tuple[float, ...]) -> list[float]:
    radio = RadioConfig(bandwidth_hz=BPS / 2, source=ConstantSource(bits_per_s_per_hz=2.0), scheduler="weights")
    ues = tuple(
        UeGroup(name=f"{n}", weight=weight, traffic="bytes", message_bytes=10_000, every_s=0.003)
        for n, weight in enumerate(weights)
    )
    config = CellConfig(seconds=4.0, radio=radio, ues=ues)
    return [1e6 * row["uplink_mbps"] for row in document(config, run_cell(config))["rows"]]


@pytest.mark.root
@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "tc", "ip"))), reason="needs root, unshare, tc and ip"
)
@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0), (4.0, 2.0, 1.0)])
def test_weights_divide_the_cell_as_htb_divides_its_rate(weights: tuple[float, ...]) -> None:
    ours, theirs = cell(weights), kernel(weights, 4.0)
    assert sum(ours) == pytest.approx(BPS, rel=0.01)
    assert sum(theirs) <= 1.02 * BPS  # less, where the machine is too busy to send in time
    shares = [[rate / sum(rates) for rate in rates] for rates in (ours, theirs)]
    assert shares[0] == pytest.approx(shares[1], rel=0.05)
