"""TCP throughput measurement with iperf3: command line, parser of its JSON, and the process."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Sequence
from typing import Annotated

import msgspec

from testbed.channel.measuring.probe import Estimate, mean_estimate
from testbed.errors import BadInput, LinkError, LinkTimeout

IPERF3_PORT = 5201
MOST_DATA_BYTES = 2**28
"""Memory of an iperf3 process, which takes what its server announces."""
OMIT_S = 1
"""Seconds at the start of a transfer that iperf3 discards, while TCP finds the rate."""
CONNECT_S = 5
SLACK_S = 10.0
"""Time beyond its duration after which a transfer is stopped."""
BUSY_S, RETRY_S = 10.0, 0.5
"""Time and number of attempts at a busy server; after a transfer over a slow link it stays busy for a while."""
BLIP_S = 0.1
"""Intervals of iperf3 shorter than this, at the end of a transfer, are left out of the spread."""
NO_IPERF3 = "iperf3 is not installed; install it on both ends (Debian: apt install iperf3)"


class _Busy(LinkError):
    """The server runs another test, or is between two."""


MOST_MSS = 9_000
"""Largest segment that is sent as one packet (jumbo frames) [bytes]; loopback's have 64 KiB, and no loss."""


class Throughput(msgspec.Struct, frozen=True):
    """Throughput of one direction of a link, measured by a TCP transfer."""

    rate_mbps: Estimate
    """Goodput at the receiver, with a confidence interval from its values per second."""
    loss: float | None
    """Share of segments that TCP retransmitted: retransmits·MSS / bytes sent. A substitute for the packet error rate
    that differs from it: link-layer retransmissions are not seen, while drops of a full queue and spurious
    retransmissions are counted. None if the sender does not report retransmits, or its segments are no packets, as on
    loopback."""
    bytes: int
    """Bytes received."""
    retransmits: int | None
    seconds: float


def parse_server(address: str) -> tuple[str, int]:
    """Parse HOST, HOST:PORT or [IPV6]:PORT of an iperf3 server into host and port.

    Raises:
        BadInput: anything else.
    """
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^\s:\[\]/-][^\s:\[\]/]*))(?::([0-9]{1,5}))?", address)
    port = int(match[3]) if match and match[3] else IPERF3_PORT
    if not match or not 0 < port < 65536:
        raise BadInput(f"bad iperf3 server {address!r}; use HOST or HOST:PORT, such as 192.0.2.7:{IPERF3_PORT}")
    return match[1] or match[2], port


def iperf3_command(host: str, port: int, seconds: int, reverse: bool) -> list[str]:
    """Command line of one TCP transfer with one stream, as between UE and BS; `reverse`: the server sends (downlink).

    Raises:
        BadInput: seconds below one.
    """
    if seconds < 1:
        raise BadInput(f"a transfer takes at least 1 second, not {seconds}")
    command = ["iperf3", "--client", host, "--port", str(port), "--json", "--time", str(seconds), "--interval", "1"]
    command += ["--omit", str(OMIT_S), "--connect-timeout", str(CONNECT_S * 1000)]
    return [*command, "--reverse"] if reverse else command


class _Sum(msgspec.Struct):
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e6)]
    bytes: Annotated[float, msgspec.Meta(ge=0, le=2**63)]
    retransmits: Annotated[int, msgspec.Meta(ge=0)] | None = None
    omitted: bool = False


class _Interval(msgspec.Struct):
    sum: _Sum | None = None


class _Test(msgspec.Struct):
    protocol: str = "TCP"
    reverse: int = 0


class _Start(msgspec.Struct):
    test_start: _Test | None = None
    tcp_mss: Annotated[int, msgspec.Meta(gt=0)] | None = None
    tcp_mss_default: Annotated[int, msgspec.Meta(ge=0)] | None = None


class _End(msgspec.Struct):
    sum_sent: _Sum | None = None
    sum_received: _Sum | None = None


class _Document(msgspec.Struct):
    start: _Start
    intervals: list[_Interval]
    end: _End
    error: str | None = None


def parse_iperf3(text: str | bytes, reverse: bool, server: str = "the iperf3 server") -> Throughput:
    """Parse the output of `iperf3 --json` for one transfer.

    The rate is the receiver's, since the sender also counts what is still in its buffers. The confidence interval uses
    Student's t over the intervals of one second that either side reports. `server` names the server in error messages.

    Raises:
        BadInput: not the output of a finished TCP transfer in this direction, or an unknown host.
        LinkError: iperf3 reports an error.
    """
    try:
        document = msgspec.json.decode(text, type=_Document)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise BadInput(f"not the output of iperf3 --json: {exc}") from exc
    if document.error is not None:
        raise _refusal(document.error, server, begun=bool(document.intervals))
    test, sent = document.start.test_start, document.end.sum_sent
    if test is None or sent is None or test.protocol != "TCP":
        raise BadInput("this iperf3 output holds no TCP transfer; run iperf3 --json without --udp")
    if sent.seconds < BLIP_S or sent.bytes == 0:
        raise LinkError(f"iperf3 sent nothing between here and {server}; measure for a longer time")
    if bool(test.reverse) != reverse:
        raise BadInput(f"this iperf3 output is for the {'downlink' if test.reverse else 'uplink'}, not the other one")
    received = document.end.sum_received
    if received is None or received.bytes == 0 or received.seconds < BLIP_S:
        received = sent
    mss = document.start.tcp_mss or document.start.tcp_mss_default
    loss = None
    if sent.retransmits is not None and mss and mss <= MOST_MSS:
        loss = sent.retransmits * mss / sent.bytes
    return Throughput(
        rate_mbps=_rate(received, document.intervals),
        loss=None if loss is None else min(loss, 0.999),  # on a very poor link, more is retransmitted than sent
        bytes=round(received.bytes),
        retransmits=sent.retransmits,
        seconds=received.seconds,
    )


def _rate(received: _Sum, intervals: Sequence[_Interval]) -> Estimate:
    sums = [i.sum for i in intervals if i.sum and not i.sum.omitted and i.sum.seconds >= BLIP_S]
    rate = 8e-6 * received.bytes / received.seconds
    if len(sums) < 2:
        return Estimate(rate, None, None, len(sums))
    spread = mean_estimate([8e-6 * s.bytes / s.seconds for s in sums])
    assert spread.high is not None
    half = spread.high - spread.value
    return Estimate(rate, max(0.0, rate - half), rate + half, len(sums))


def _refusal(error: str, server: str, begun: bool) -> BadInput | LinkError:
    """The exception for an error of iperf3, with advice; `begun`: data was sent."""
    said = " ".join(error.split())
    if "Name or service not known" in said:
        return BadInput(f"unknown host in {server}; give the address of a machine that runs iperf3 -s")
    if "unable to connect" in said:
        return LinkError(f"no iperf3 server answers at {server} ({said}); start one there with iperf3 -s")
    if "busy" in said:
        return _Busy(f"{server} is busy with another test; try again later")
    if "control socket has closed" in said and not begun:  # iperf3 -s opens its port anew after each test
        return _Busy(f"{server} closed the connection before the transfer began; is iperf3 -s running there?")
    return LinkError(f"the transfer with {server} failed: {said}")


def run_iperf3(
    host: str,
    port: int,
    seconds: int,
    reverse: bool,
    slack_s: float = SLACK_S,
    busy_s: float = BUSY_S,
    prefix: Sequence[str] = (),
) -> Throughput:
    """Run one transfer and return its result; `prefix` goes before the command (`ip netns exec NAME`).

    The process is killed `slack_s` after its duration has passed; a busy server is retried for `busy_s`.

    Raises:
        BadInput: iperf3 is not installed, an unknown host, or invalid arguments.
        LinkError: no server, a busy server, or a failed transfer.
        LinkTimeout: it did not end in time.
    """
    command, server = iperf3_command(host, port, seconds, reverse), f"{host}:{port}"
    if shutil.which(command[0]) is None:
        raise BadInput(NO_IPERF3)
    command = [*prefix, *command]
    limit_s, give_up_s = OMIT_S + seconds + slack_s, time.monotonic() + busy_s
    while True:
        try:
            return parse_iperf3(_output(command, limit_s, server), reverse, server)
        except _Busy:
            if time.monotonic() + RETRY_S > give_up_s:
                raise
        time.sleep(RETRY_S)


def _output(command: list[str], limit_s: float, server: str) -> bytes:
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C"},
    ) as process:  # fmt: skip
        with contextlib.suppress(OSError):  # it has ended
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (MOST_DATA_BYTES, MOST_DATA_BYTES))
        try:
            output, complaints = process.communicate(timeout=limit_s)
        except BaseException as exc:
            process.kill()
            if not isinstance(exc, subprocess.TimeoutExpired):
                raise
            raise LinkTimeout(f"iperf3 with {server} did not finish within {limit_s:g} s; is the link up?") from exc
    if process.returncode and not output.lstrip().startswith(b"{"):
        complaint = complaints.decode(errors="replace").strip().partition("\n")[0] or "no message"
        raise LinkError(f"iperf3 with {server} failed (exit code {process.returncode}): {complaint}")
    return output
