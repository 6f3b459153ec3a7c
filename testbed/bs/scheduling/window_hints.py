"""Draft-window hints: a controller per UE, fed with the UE's rounds, the BS's pass times and the load.

The UE's costs come from its own rounds: drafting time (`Draft.draft_s`), the link (`Draft.network_s` and the channel
state) and the acceptance rate. The BS's costs are WISP's eq. 19 at its mean round, with the estimator's coefficients;
the load is the number of tokens committed per second, of each UE about as many per round as of another one at most,
since the model takes all UEs for alike.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from testbed.bs.pending import Round
from testbed.bs.scheduling.averages import LargestMeans, Mean, Rate, TypicalMean
from testbed.bs.scheduling.hints import Hint
from testbed.bs.sessions import Session
from testbed.channel.cost import Sizes
from testbed.channel.csi import Csi
from testbed.errors import BadInput
from testbed.optim.draft_window.controller import WindowConfig, WindowController
from testbed.optim.draft_window.cost import LinkCosts, Price, RoundCosts
from testbed.optim.pass_time import NO_OVERHEAD, Coefficients, PassOverhead

LOAD_S = 5.0
"""Time after which committed tokens count 1/e of new ones in the load."""
COUNTED = 8.0
"""Mean tokens per round that count in the load in any case: those of large windows at high acceptance rates."""
UE_MEMORY = 32.0
"""The same for the means of one UE."""
MOST_UES = 4096
"""Controllers kept; the least recently used one is dropped first."""
MOST_OF_UE = 64
"""The same for one UE, whatever identities and largest windows it gives: it cannot push out those of idle UEs."""
SHARED_TOKENS = 64.0
"""Weight of the typical acceptance rate in the estimate of each UE, in drafted tokens of its own."""
MEASURED = 4
"""Measured drafting times required before a UE's speculation may be turned off: afterwards none come in."""
MOST_DRAFT_S = 1.0
"""Drafting time per token that counts at most in the mean over all UEs, from which a new one starts."""
LEARNT_AT_ONCE = 8
"""Rounds to learn from before other tasks of the event loop run: 1 to 2 ms, or 3 with windows of 256."""
ON = "on"
"""A controller with the default configuration."""


def window_config(text: str) -> WindowConfig:
    """A controller's configuration: `on`, or some of its fields, such as `max_window=8,least_window=1`.

    Raises:
        BadInput: an unknown field, or a value out of range.
    """
    given: dict[str, str] = {}
    for part in [] if text == ON else text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in WindowConfig.__struct_fields__:
            known = ", ".join(WindowConfig.__struct_fields__)
            raise BadInput(f"a window controller is `{ON}` or FIELD=VALUE,…, not {text!r}; fields: {known}")
        given[name] = value
    try:
        return msgspec.convert(given, WindowConfig, strict=False)
    except msgspec.ValidationError as exc:
        cause = exc.__cause__
        raise BadInput(str(cause if isinstance(cause, BadInput) else exc)) from exc


class LoadShape:
    """Typical rounds and responses: medians over the UEs of their means."""

    def __init__(self) -> None:
        self.cached, self.extra = TypicalMean(), TypicalMean()
        """Tokens of a round found in the prefix cache, and computed in addition to its window and one."""
        self.prompt, self.response = TypicalMean(), TypicalMean()
        self.draft_s = TypicalMean(RoundCosts().draft_s)
        """Drafting time per token."""
        self.committed = LargestMeans()
        """Tokens per round."""

    def costs(
        self, coefficients: Coefficients, draft_s: float, max_requests: float, overhead: PassOverhead = NO_OVERHEAD
    ) -> RoundCosts:
        """Costs of a UE's rounds: eq. 19 at the mean round, and the overhead between passes."""
        extra, cached = self.extra.value, self.cached.value
        token_s = coefficients.a + coefficients.b_compute * (cached + extra)
        return RoundCosts(
            draft_s=draft_s,
            verify_base_s=coefficients.c + overhead.pass_s,
            verify_token_s=max(token_s, 1e-12),
            verify_request_s=coefficients.b_read * cached + token_s * extra + overhead.request_s,
            prefill_s=coefficients.share_s(round(self.prompt.value), 0) if self.prompt.value else 0.0,
            response_tokens=self.response.value,
            max_requests=max_requests,
        )


class _Costs:
    """Implements `TokenCost`: the latest costs that the BS has learnt."""

    def __init__(self, costs: RoundCosts) -> None:
        self.now = costs

    def price(self, window: int, alpha: float, load: float, link: LinkCosts) -> Price:
        """The price at the latest costs."""
        return self.now.price(window, alpha, load, link)


class _UeHints:
    """Controller of one UE, and the means of its rounds."""

    def __init__(self, controller: WindowController, costs: _Costs, shape: LoadShape) -> None:
        self.controller, self.costs = controller, costs
        self.draft_s = Mean(UE_MEMORY, shape.draft_s.value)
        self.linked = False
        self.measured = 0
        """Windows with a measured drafting time."""
        self.drafted = 0
        """Tokens of its last window, whose link time comes with the next draft."""

    @property
    def window(self) -> int:
        """The next hint."""
        window = self.controller.window
        return 1 if not window and self.measured < MEASURED else window


class _Seen(NamedTuple):
    """A round to learn from."""

    session: Session
    round_: Round
    accepted: int
    first: bool
    """Whether it is the first of its session."""
    now_s: float


class Windows:
    """Hints for all sessions that ask for them.

    Args:
        coefficients: current estimate of pass times.
        max_requests: requests of one pass.
        vocab_size: vocabulary of the target, for the size of distributions on the link.
        owner: the UE that a peer belongs to.
    """

    def __init__(
        self,
        config: WindowConfig,
        coefficients: Callable[[], Coefficients],
        max_requests: float = math.inf,
        vocab_size: int = 0,
        owner: Callable[[bytes], bytes] = lambda peer: peer,
    ) -> None:
        self._owner = owner
        self._config, self._coefficients, self._max_requests = config, coefficients, max_requests
        self._vocab_size = vocab_size
        self._ues: OrderedDict[tuple[bytes, int, int], _UeHints] = OrderedDict()
        self._switches = 0
        """Changes of windows by controllers that were dropped."""
        self._shape = LoadShape()
        self._rate, self._load_tps = Rate(LOAD_S), 0.0
        self._alpha = TypicalMean(config.alpha)
        self._given: Counter[int] = Counter()
        self._later: deque[_Seen] = deque()

    def hint(self, session: Session, round_: Round, accepted: int, now_s: float) -> Hint:
        """The hint for a session's next round, after one was committed; `learn` takes that one into account later."""
        self._later.append(_Seen(session, round_, accepted, session.got <= accepted + 1, now_s))
        if not session.hinted:
            return Hint()
        window = self._ue(session).window
        self._given[window] += 1
        return Hint(window)

    def threshold(self, session: Session) -> float:
        """See `WindowHints.threshold`: as requested."""
        return session.threshold

    def learn(self, overhead: PassOverhead = NO_OVERHEAD) -> bool:
        """Learn from the first `LEARNT_AT_ONCE` rounds of those that came, preferably while the engine computes.

        Args:
            overhead: time between consecutive passes.

        Returns:
            Whether there are further rounds to learn from.
        """
        for _ in range(min(LEARNT_AT_ONCE, len(self._later))):
            self._learn(*self._later.popleft(), overhead)  # it is dropped before it can fail: the next call goes on
        return bool(self._later)

    def _learn(
        self, session: Session, round_: Round, accepted: int, first: bool, now_s: float, overhead: PassOverhead
    ) -> None:
        drafted = len(round_.window.ids)
        owner, tried = self._owner(session.key[0]), accepted + (accepted < drafted)
        self._load_tps = self._rate.add(self._counted(owner, accepted + 1), now_s)
        self._learn_shape(owner, round_, drafted, first)
        if tried:
            self._alpha.add(owner, accepted / tried, tried)
        if not session.hinted:
            return
        ue = self._ue(session)
        if first:
            ue.controller.resume(self._load_tps)
        link = self._learn_ue(ue, session, round_, drafted, first)
        if ue.controller.due:
            ue.costs.now = self._shape.costs(self._coefficients(), ue.draft_s.value, self._max_requests, overhead)
        ue.controller.believe(self._alpha.value, SHARED_TOKENS if self._alpha.ues > 1 else 0.0)
        ue.controller.update(drafted, accepted, self._load_tps, link)

    def ended(self, session: Session) -> None:
        """Record the end of a session, whose committed tokens are a response or the rest of one."""
        if session.got:
            self._shape.response.add(self._owner(session.key[0]), session.got)

    def snapshot(self) -> dict[str, Any]:
        """Number of hints by window, changes of windows, and the estimates shared by all UEs."""
        return {
            "hints": {str(window): count for window, count in sorted(self._given.items())},
            "window_switches": self._switches + sum(ue.controller.switches for ue in self._ues.values()),
            "load_tps": self._load_tps,
            "acceptance": self._alpha.value,
        }

    def _counted(self, owner: bytes, committed: int) -> float:
        """Tokens of a round that count in the load: a UE that knows the target's output commits hundreds per round."""
        mean, others = self._shape.committed.add(owner, committed)
        most = max(COUNTED, others)
        return min(4 * most, committed * min(1.0, most / mean))

    def _learn_shape(self, owner: bytes, round_: Round, drafted: int, first: bool) -> None:
        shape = self._shape
        if first:
            shape.prompt.add(owner, max(0, round_.new + round_.cached - drafted))
            return
        shape.cached.add(owner, round_.cached)
        shape.extra.add(owner, max(0, round_.new - drafted - 1))
        if drafted:
            shape.draft_s.add(owner, min(MOST_DRAFT_S, round_.token_s), drafted)

    def _learn_ue(self, ue: _UeHints, session: Session, round_: Round, drafted: int, first: bool) -> LinkCosts | None:
        """Learn drafting time and link of a UE; the link time in a draft is that of the round before."""
        if not drafted:
            return None
        if not first:
            ue.draft_s.add(round_.token_s, drafted)
            ue.measured += 1
        before, ue.drafted = ue.drafted, drafted
        token_s = _token_s(session, round_.csi, self._vocab_size)
        if round_.network_s > 0 and before:
            rtt_s = max(0.0, round_.network_s - before * token_s)
        elif round_.csi is not None and not ue.linked:
            rtt_s = round_.csi.rtt_ms / 1e3
        else:
            return None
        ue.linked = True
        return LinkCosts(rtt_s, token_s)

    def _ue(self, session: Session) -> _UeHints:
        """The hints of this session's peer, created on first use."""
        stays = int(session.protocol is not None and session.protocol.replaces)
        least = max(self._config.least_window, stays)
        most = max(1, least, min(self._config.max_window, session.hinted))
        key = (session.key[0], most, least)
        found = self._ues.get(key)
        if found is None:
            self._make_room(self._owner(session.key[0]))
            config = msgspec.structs.replace(
                self._config, max_window=most, least_window=min(least, most), alpha=self._alpha.value
            )
            costs = _Costs(self._shape.costs(self._coefficients(), self._shape.draft_s.value, self._max_requests))
            controller = WindowController(costs, load=self._load_tps, config=config)
            found = self._ues[key] = _UeHints(controller, costs, self._shape)
        self._ues.move_to_end(key)
        return found

    def _make_room(self, owner: bytes) -> None:
        """Drop the least recently used controller of this UE, or of all, where there are too many for another one."""
        own = [key for key in self._ues if self._owner(key[0]) == owner]
        if len(own) >= MOST_OF_UE:
            self._switches += self._ues.pop(own[0]).controller.switches
        elif len(self._ues) >= MOST_UES:
            self._switches += self._ues.popitem(last=False)[1].controller.switches


def _token_s(session: Session, csi: Csi | None, vocab_size: int) -> float:
    """Link time of another drafted token, if the rate is known (WISV, eq. 6)."""
    if csi is None or session.protocol is None:
        return 0.0
    sizes = Sizes(
        session.drafter_hidden, hidden_bits=session.hidden_bits, vocab_size=vocab_size,
        q_top=session.sampling.q_top, q_bits=session.sampling.q_bits,
    )  # fmt: skip
    bits = session.protocol.payload(2, 0, sizes).uplink_bits - session.protocol.payload(1, 0, sizes).uplink_bits
    return float(bits) / (csi.uplink_mbps * 1e6 * (1 - csi.per_up))
