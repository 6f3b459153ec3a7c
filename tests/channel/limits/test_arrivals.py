"""Bounds on new connections, on the kernel's own TCP: addresses of loopback stand for hosts."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Iterator

import pytest

from testbed.channel.limits import arrivals
from testbed.channel.limits.arrivals import CLOSED_S, MOST_CLOSED, MOST_ORIGINS, Arrivals, ClosedAddresses, origin_of

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no such filters")


def test_a_bucket_is_emptied_at_once_and_filled_at_its_rate() -> None:
    bucket = Arrivals(3, 2.0)
    assert [bucket.take(b"a", 10.0) for _ in range(5)] == [True, True, True, False, False]
    assert bucket.take(b"b", 10.0)
    assert not bucket.take(b"a", 10.4)
    assert bucket.take(b"a", 10.5) and not bucket.take(b"a", 10.5)
    assert [bucket.take(b"a", 100.0) for _ in range(4)] == [True, True, True, False]


def test_a_rate_is_kept_whatever_the_times() -> None:
    bucket, taken = Arrivals(5, 10.0), 0
    for step in range(10_000):
        taken += bucket.take(b"a", step / 997)
    assert taken == pytest.approx(5 + 10 * 10_000 / 997, abs=1)


def test_origins_that_are_remembered_are_bounded() -> None:
    bucket = Arrivals(1, 0.0)
    assert bucket.take(b"first", 0.0) and not bucket.take(b"first", 0.0)
    for number in range(MOST_ORIGINS):
        bucket.take(b"%d" % number, 0.0)
    assert len(bucket._left) == MOST_ORIGINS
    assert bucket.take(b"first", 0.0)  # forgotten


def test_a_host_counts_by_its_network() -> None:
    assert origin_of("192.0.2.7") == bytes([192, 0, 2, 7]) == origin_of("::ffff:192.0.2.7")
    assert origin_of("2001:db8::1") == origin_of("2001:db8::ffff:1%eth0") == bytes.fromhex("20010db800000000")
    assert origin_of("2001:db8:0:1::1") != origin_of("2001:db8::1")
    assert origin_of("") == origin_of("localhost:1") == b""


@contextlib.contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family, dualstack_ipv6=address == "::") as listener:
        listener.settimeout(5)
        yield listener


def connects(listener: socket.socket, source: str, wait_s: float = 0.3) -> bool:
    """Whether a connection from this address is accepted, and carries data both ways."""
    to = "::1" if ":" in source else "127.0.0.1"
    with socket.socket(socket.AF_INET6 if ":" in source else socket.AF_INET) as here:
        here.settimeout(wait_s)
        here.bind((source, 0))
        try:
            here.connect((to, listener.getsockname()[1]))
        except TimeoutError:
            return False
        there, _ = listener.accept()
        with there:
            here.sendall(b"ping")
            assert there.recv(10) == b"ping"
            there.sendall(b"pong")
            return here.recv(10) == b"pong"


@on_linux
@pytest.mark.parametrize(
    ("address", "closed", "others"),
    [
        ("127.0.0.1", ["127.0.0.2"], ["127.0.0.3", "127.0.0.1"]),
        ("0.0.0.0", ["127.0.0.2", "127.0.0.4", "::1"], ["127.0.0.3"]),
        ("::", ["127.0.0.2"], ["127.0.0.3", "::1"]),
        ("::", ["::1"], ["127.0.0.3"]),
        ("::", ["::1", "127.0.0.2", "127.0.0.9"], ["127.0.0.3"]),
    ],
)
def test_the_kernel_refuses_closed_addresses_and_no_others(address: str, closed: list[str], others: list[str]) -> None:
    refused = ClosedAddresses()
    with contextlib.suppress(OSError), listening(address) as listener:
        for source in closed:
            refused.add(origin_of(source), 100.0)
        refused.apply(listener, 7, 100.0)
        refusing = [source for source in closed if address == "::" or ":" not in source]
        assert [connects(listener, source) for source in refusing] == [False] * len(refusing)
        assert [connects(listener, source) for source in others] == [True] * len(others)
        refused.apply(listener, 7, 100.0 + CLOSED_S)
        assert all(connects(listener, source) for source in [*refusing, *others])
        return
    pytest.skip("no IPv6 here")


@on_linux
def test_an_attempt_that_was_dropped_succeeds_by_itself_once_its_address_is_open_again() -> None:
    refused = ClosedAddresses()
    with listening("127.0.0.1") as listener, socket.socket() as late:
        refused.add(origin_of("127.0.0.2"), 0.0)
        refused.apply(listener, 7, 0.0)
        late.bind(("127.0.0.2", 0))
        late.setblocking(False)
        late.connect_ex(listener.getsockname())
        time.sleep(0.2)
        refused.apply(listener, 7, CLOSED_S)
        late.settimeout(3)
        accepted, peer = listener.accept()
        accepted.close()
        assert peer == late.getsockname()


@on_linux
def test_as_many_addresses_as_are_closed_at_once_fit_a_filter() -> None:
    refused = ClosedAddresses()
    with listening("127.0.0.1") as listener:
        for number in range(1, MOST_CLOSED + 20):
            refused.add(bytes([127, 0, 1, number]), 0.0)
        refused.apply(listener, 7, 0.0)
        assert not connects(listener, "127.0.1.1") and not connects(listener, f"127.0.1.{MOST_CLOSED}")
        assert connects(listener, f"127.0.1.{MOST_CLOSED + 1}") and connects(listener, "127.0.2.1")
        for number in range(1, MOST_CLOSED + 20):
            refused.add(bytes.fromhex("20010db8") + bytes([0, 0, 0, number]), 2 * CLOSED_S)
        assert len(arrivals._program(refused._until_s)) < 5 * MOST_CLOSED + 20
        refused.apply(listener, 7, 2 * CLOSED_S)
        assert connects(listener, "127.0.1.1")


def test_a_log_of_closed_addresses_does_not_grow_with_them(caplog: pytest.LogCaptureFixture) -> None:
    refused = ClosedAddresses()
    with listening("127.0.0.1") as listener:
        for number in range(1000):
            refused.add(b"abcd", 2.0 * number)
            refused.apply(listener, 7, 2.0 * number)
    assert refused.count == 1000 and len(caplog.records) == 10
