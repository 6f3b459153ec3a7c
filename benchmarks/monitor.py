"""What the live view costs the rounds that it shows: 64 UEs' sessions over ZeroMQ, with it and without, turn by turn.

Two base station processes with the synthetic engine: one with `--monitor`, from which a viewer takes ten updates a
second while it is measured, and one without. The same 64 UEs load the one, then the other, in pairs whose order is
drawn anew every time. Each UE is a peer of its own and sends the target's own tokens, so that every window stays. It is
done in two ways:

- full: a UE drafts again at once; base station and UEs are never idle, so that on two cores whatever is done beside
  rounds, by whatever process, costs rounds.
- paced: a UE drafts for 100 ms ± 50 %: some hundred rounds a second, as engines with models do. The base station idles
  in between; what counts is how long a round takes. (UEs that all take as long come in step, and stay so.)

Given are medians over pairs of (with / without), with 95 % intervals by bootstrap over pairs: rounds a second, the mean
round as the UEs see it, and the base station's CPU time a round; and the CPU time of the live view's own process, as a
share of one core. The goal: rounds less than 2 % slower.

Run: python benchmarks/monitor.py [--pairs N] [--seconds S] [--text] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import http.client
import json
import multiprocessing
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import numpy as np
import zmq

from testbed.channel.link import new_identity
from testbed.config import ServeConfig
from testbed.experiments.results import directory as results
from testbed.experiments.runs.processes import base_station
from testbed.protocols.codec import decode_downlink, encode
from testbed.protocols.messages import VERSION, Close, Draft, Fault, Hello, Open, Verdict
from testbed.synthetic import next_token

UES = 64
WINDOW = 4
VOCAB = 512
PROMPT = 50
LONGEST = 3000
"""Tokens of a session; then it is opened anew."""
PACES_S = {"full": 0.0, "paced": 0.1}
WARM_S = 0.15
SEED = 0
RESAMPLES = 10_000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one turn")
    parser.add_argument("--text", action="store_true", help="have the live view show outputs too")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    serve = ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*")
    watched = msgspec.structs.replace(serve, monitor="127.0.0.1:0", monitor_text=arguments.text)
    with base_station(watched) as on, base_station(serve) as off, viewer(on["monitor"]) as view:
        rows = [paired(pace, on, off, view, arguments.pairs, arguments.seconds) for pace in PACES_S]
    report = {"host": results.host(), "seed": SEED, "ues": UES, "rows": rows}
    if arguments.json:
        print(json.dumps(report))
        return
    print(f"{report['host']['cpu']}, {report['host']['cores']} cores; {UES} UEs, window {WINDOW}, seed {SEED}")
    for row in rows:
        print(
            f"{row['pace']:6} {row['pairs']} pairs; without: {row['rounds_per_s']:.0f} rounds/s, "
            f"{row['round_ms']:.2f} ms, {row['cpu_us']:.0f} µs of CPU a round; updates {row['updates_per_s']:.1f}/s, "
            f"which take {100 * row['view_share']:.1f} % of a core"
        )
        for name in ("rounds", "time", "cpu"):
            value, low, high = row[name]
            print(f"       {name:6} with / without: {value:.4f} [{low:.4f}, {high:.4f}]")


# ---------------------------------------------------------------- pairs


class Turn(NamedTuple):
    """What one base station did in one turn; its CPU time is that of a round."""

    rounds_per_s: float
    round_s: float
    cpu_s: float
    updates_per_s: float
    view_share: float
    """CPU time of the live view's process over time."""


def paired(
    pace: str, on: dict[str, Any], off: dict[str, Any], view: Viewer, pairs: int, seconds: float
) -> dict[str, Any]:
    """Ratios of turns with the live view over turns without."""
    rng = np.random.default_rng(SEED)
    turns = []
    with contextlib.closing(Load(on, PACES_S[pace])) as watched, contextlib.closing(Load(off, PACES_S[pace])) as other:
        for _ in range(pairs):
            sides: list[tuple[Load, Viewer | None]] = [(watched, view), (other, None)]
            found = {side: turn(*sides[side], seconds) for side in rng.permutation(2).tolist()}
            turns.append((found[0], found[1]))
    others = [other for _, other in turns]
    ratios = np.array([[a / b for a, b in zip(one[:3], other[:3], strict=True)] for one, other in turns])
    return {
        "pace": pace,
        "pairs": pairs,
        "rounds_per_s": float(np.median([other.rounds_per_s for other in others])),
        "round_ms": float(np.median([other.round_s for other in others])) * 1e3,
        "cpu_us": float(np.median([other.cpu_s for other in others])) * 1e6,
        "updates_per_s": float(np.median([one.updates_per_s for one, _ in turns])),
        "view_share": float(np.median([one.view_share for one, _ in turns])),
        **{name: interval(ratios[:, i], rng) for i, name in enumerate(("rounds", "time", "cpu"))},
    }


def interval(values: Any, rng: np.random.Generator) -> list[float]:
    """Median, and its 95 % interval."""
    drawn = np.median(rng.choice(values, (RESAMPLES, len(values))), axis=1)
    return [float(x) for x in (np.median(values), *np.quantile(drawn, [0.025, 0.975]))]


def turn(load: Load, view: Viewer | None, seconds: float) -> Turn:
    """Load one base station for so long, with a viewer where there is one."""
    with looking(view):
        load.begin()
        load.run(WARM_S)
        before_s, shown_s, seen = cpu_s(load.pid), sum(map(cpu_s, load.web)), view.seen.value if view else 0
        rounds, round_s, wall_s = load.run(seconds)
        spent_s, seen = cpu_s(load.pid) - before_s, view.seen.value - seen if view else 0
        shown_s = sum(map(cpu_s, load.web)) - shown_s
        load.rest()
        rounds, round_s = max(1, rounds), round_s or wall_s  # a machine that stood still: medians bear it
        return Turn(rounds / wall_s, round_s, spent_s / rounds, seen / wall_s, shown_s / wall_s)


def cpu_s(pid: int) -> float:
    """CPU time of all threads of a process so far."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def children(pid: int) -> list[int]:
    """Of a base station: its live view, where it has one."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if stat.read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(int(stat.parent.name))
    return found


# ---------------------------------------------------------------- UEs


class Ue:
    """One peer with one session."""

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
        self.socket.send_multipart(encode(message, arrays))

    def receive(self) -> Any:
        message = decode_downlink(self.socket.recv_multipart()).message
        if isinstance(message, Fault):
            raise RuntimeError(message.reason)
        return message

    def begin(self) -> None:
        self.session, self.round, self.ids = self.session + 1, 0, self.prompt.tolist()
        self.send(Open(session=self.session, protocol="greedy", threshold=0.0, hidden_size=8), ids=self.prompt)
        self.receive()
        self.window = self.draft()

    def draft(self) -> list[int]:
        """What the target will say itself."""
        for _ in range(WINDOW):
            self.ids.append(next_token(self.ids, VOCAB, 0))
        window = self.ids[-WINDOW:]
        del self.ids[-WINDOW:]
        return window

    def go(self, now_s: float) -> None:
        self.sent_s = now_s
        draft = Draft(session=self.session, round=self.round, base_len=len(self.ids), draft_s=0.0)
        self.send(draft, ids=np.array(self.window, np.int32))

    def hear(self) -> None:
        """Take a verdict, and draft on."""
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
    """All UEs."""

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
        """Have the UEs draft, at any point of their drafting where they are paced."""
        self._due = []
        for ue in self._ues:
            self._drafting(ue, self._random.random())

    def _drafting(self, ue: Ue, share: float = 1.0) -> None:
        """It is due when it has drafted, or a share of that."""
        lasts_s = share * self._pace_s * self._random.uniform(0.5, 1.5)
        heapq.heappush(self._due, (time.perf_counter() + lasts_s, id(ue), ue))

    def run(self, seconds: float) -> tuple[int, float, float]:
        """Rounds, the mean round's time from window to verdict, and for how long."""
        times_s: list[float] = []
        begun_s = time.perf_counter()
        while (now_s := time.perf_counter()) < begun_s + seconds:
            while self._due and self._due[0][0] <= now_s:
                heapq.heappop(self._due)[2].go(time.perf_counter())
            wait_s = min(self._due[0][0] if self._due else now_s + 1, begun_s + seconds) - now_s
            for socket, _ in self._poller.poll(max(0.0, 1e3 * wait_s)):
                ue = self._by_socket[socket]
                times_s.append(time.perf_counter() - ue.sent_s)
                ue.hear()
                if self._pace_s:
                    self._drafting(ue)
                else:
                    ue.go(time.perf_counter())
        return len(times_s), float(np.mean(times_s or [0.0])), time.perf_counter() - begun_s

    def rest(self) -> None:
        """Wait for all verdicts that are under way."""
        pace_s, self._pace_s = self._pace_s, 1e9
        self._due = [(1e9, number, ue) for _, number, ue in self._due]
        while len(self._due) < UES:
            self.run(0.01)
        self._pace_s = pace_s

    def close(self) -> None:
        for ue in self._ues:
            ue.close()
        self._context.term()


# ---------------------------------------------------------------- a viewer


class Viewer(NamedTuple):
    """A process that looks on when it is told to."""

    pipe: Any
    seen: Any
    """Updates that it has had, in shared memory: asking for them would hold up the UEs."""


@contextlib.contextmanager
def viewer(url: str) -> Iterator[Viewer]:
    """A viewer of that live view."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    seen = context.Value("q", 0, lock=False)
    process = context.Process(target=_view, args=(theirs, seen, urlsplit(url).netloc), daemon=True)
    process.start()
    try:
        yield Viewer(ours, seen)
    finally:
        process.kill()
        process.join(10)


@contextlib.contextmanager
def looking(view: Viewer | None) -> Iterator[None]:
    """A viewer looks on for as long."""
    if view is None:
        yield
        return
    view.pipe.send("look")
    assert view.pipe.poll(30) and view.pipe.recv() == "looking"
    try:
        yield
    finally:
        view.pipe.send("leave")
        assert view.pipe.poll(30) and view.pipe.recv() == "left"


def _view(pipe: Any, seen: Any, netloc: str) -> None:
    while pipe.recv() == "look":
        connection = http.client.HTTPConnection(netloc, timeout=30)
        connection.request("GET", "/events")
        answer = connection.getresponse()
        answer.read1(2**20)
        pipe.send("looking")
        while not pipe.poll():
            seen.value += answer.read1(2**20).count(b"\n\n")
        pipe.recv()
        connection.close()
        pipe.send("left")


if __name__ == "__main__":
    main()
