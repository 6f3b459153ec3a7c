"""A UE's run: prompts by methods, in an order shuffled by the seed, warm-up left out, held against the target."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from testbed.channel.cost import NO_OVERHEADS, Overheads, Sizes
from testbed.errors import BadInput
from testbed.protocols import PROTOCOLS, TARGET_ONLY, protocol
from testbed.protocols.adaptive import ByLatency, Choice, by_rtt
from testbed.protocols.methods import AUTO, COLOCATED, run_method
from testbed.protocols.quantise import FULL_BITS, quantised
from testbed.protocols.sampling import GREEDY, Sampling, request_seed
from testbed.ue.channel_state import ChannelState, UnknownChannel
from testbed.ue.client import Client
from testbed.ue.drafters.base import Drafter
from testbed.ue.gate import Divergence, compare
from testbed.ue.pace import REAL_TIME, Pace
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.session import DecodingSession, Progress
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.base import WindowPolicy

HANDSHAKES = 3
"""RTT handshakes before a request under `auto`; the shortest counts."""


def check_speed(speed_tps: float | None, accept_slower: bool) -> None:
    """Refuse a promise that nobody can ask for.

    Raises:
        BadInput: a speed that is not positive, or none where a slower one is welcome.
    """
    if speed_tps is not None and not 0 < speed_tps < math.inf:
        raise BadInput(f"a speed is a positive number of tokens a second, not {speed_tps:g}")
    if speed_tps is None and accept_slower:
        raise BadInput("slower than what? give --speed-tps with --accept-slower")


def sampling_for(methods: Sequence[str], temperature: float | None, top_k: int, top_p: float) -> Sampling:
    """How the methods that sample draw tokens; without a temperature, at 1 where there are such, else greedily.

    Raises:
        BadInput: a value out of its range.
    """
    if temperature is None:
        temperature = 1.0 if any(m in PROTOCOLS and PROTOCOLS[m].sampled for m in methods) else 0.0
    return Sampling(temperature, top_k, top_p)


class Clients(NamedTuple):
    """Connections to the BS: over the link, and beside it for `colocated`."""

    link: Client
    local: Client


class Job(msgspec.Struct, frozen=True):
    """One prompt under one method."""

    method: str
    request: int
    """Index of the prompt."""


class Outcome(msgspec.Struct, frozen=True):
    """A finished job."""

    method: str
    request: int
    record: RequestRecord
    lossless: bool | None = None
    """Equal to the target's own output; None where it was not checked."""
    divergence: Divergence | None = None


@dataclass(frozen=True)
class Setting:
    """What all requests of a run share.

    Attributes:
        tolerance: largest logit gap that counts as a tie (0 in float32).
        rule: how `auto` chooses, one of `adaptive.RULES`.
        sampling: how rejection, split and target-only draw tokens; the other methods are greedy.
        seed: of what they draw.
        hidden_bits: bits of an element at which hidden states go up.
        sizes: of the payloads by which `auto` reckons; None: those that this drafter's take.
        overheads: fixed bits of every message, beside them.
        speed_tps: tokens a second that the BS is to promise every request; None: no promise.
        accept_slower: whether to take what it can promise where it cannot promise that.

    Raises:
        BadInput: see `check_speed`.
    """

    clients: Clients
    drafter: Drafter
    policy: WindowPolicy
    threshold: float = 0.0
    tolerance: float = 0.0
    state: ChannelState = field(default_factory=UnknownChannel)
    pace: Pace = REAL_TIME
    rule: str = "rtt"
    sampling: Sampling = GREEDY
    seed: int = 0
    hidden_bits: int = FULL_BITS
    sizes: Sizes | None = None
    overheads: Overheads = NO_OVERHEADS
    speed_tps: float | None = None
    accept_slower: bool = False

    def __post_init__(self) -> None:
        check_speed(self.speed_tps, self.accept_slower)


class JobRunner:
    """Runs jobs one after another and keeps what the gate and `auto` need."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._policies: dict[str, WindowPolicy] = {}
        sizes = quantised(setting.sizes or Sizes(setting.drafter.hidden_size), setting.hidden_bits)
        self._by_latency = ByLatency(setting.policy.max_window, sizes, setting.overheads)

    async def decode(
        self,
        method: str,
        prompt: Sequence[int],
        max_tokens: int,
        end_ids: Sequence[int],
        progress: Progress | None = None,
        request: int = 0,
    ) -> RequestRecord:
        """Decode one prompt by one method; what is drawn depends on `request`, the prompt's index."""
        link = self._setting.clients.link
        seed = request_seed(self._setting.seed, method, request)
        if method == TARGET_ONLY:
            how = (self._setting.sampling, seed, self._setting.speed_tps, self._setting.accept_slower)
            return await decode_remotely(link, prompt, max_tokens, end_ids, progress, *how)
        if method == COLOCATED:
            return await self._colocated(prompt, max_tokens, end_ids, progress)
        session = await self.session(method, self._setting.sampling, seed)

        def ended(record: RoundRecord) -> None:
            self.observe(record)
            if progress:
                progress(record)

        return await session.decode(prompt, max_tokens, end_ids, ended)

    async def session(self, method: str, sampling: Sampling, seed: int) -> DecodingSession:
        """A session over the link, by a protocol or `auto`; its rounds are to be told to `observe`."""
        choice = await self._choose() if method == AUTO else Choice(method, "")
        return self._session(self._setting.clients.link, choice, sampling, seed)

    def observe(self, record: RoundRecord) -> None:
        """Learn from a round over the link that ended."""
        if record.drafted:
            self._setting.state.observe(record)
        self._policy(record.protocol).observe(record)
        if not PROTOCOLS[record.protocol].sampled:
            self._by_latency.observe(record.candidates)

    def draws(self, method: str) -> bool:
        """Whether a method's output is random, so that it cannot be compared with the target's token by token."""
        return run_method(method).sampled and not self._setting.sampling.greedy

    async def own(self, prompt: Sequence[int], max_tokens: int, end_ids: Sequence[int]) -> RequestRecord:
        """The target's own greedy output."""
        return await decode_remotely(self._setting.clients.link, prompt, max_tokens, end_ids)

    def _session(self, client: Client, choice: Choice, sampling: Sampling = GREEDY, seed: int = 0) -> DecodingSession:
        setting = self._setting
        return DecodingSession(
            client,
            setting.drafter,
            protocol(choice.kind),
            self._policy(choice.kind if client is setting.clients.link else COLOCATED),
            setting.threshold,
            csi=setting.state.now if client is setting.clients.link else lambda: None,
            pace=setting.pace,
            choice=choice.reason,
            sampling=sampling,
            seed=seed,
            hidden_bits=setting.hidden_bits,
            speed_tps=setting.speed_tps,
            accept_slower=setting.accept_slower,
        )

    def _policy(self, kind: str) -> WindowPolicy:
        """The window policy of one protocol, or of `colocated`: what it learns of its rounds is no other's."""
        return self._policies.setdefault(kind, self._setting.policy.fresh())

    async def _choose(self) -> Choice:
        """Which protocol `auto` takes for the next request."""
        rtt_s = min(await self._setting.clients.link.rtt_s(HANDSHAKES))
        state = self._setting.state.now()
        if self._setting.rule == "latency" and state is not None:
            return self._by_latency.choose(msgspec.structs.replace(state, rtt_ms=rtt_s * 1e3))
        return by_rtt(rtt_s * 1e3)

    async def _colocated(
        self, prompt: Sequence[int], max_tokens: int, end_ids: Sequence[int], progress: Progress | None
    ) -> RequestRecord:
        """Both models on the BS: the rounds cross no link, the request and its answer do, once."""
        clients = self._setting.clients
        link_s = 0.0 if clients.local is clients.link else (await clients.link.rtt_s(1))[0]
        session = self._session(clients.local, Choice("greedy", ""))
        policy = self._policy(COLOCATED)

        def ended(record: RoundRecord) -> None:
            policy.observe(record)
            if progress:
                progress(record)

        record = await session.decode(prompt, max_tokens, end_ids, ended)
        first = msgspec.structs.replace(record.rounds[0], link_s=record.rounds[0].link_s + link_s)
        rounds = [first, *record.rounds[1:]]
        return msgspec.structs.replace(record, latency_s=record.latency_s + link_s, rounds=rounds)

    async def check(
        self, request: int, prompt: Sequence[int], output: Sequence[int], target: Sequence[int]
    ) -> Divergence | None:
        """Hold an output against the target's own."""
        setting = self._setting
        return await compare(setting.clients.local, request, prompt, output, target, setting.tolerance)


def schedule(methods: Sequence[str], prompts: int, seed: int) -> list[Job]:
    """Every prompt under every method; the order of methods is drawn anew for each prompt."""
    rng = random.Random(f"methods/{seed}")
    jobs = []
    for request in range(prompts):
        jobs += [Job(method, request) for method in rng.sample(list(methods), len(methods))]
    return jobs
