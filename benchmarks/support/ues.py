"""Load on a base station with the synthetic engine: UEs with one session each, over ZeroMQ, without draft models."""

from __future__ import annotations

import contextlib
import heapq
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from testbed.channel.frames import parts
from testbed.channel.link import new_identity
from testbed.protocols.codec import decode_downlink, encode
from testbed.protocols.messages import VERSION, Close, Draft, Fault, Hello, Open, Verdict
from testbed.synthetic import next_token

UES = 64
WINDOW = 4
VOCAB = 512
PROMPT = 50
LONGEST = 3000
"""Tokens after which a session is closed and a new one opened."""
SEED = 0


class Ue:
    """A peer with one session, which sends the target's own tokens as drafts."""

    def __init__(self, context: zmq.Context[Any], address: str, number: int) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.ROUTING_ID, new_identity())
        self.socket.connect(address)
        self.prompt = np.random.default_rng([SEED, number]).integers(0, VOCAB, PROMPT).astype(np.int32)
        self.session = self.round = 0
        self.sent_s = 0.0
        self.send(Hello(version=VERSION, tokenizer="", vocab_size=VOCAB))
        self.receive()
        self.begin()

    def send(self, message: Any, **arrays: Any) -> None:
        self.socket.send_multipart(parts(encode(message, arrays)))

    def receive(self) -> Any:
        message = decode_downlink(self.socket.recv_multipart()).message
        if isinstance(message, Fault):
            raise RuntimeError(message.reason)
        return message

    def begin(self) -> None:
        """Open a session and draft its first window."""
        self.session, self.round, self.ids = self.session + 1, 0, self.prompt.tolist()
        self.send(Open(session=self.session, protocol="greedy", threshold=0.0, hidden_size=8), ids=self.prompt)
        self.receive()
        self.window = self.draft()

    def draft(self) -> list[int]:
        """The target's next tokens."""
        for _ in range(WINDOW):
            self.ids.append(next_token(self.ids, VOCAB, 0))
        window = self.ids[-WINDOW:]
        del self.ids[-WINDOW:]
        return window

    def send_window(self, now_s: float) -> None:
        self.sent_s = now_s
        draft = Draft(session=self.session, round=self.round, base_len=len(self.ids), draft_s=0.0)
        self.send(draft, ids=np.array(self.window, np.int32))

    def take_verdict(self) -> None:
        """Receive a verdict and draft the next window."""
        verdict = self.receive()
        assert isinstance(verdict, Verdict) and verdict.accepted == WINDOW
        self.ids += [*self.window, verdict.token]
        self.round += 1
        if len(self.ids) > LONGEST:
            self.send(Close(session=self.session))
            self.begin()
        else:
            self.window = self.draft()

    def close(self) -> None:
        self.send(Close(session=self.session))
        self.socket.close(linger=500)


class Load:
    """All UEs of a base station.

    Args:
        bs: the base station's ready document.
        pace_s: mean drafting time of a window; 0: UEs are never idle.
    """

    def __init__(self, bs: dict[str, Any], pace_s: float) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._pace_s, self.pid, self.web = pace_s, bs["pid"], children(bs["pid"])
        self._ues = [Ue(self._context, bs["bind"], number) for number in range(UES)]
        self._by_socket = {ue.socket: ue for ue in self._ues}
        self._poller = zmq.Poller()
        for ue in self._ues:
            self._poller.register(ue.socket, zmq.POLLIN)
        self._due: list[tuple[float, int, Ue]] = []
        self._random = random.Random(SEED)

    def begin(self) -> None:
        """Start all UEs, each at a random point of its drafting."""
        self._due = []
        for ue in self._ues:
            self._start_drafting(ue, self._random.random())

    def _start_drafting(self, ue: Ue, share: float = 1.0) -> None:
        """Schedule the UE's next window after a share of its drafting time."""
        lasts_s = share * self._pace_s * self._random.uniform(0.5, 1.5)
        heapq.heappush(self._due, (time.perf_counter() + lasts_s, id(ue), ue))

    def run(self, seconds: float) -> tuple[int, float, float]:
        """Run for `seconds`; returns the rounds, their mean time from window to verdict, and the duration."""
        times_s: list[float] = []
        begun_s = time.perf_counter()
        while (now_s := time.perf_counter()) < begun_s + seconds:
            while self._due and self._due[0][0] <= now_s:
                heapq.heappop(self._due)[2].send_window(time.perf_counter())
            wait_s = min(self._due[0][0] if self._due else now_s + 1, begun_s + seconds) - now_s
            for socket, _ in self._poller.poll(max(0.0, 1e3 * wait_s)):
                ue = self._by_socket[socket]
                times_s.append(time.perf_counter() - ue.sent_s)
                ue.take_verdict()
                if self._pace_s:
                    self._start_drafting(ue)
                else:
                    ue.send_window(time.perf_counter())
        return len(times_s), float(np.mean(times_s or [0.0])), time.perf_counter() - begun_s

    def rest(self) -> None:
        """Wait for all outstanding verdicts."""
        pace_s, self._pace_s = self._pace_s, 1e9
        self._due = [(1e9, number, ue) for _, number, ue in self._due]
        while len(self._due) < UES:
            self.run(0.01)
        self._pace_s = pace_s

    def close(self) -> None:
        for ue in self._ues:
            ue.close()
        self._context.term()


def children(pid: int) -> list[int]:
    """Child processes; a base station's only one is its live view, if any."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process ended meanwhile
            if stat.read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(int(stat.parent.name))
    return found
