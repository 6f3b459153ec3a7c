"""The batch of one plan of `Slo`: FEASIBLEADD of WISP's Algorithm 1, request by request."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from testbed.bs.pending import PIECE, Pending
from testbed.bs.scheduling.slo_rules import REPAIRED, UNHURRIED, BegunPrompts, Places, Rules
from testbed.optim.pass_time import Coefficients

REST = 0.25
"""Share of a pass that prompts with a hurried guarantee leave to the first requests of other UEs, at most; and time of
requests without a guarantee beside late ones with a guarantee, relative to theirs: a fifth of the pass."""
Others = Callable[[bytes], bool]
"""Whether UEs other than one have rounds."""


@dataclass(frozen=True, kw_only=True)
class PassBounds:
    """What a pass may hold, and how it is filled."""

    coefficients: Coefficients
    rules: Rules = REPAIRED
    max_requests: int = 256
    max_tokens: int = 8192
    """New tokens of one pass; a single larger request is still taken, alone."""
    kv_tokens: int | None = None
    """Tokens whose keys and values one pass may need, M(t); a single larger request is still taken. None: any."""
    max_sessions: int | None = None
    """Sessions whose keys and values the engine holds. None: any number."""
    running: Sequence[Pending] = ()
    """What the engine has not finished."""
    protect: bool = True
    """Whether a pass stays small enough for the deadlines in it that can be met. False: it is filled to its bounds and
    may miss deadlines: if pass time is scarce, small passes cost others more than they save."""
    patience_s: float = 1.0
    """Least τ of a request without a guarantee; `Pending.turn_s` keeps them to the time that guarantees leave."""
    spare_s: float = math.inf
    """Longest pass that a request without a guarantee may join. `Slo.learn` sets it."""
    hold_s: float | None = None
    """Longest pass that an uncached prompt may cause; longer prompts are computed in pieces, so that requests that
    arrive during the pass wait less. None: prompts are never cut."""
    own_tokens: int | None = None
    """Largest sum of `Pending.weight` that one UE's requests have in a pass while other UEs have rounds, guaranteed or
    not: a low guaranteed speed binds nobody to slow rounds. The first request is always taken; of a prompt, a piece of
    this many new tokens is. None: no bound."""


class TimedRequest(NamedTuple):
    """A pending request as the scheduler sees it at one moment."""

    pending: Pending
    session: str
    deadline_s: float
    """d = arrival + τ (eq. 12)."""
    lst_s: float
    """Latest start time d − T̂({i}): eq. 17 without δ, which is the same for all."""
    utility: float
    """Expected tokens per second of pass time (eq. 16), by the time that the request adds to a pass, times their
    worth."""
    late: bool
    """Whether its deadline can no longer be met, even alone and now."""
    share_s: float
    """T̂(B ∪ {i}) − T̂(B)."""
    new: int
    """Tokens to compute."""
    cached: int
    """Tokens whose keys and values are read."""

    @property
    def kv(self) -> int:
        """Tokens whose keys and values are needed."""
        return self.cached + self.new


class Batch:
    """Requests of one pass; T̂ grows by the share of each, and begins with that of what the engine has not finished.

    The engine keeps half of a pass for the pieces that it has, so that small rounds have the other half beside them,
    and further pieces what is left.

    Args:
        how: the scheduler's bounds.
        line: all requests, in the order in which they are taken.
        critical_s: see `Queues`.
        others: whether UEs other than one have rounds.
    """

    def __init__(
        self, how: PassBounds, line: Sequence[TimedRequest], now_s: float, critical_s: float, others: Others
    ) -> None:
        self._how, self._times, self._others = how, how.coefficients, others
        self._now_s, self._critical_s = now_s, critical_s
        self._blocks = how.rules.late == "stop"
        self._batch, self._full = list[Pending](), False
        self._used, self._used_s = Counter[bytes](), defaultdict[bytes, float](float)
        self._unfinished = sum(item.new_tokens for item in how.running)
        most = how.max_requests if how.max_sessions is None else min(how.max_requests, how.max_sessions)
        self._most = most - len(how.running)
        self._tokens, self._kv = how.max_tokens, math.inf if how.kv_tokens is None else how.kv_tokens
        self._late_s = self._free_s = 0.0
        """Time of requests with a guarantee that can no longer meet their deadlines, and of those without one, or with
        one that leaves them much time."""
        self._took_s, self._due_s = self._times.c + _share_s(how.running, how.max_tokens, self._times), math.inf
        self._line = self._begun(line)
        longest_s = min(how.spare_s, math.inf if how.hold_s is None else how.hold_s)
        piece_s = self._times.share_s(PIECE, max((entry.cached for entry in self._line), default=0))
        times = [(entry.pending.ue, entry.share_s) for entry in self._line]
        self._times_left = Places(times, longest_s - self._took_s, piece_s)
        tokens = [(entry.pending.ue, float(entry.new)) for entry in self._line]
        self._tokens_left = Places(tokens, self._tokens - self._unfinished, PIECE)

    def _begun(self, line: Sequence[TimedRequest]) -> list[TimedRequest]:
        """The line without prompts that cannot begin yet; with a hurried guarantee the first of a UE always can."""
        how, prompts = self._how, [entry for entry in line if self._cuttable(entry)]
        known = [*how.running, *(entry.pending for entry in prompts if entry.cached)]
        begun = BegunPrompts(((item.ue, len(item.request.prefix)) for item in known), how.max_sessions, how.kv_tokens)
        waits = set[str]()
        for entry in prompts:
            ue, length = entry.pending.ue, len(entry.pending.request.prefix)
            if entry.cached:
                continue
            if (not self._free(entry) and not begun.of(ue)) or begun.room(ue, length):
                begun.take(ue, length)
            else:
                waits.add(entry.session)
        return [entry for entry in line if entry.session not in waits]

    def filled(self) -> list[Pending]:
        """The requests of the line that join the pass, or pieces of them."""
        for entry in self._line:
            if self._full or len(self._batch) >= self._most:
                break
            self._add(entry)
        return self._batch

    def _add(self, entry: TimedRequest) -> None:
        """Take a request, a piece of it, or nothing."""
        ue, prompt = entry.pending.ue, self._cuttable(entry)
        free = self._free(entry)
        own = self._own(entry) if self._others(ue) else math.inf
        if own < entry.new and not prompt:
            return
        room_s = self._own_s(entry)
        if free and self._batch:
            room_s = self._times_left.room(ue, self._left_s(self._how.spare_s))
        if prompt:
            self._add_prompt(entry, own, min(room_s, self._prompt_s(entry, free)))
        elif self._fits(entry, own, room_s) or not (self._batch or self._blocks):
            self._take(entry, self._tightest_s(entry))
        else:
            self._full = not self._how.rules.filling

    def _add_prompt(self, entry: TimedRequest, own: float, room_s: float) -> None:
        """Take a prompt, or the piece of it for which there are time and tokens; the first of a pass has one."""
        if self._fits(entry, own, room_s):
            self._take(entry, self._tightest_s(entry))
            return
        in_time = self._tokens_in(entry, min(room_s, self._due_s - self._now_s - self._took_s))
        most = min(in_time, self._room(entry), self._kv - entry.cached)
        least = 0 if self._batch or self._how.running else PIECE
        cut = _piece(entry, min(own, max(most, least)), self._times)
        if cut is not None:
            self._take(cut, self._due_s)

    def _fits(self, entry: TimedRequest, own: float, room_s: float) -> bool:
        """Whether the whole request has room, and delays no other beyond its deadline."""
        return (
            entry.new <= min(own, self._room(entry))
            and entry.kv <= self._kv
            and self._now_s + (self._took_s + entry.share_s) <= self._tightest_s(entry)
            and entry.share_s <= room_s
        )

    def _room(self, entry: TimedRequest) -> float:
        """New tokens for a request; prompts leave some to the first one of other UEs."""
        if not self._cuttable(entry):
            return self._tokens - min(self._unfinished, self._how.max_tokens // 2)
        left = self._tokens - self._unfinished
        room = self._tokens_left.room(entry.pending.ue, left)
        return room if self._free(entry) else max(room, left - REST * self._how.max_tokens)

    def _take(self, entry: TimedRequest, due_s: float) -> None:
        item = entry.pending
        self._batch.append(item)
        self._times_left.take(item.ue)
        self._tokens_left.take(item.ue)
        self._used[item.ue] = (self._used[item.ue] or item.running_tokens) + item.weight
        self._used_s[item.ue] += entry.share_s
        self._tokens, self._kv = self._tokens - entry.new, self._kv - entry.kv
        self._took_s, self._due_s = self._took_s + entry.share_s, due_s
        if item.speed_tps is not None and entry.late:
            self._late_s += entry.share_s
        elif self._free(entry):
            self._free_s += entry.share_s

    def _left_s(self, longest_s: float) -> float:
        """Time for requests without a guarantee in a pass of at most `longest_s`; beside late ones with a guarantee,
        which no deadline bounds, at least a share of theirs.
        """
        return max(longest_s - self._took_s, REST * self._late_s - self._free_s)

    def _tightest_s(self, entry: TimedRequest) -> float:
        """The earliest deadline of the pass with this request; a late one has none but under the printed rule."""
        exempt = not self._how.protect or (entry.late and not self._blocks)
        return self._due_s if exempt else min(self._due_s, entry.deadline_s)

    def _free(self, entry: TimedRequest) -> bool:
        """Whether it has no guarantee, or its guarantee leaves it much time."""
        unhurried_s = max(self._critical_s, self._now_s + UNHURRIED * self._how.patience_s)
        return entry.pending.speed_tps is None or entry.lst_s > unhurried_s

    def _own(self, entry: TimedRequest) -> float:
        """New tokens of a request that its UE's share leaves room for; infinite for the first one, unless it is a
        prompt that can be cut.
        """
        item, most = entry.pending, self._how.own_tokens
        if most is None:
            return math.inf
        before = self._used[item.ue] or item.running_tokens
        if before:
            return most - before - (item.weight - item.new_tokens)
        return max(most, PIECE) if self._cuttable(entry) else math.inf

    def _own_s(self, entry: TimedRequest) -> float:
        """Time of a request with a guarantee that its UE's share leaves room for; infinite for the first one. However
        low its guarantees, a UE whose sessions go on faster than they need, or ask at the same moment, would have
        passes last as long as the deadlines in them allow, so that rounds which arrive meanwhile are late.
        """
        ue = entry.pending.ue
        bound = ue in self._used and self._others(ue)
        return self._how.spare_s - self._used_s[ue] if bound else math.inf

    def _prompt_s(self, entry: TimedRequest, free: bool) -> float:
        """Time for a prompt; with a guarantee, a critical one that is the first of its UE has a piece where a pass of
        `hold_s` has none beside another one.
        """
        assert self._how.hold_s is not None
        ue, hold_s, least_s = entry.pending.ue, self._how.hold_s, 0.0
        if ue not in self._used and entry.lst_s <= self._critical_s:
            piece_s = self._times.share_s(PIECE + 1, entry.cached)
            least_s = piece_s if hold_s - self._times.c < 2 * piece_s else 0.0
        left_s = self._left_s(hold_s) if free else hold_s - self._took_s
        room_s = self._times_left.room(ue, left_s)
        return room_s if free else max(room_s, left_s - REST * hold_s, least_s)

    def _cuttable(self, entry: TimedRequest) -> bool:
        return self._how.hold_s is not None and entry.new - len(entry.pending.request.draft) > PIECE

    def _tokens_in(self, entry: TimedRequest, spare_s: float) -> float:
        """New tokens of a prefix that a pass computes in `spare_s`: the root of `share_s`."""
        times = self._times
        linear, left_s = times.a + times.b_compute * entry.cached, spare_s - times.b_read * entry.cached
        if left_s <= 0:
            return 0.0
        if times.b_compute == 0:
            return left_s / linear if linear > 0 else math.inf
        return 2 * left_s / (linear + math.sqrt(linear**2 + 4 * times.b_compute * left_s))


def _piece(entry: TimedRequest, most: float, times: Coefficients) -> TimedRequest | None:
    """The entry with a piece of its prefix instead; None: no piece ends within `most` tokens."""
    end = entry.pending.ends(int(min(most, entry.new)))
    if not end:
        return None
    new = end - entry.cached
    return entry._replace(pending=entry.pending.piece(end), share_s=times.share_s(new, entry.cached), new=new)


def _share_s(running: Sequence[Pending], most: int, times: Coefficients) -> float:
    """T̂ without c of what the next pass computes of these requests, in their order: `most` new tokens."""
    took_s, left = 0.0, most
    for item in running:
        new = min(item.new_tokens, left)
        took_s, left = took_s + times.share_s(new, item.cached_tokens), left - new
        if not left:
            break
    return took_s
