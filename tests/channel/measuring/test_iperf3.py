"""iperf3: its JSON output, errors, timeouts, and a real server."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.channel.measuring import iperf3
from testbed.channel.measuring.iperf3 import Throughput, iperf3_command, parse_iperf3, parse_server, run_iperf3
from testbed.errors import BadInput, LinkError, LinkTimeout, TestbedError
from tests.support.refusals import refuse


@pytest.mark.parametrize(
    ("address", "server"),
    [
        ("192.0.2.7", ("192.0.2.7", 5201)), ("edge.example:80", ("edge.example", 80)), ("[::1]:99", ("::1", 99)),
        ("[2001:db8::1]", ("2001:db8::1", 5201)), ("localhost:65535", ("localhost", 65535)),
    ],
)  # fmt: skip
def test_servers(address: str, server: tuple[str, int]) -> None:
    assert parse_server(address) == server


@pytest.mark.parametrize("address", ["", ":5201", "a:0", "a:65536", "a:b", "a b", "-c", "::1", "tcp://a:1", "a:1:2"])
def test_what_is_no_server(address: str) -> None:
    with pytest.raises(BadInput, match="use HOST or HOST:PORT, such as"):
        parse_server(address)


def test_the_command() -> None:
    expected = "iperf3 --client h --port 7 --json --time 4 --interval 1 --omit 1 --connect-timeout 5000"
    assert iperf3_command("h", 7, 4, reverse=False) == expected.split()
    assert iperf3_command("h", 7, 4, reverse=True) == [*expected.split(), "--reverse"]
    with pytest.raises(BadInput, match="at least 1 second"):
        iperf3_command("h", 7, 0, reverse=False)


# ---------------------------------------------------------------- documents


def interval(mbps: float, seconds: float = 1.0, omitted: bool = False) -> dict[str, Any]:
    return {"streams": [], "sum": {"seconds": seconds, "bytes": round(mbps * seconds * 125_000), "omitted": omitted}}


def document(**changes: Any) -> dict[str, Any]:
    """Four seconds of uplink at 10, 12, 8 and 10 Mbit/s as sent; 4.9 MB of 5 MB had arrived after 4 s: 9.8 Mbit/s."""
    whole: dict[str, Any] = {
        "start": {"tcp_mss_default": 1448, "test_start": {"protocol": "TCP", "reverse": 0, "omit": 1}},
        "intervals": [interval(30.0, omitted=True), *map(interval, (10.0, 12.0, 8.0, 10.0)), interval(500.0, 0.01)],
        "end": {
            "sum_sent": {"seconds": 4.0, "bytes": 5_000_000, "retransmits": 25, "sender": True},
            "sum_received": {"seconds": 4.0, "bytes": 4_900_000, "sender": True},
        },
    }
    return {**whole, **changes}


def parse(said: dict[str, Any], reverse: bool = False) -> Throughput:
    return parse_iperf3(json.dumps(said), reverse)


def test_a_transfer_by_hand() -> None:
    found = parse(document())
    half = 3.182 * (8 / 3) ** 0.5 / 2  # t of 3 degrees, s = sqrt((0 + 4 + 4 + 0) / 3), n = 4
    assert found.rate_mbps.value == pytest.approx(9.8)
    assert found.rate_mbps.n == 4
    assert found.rate_mbps.low == pytest.approx(9.8 - half, abs=1e-3)
    assert found.rate_mbps.high == pytest.approx(9.8 + half, abs=1e-3)
    assert found.loss == pytest.approx(25 * 1448 / 5_000_000)
    assert (found.bytes, found.retransmits, found.seconds) == (4_900_000, 25, 4.0)


def test_a_server_that_counts_no_retransmits_leaves_the_loss_open() -> None:
    sums = document()["end"]
    del sums["sum_sent"]["retransmits"]
    found = parse(document(end=sums))
    assert (found.loss, found.retransmits) == (None, None)
    no_size = document(start={"test_start": {"protocol": "TCP", "reverse": 0}})
    assert (parse(no_size).loss, parse(no_size).retransmits) == (None, 25)


def test_segments_that_are_no_packets_have_no_loss() -> None:
    """Retransmissions on loopback were read as packet errors, and made replays of a rehearsal up to 26 % slower."""
    for mss, loss in ((1448, 25 * 1448 / 5_000_000), (8948, 25 * 8948 / 5_000_000), (65_483, None)):
        start = {"tcp_mss": mss, "test_start": {"protocol": "TCP", "reverse": 0}}
        assert parse(document(start=start)).loss == (loss and pytest.approx(loss))


def test_without_the_receivers_count_the_senders_is_taken() -> None:
    end = {**document()["end"], "sum_received": {"seconds": 4.0, "bytes": 0}}
    assert parse(document(end=end)).rate_mbps.value == pytest.approx(10.0)


def test_one_second_gives_no_interval() -> None:
    rate = parse(document(intervals=[interval(10.0)])).rate_mbps
    assert (rate.low, rate.high, rate.n) == (None, None, 1)


def test_other_documents_are_refused() -> None:
    down = {"test_start": {"protocol": "TCP", "reverse": 1}}
    refuse(lambda: parse(document(start=down)), BadInput, "for the downlink")
    refuse(lambda: parse(document(), reverse=True), BadInput, "for the uplink")
    assert parse(document(start=down), reverse=True).rate_mbps.value == pytest.approx(9.8)
    datagrams = {"test_start": {"protocol": "UDP", "reverse": 0}}
    refuse(lambda: parse(document(start=datagrams)), BadInput, "without --udp")
    refuse(lambda: parse(document(end={})), BadInput, "no TCP transfer")
    nothing = {"sum_sent": {"seconds": 1.0, "bytes": 0, "sender": True}}
    refuse(lambda: parse(document(end=nothing)), LinkError, "measure for a longer time")
    for text in ("", "{}", "[]", "iperf3: error", '{"start": {}, "intervals": 1, "end": {}}', "[" * 10_000):
        refuse(lambda text=text: parse_iperf3(text, False), BadInput, "iperf3 --json")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        ("unable to connect to server: Connection refused", LinkError, "no iperf3 server answers at h:7"),
        ("unable to connect to server: Name or service not known", BadInput, "unknown host in h:7"),
        ("the server is busy running a test. try again later", LinkError, "h:7 is busy with another test"),
        ("the server has terminated", LinkError, "the transfer with h:7 failed: the server has terminated"),
        ("control\nsocket   closed", LinkError, "failed: control socket closed"),
    ],
)
def test_errors_of_iperf3(error: str, kind: type[Exception], said: str) -> None:
    text = json.dumps({"start": {}, "intervals": [], "end": {}, "error": error})
    refuse(lambda: parse_iperf3(text, False, "h:7"), kind, said)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["sum", "bytes", "x"]), inner),
    max_leaves=8,
)


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    with contextlib.suppress(BadInput, LinkError):
        parse_iperf3(data, False)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "start": JSON, "intervals": JSON | st.lists(st.fixed_dictionaries({"sum": JSON})), "error": JSON,
            "end": st.fixed_dictionaries({"sum_sent": JSON | st.fixed_dictionaries(
                {"seconds": st.floats(), "bytes": st.integers() | st.floats(), "retransmits": st.integers() | st.none()}
            )}),
        },
    )
)  # fmt: skip
def test_any_document(changes: dict[str, Any]) -> None:
    with contextlib.suppress(BadInput, LinkError):
        found = parse(document(**changes))
        assert found.loss is None or 0 <= found.loss < 1
        assert found.rate_mbps.value > 0


# ---------------------------------------------------------------- processes


@pytest.fixture
def fake_iperf3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory of a script that replaces iperf3 and writes its process id there."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "iperf3"


def install(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\necho $$ >{path.parent}/pid\n{script}\n")
    path.chmod(0o755)


def test_without_iperf3_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refuse(lambda: run_iperf3("127.0.0.1", 5201, 1, False), BadInput, "not installed", "apt install iperf3")


def test_a_transfer_that_hangs_is_killed(fake_iperf3: Path) -> None:
    install(fake_iperf3, "exec sleep 60")
    start_s = time.monotonic()
    refuse(lambda: run_iperf3("h", 7, 1, False, slack_s=-1.5), LinkTimeout, "h:7 did not finish within 0.5 s")
    assert time.monotonic() - start_s < 10
    with pytest.raises(ProcessLookupError):
        os.kill(int((fake_iperf3.parent / "pid").read_text()), 0)


def test_an_iperf3_that_refuses_its_arguments(fake_iperf3: Path) -> None:
    install(fake_iperf3, "echo 'iperf3: unrecognized option' >&2; echo Usage >&2; exit 1")
    refuse(lambda: run_iperf3("h", 7, 1, False), LinkError, "failed (exit code 1): iperf3: unrecognized option")


@pytest.mark.parametrize(
    "error", ["the server is busy running a test.", "error - control socket has closed unexpectedly"]
)
def test_a_busy_server_is_asked_again(
    fake_iperf3: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: str
) -> None:
    busy = json.dumps({"start": {}, "intervals": [], "end": {}, "error": error})
    (tmp_path / "busy.json").write_text(busy)
    (tmp_path / "done.json").write_text(json.dumps(document()))
    install(fake_iperf3, f"cd {tmp_path}; echo >>asked; [ $(wc -l <asked) -lt 3 ] && exec cat busy.json; cat done.json")
    monkeypatch.setattr(iperf3, "RETRY_S", 0.01)
    assert run_iperf3("h", 7, 1, False).bytes == 4_900_000
    assert (tmp_path / "asked").read_text() == "\n\n\n"
    (tmp_path / "asked").unlink()
    refuse(lambda: run_iperf3("h", 7, 1, False, busy_s=0.0), LinkError, "h:7")


needs_iperf3 = pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")


@pytest.fixture
def server() -> Iterator[int]:
    """Port of a real iperf3 server on loopback."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    process = subprocess.Popen(
        ["iperf3", "--server", "--port", str(port), "--forceflush"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout
    try:
        assert any(b"listening" in line for line in process.stdout)  # to connect and see would be taken for a test
        yield port
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


@needs_iperf3
@pytest.mark.parametrize("reverse", [False, True])
def test_a_real_transfer(server: int, reverse: bool) -> None:
    found = run_iperf3("127.0.0.1", server, 2, reverse)
    assert found.rate_mbps.n == 2
    assert found.seconds == pytest.approx(2.0, abs=0.2)
    assert found.rate_mbps.value == pytest.approx(8e-6 * found.bytes / found.seconds)
    assert found.rate_mbps.value > 100  # loopback, on whatever machine
    assert found.loss is None


@needs_iperf3
def test_no_server_and_a_busy_one(server: int) -> None:
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        refuse(
            lambda: run_iperf3("127.0.0.1", port, 1, False), LinkError, f"no iperf3 server answers at 127.0.0.1:{port}"
        )
    refuse(lambda: run_iperf3("no.such.host.invalid", 1, 1, False), TestbedError, "no.such.host.invalid")
    other = subprocess.Popen([*iperf3_command("127.0.0.1", server, 30, False)], stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        refuse(lambda: run_iperf3("127.0.0.1", server, 1, False, busy_s=0.0), LinkError, "is busy with another test")
    finally:
        other.kill()
        other.wait(10)
