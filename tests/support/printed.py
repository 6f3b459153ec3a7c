"""WISP's Algorithm 1 as printed, with its errors, to show the effect of the corrections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.bs.pending import Pending
from testbed.optim.pass_time import Coefficients, RequestWork


@dataclass(frozen=True)
class Printed:
    """Line by line, with eq. 6 as printed (no token of the verifier's own), and all T̂ computed anew.

    `late_last` takes requests that can no longer be met out of the order and behind all others, where they bound
    nothing, and passes over what does not fit.
    """

    coefficients: Coefficients
    cap: int
    alpha: float
    guard_s: float
    late_last: bool = False

    def plan(self, pending: Sequence[Pending], now_s: float) -> list[Pending]:
        """The batch; empty if the first critical request cannot meet its deadline."""
        due_s = {id(p): p.arrived_s + self._tau_s(p) for p in pending}
        alone_s = {id(p): self._took_s([p]) for p in pending}
        late = {id(p) for p in pending if now_s + alone_s[id(p)] > due_s[id(p)]}
        critical = [p for p in pending if now_s >= due_s[id(p)] - alone_s[id(p)] - self.guard_s]
        others = [p for p in pending if p not in critical]
        critical.sort(key=lambda p: due_s[id(p)])
        others.sort(key=lambda p: -self.alpha * len(p.request.draft) / (alone_s[id(p)] - self.coefficients.c))
        line = critical + others
        if self.late_last:
            line = [p for p in line if id(p) not in late] + [p for p in line if id(p) in late]
        batch: list[Pending] = []
        for item in line:
            grown = [*batch, item]
            bounds = [due_s[id(p)] for p in grown if not (self.late_last and id(p) in late)]
            if now_s + self._took_s(grown) <= min(bounds, default=1e9):
                batch = grown
            elif not self.late_last:
                break
            if len(batch) == self.cap:
                break
        return batch

    def _tau_s(self, item: Pending) -> float:
        assert item.speed_tps is not None
        return self.alpha * len(item.request.draft) / item.speed_tps - item.draft_s - item.network_s

    def _took_s(self, batch: Sequence[Pending]) -> float:
        return self.coefficients.batch_s([RequestWork(p.new_tokens, p.cached_tokens) for p in batch])
