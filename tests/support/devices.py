"""Discrete-event simulation of many devices and one verifier, for token-speed guarantees of schedulers.

The assumptions are those that reproduce WISP's Table 2 (Qwen3-32B on an A100, Qwen3-4B on the devices): times of
Table 12; 40 ms ± 50 % on the network per round; drafting at 50 tokens/s; prompts U(50, 250), responses U(20, 580);
windows of 5, each token accepted with probability 0.758 up to the first rejection; a predictor that predicts 0.80 of
the accepted, 0.425 of the first rejected and 0.85 of later tokens as accepted, and ends the window before the first
token predicted as rejected; 13 requests per pass; 52k tokens of KV cache with LRU eviction of sessions. Devices decode
one response after the other. A response is a violation if it is slower than its class.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from testbed.bs.engines.base import VerifyRequest
from testbed.bs.pending import Pending
from testbed.bs.scheduling.base import Scheduler
from testbed.optim.pass_time import Coefficients, RequestWork

A100 = Coefficients(a=3.314e-5, b_compute=3.450e-8, b_read=4.620e-6, c=1.486e-2)
CAP = 13
WINDOW = 5
ALPHA, TPR, FPR, AFTER = 0.758, 0.80, 0.425, 0.85
TOKEN_S, NETWORK_S = 0.02, 0.04
KV_TOKENS = 52_000


@dataclass
class Device:
    """One UE, and the response that it decodes."""

    name: str
    speed_tps: float
    length: int = 0
    """Committed tokens, prompt included."""
    left: int = 0
    got: int = 0
    began_s: float = 0.0
    round_s: float = 0.0
    """When the round began."""
    responses: int = 0
    accepted: int = 0
    """Accepted tokens of the current window."""
    verdicts: list[tuple[float, bool]] = field(default_factory=list)
    """End of each response, and whether it was too slow."""


class Verifier:
    """The verifier's KV cache, by session."""

    def __init__(self, room: int) -> None:
        self.room, self.held, self.total = room, OrderedDict[str, int](), 0

    def touch(self, name: str, length: int) -> None:
        """Cache a session's tokens, and evict the least recently used sessions if needed."""
        self.drop(name)
        self.held[name] = length
        self.total += length
        while self.total > self.room and len(self.held) > 1:
            self.total -= self.held.popitem(last=False)[1]

    def drop(self, name: str) -> None:
        """Forget a session."""
        self.total -= self.held.pop(name, 0)


class Simulation:
    """N devices and one verifier.

    Args:
        predictor: whether windows end early; else they are all full.
        banked: whether the scheduler knows how far each response is ahead of its class's speed.
        spread_s: time span within which devices begin.
    """

    def __init__(
        self,
        speeds: Sequence[float],
        scheduler: Scheduler,
        *,
        seed: int = 0,
        predictor: bool = True,
        kv_tokens: int = KV_TOKENS,
        banked: bool = False,
        spread_s: float = 5.0,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._scheduler, self._predictor, self._banked = scheduler, predictor, banked
        self._cache = Verifier(kv_tokens)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0
        self.pending: dict[str, Pending] = {}
        self._waiting: dict[str, tuple[Device, float]] = {}
        self._busy = False
        self.devices = [Device(str(i), speed) for i, speed in enumerate(speeds)]
        self.passes = self.rounds = 0
        for device in self.devices:
            self._at(float(self._rng.uniform(0, spread_s)), lambda t, d=device: self._open(d, t))

    def run(self, until_s: float) -> None:
        """Run the simulation until a time."""
        while self._events and self._events[0][0] <= until_s:
            now_s, _, event = heapq.heappop(self._events)
            event(now_s)
        self.now_s = until_s

    def violations(self, after_s: float) -> dict[float, float]:
        """Share of responses of each class that were too slow, or are behind their class at the end."""
        seen: dict[float, list[bool]] = {}
        for device in self.devices:
            ends = [slow for at_s, slow in device.verdicts if at_s >= after_s]
            spent_s = self.now_s - device.began_s
            if device.got / spent_s < device.speed_tps and spent_s > after_s:
                ends.append(True)
            seen.setdefault(device.speed_tps, []).extend(ends)
        return {speed: float(np.mean(ends)) if ends else 0.0 for speed, ends in sorted(seen.items())}

    def _at(self, at_s: float, event: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, event))

    def _open(self, device: Device, now_s: float) -> None:
        device.length = int(self._rng.integers(50, 251))
        device.left = int(self._rng.integers(20, 581))
        device.got, device.began_s = 0, now_s
        device.responses += 1
        self._draft(device, now_s)

    def _draft(self, device: Device, now_s: float) -> None:
        device.round_s = now_s
        drafted = sent = accepted = 0
        alive = True
        dice = self._rng.random(2 * WINDOW).tolist()
        while drafted < WINDOW:
            drafted += 1
            was = alive
            alive = alive and dice[2 * drafted - 2] < ALPHA
            chance = TPR if alive else FPR if was else AFTER
            if self._predictor and dice[2 * drafted - 1] >= chance:
                break
            sent += 1
            accepted += alive
        device.accepted = accepted
        draft_s = drafted * TOKEN_S
        network_s = NETWORK_S * float(self._rng.uniform(0.5, 1.5))
        self._at(now_s + draft_s + network_s / 2, lambda t: self._arrive(device, t, sent, draft_s, network_s))

    def _arrive(self, device: Device, now_s: float, sent: int, draft_s: float, network_s: float) -> None:
        name = f"{device.name}/{device.responses}"
        request = VerifyRequest(name, np.zeros(device.length, np.int32), np.zeros(sent, np.int32))
        computed = self._cache.held.get(name, 0)
        ahead_s = device.got / device.speed_tps - (device.round_s - device.began_s) if self._banked else 0.0
        self.pending[name] = Pending(request, now_s, computed, device.speed_tps, draft_s, network_s, ahead_s)
        self._waiting[name] = (device, network_s)
        if not self._busy:
            self._pass(now_s)

    def _pass(self, now_s: float) -> None:
        batch = self._scheduler.plan(list(self.pending.values()), now_s)
        if not batch:
            self._busy = False
            return
        self._busy = True
        self.passes += 1
        self.rounds += len(batch)
        for item in batch:
            del self.pending[item.request.session]
        took_s = A100.batch_s([self._work(p) for p in batch])
        self._at(now_s + took_s, lambda t: self._done(batch, t))

    def _work(self, item: Pending) -> RequestWork:
        cached = min(self._cache.held.get(item.request.session, 0), len(item.request.prefix) - 1)
        return RequestWork(len(item.request.prefix) + len(item.request.draft) - cached, cached)

    def _done(self, batch: Sequence[Pending], now_s: float) -> None:
        for item in batch:
            name = item.request.session
            device, network_s = self._waiting.pop(name)
            self._cache.touch(name, device.length)
            self._at(now_s + network_s / 2, lambda t, d=device: self._verdict(d, t))
        if self.pending:
            self._pass(now_s)
        else:
            self._busy = False

    def _verdict(self, device: Device, now_s: float) -> None:
        gain = min(device.accepted + 1, device.left)
        device.left -= gain
        device.got += gain
        device.length += gain
        if device.left > 0:
            self._draft(device, now_s)
            return
        self._cache.drop(f"{device.name}/{device.responses}")
        device.verdicts.append((now_s, device.got / (now_s - device.began_s) < device.speed_tps))
        self._open(device, now_s)
