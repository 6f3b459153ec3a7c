"""A UE's run: every prompt under every method, in an order shuffled by the seed, checked against the target."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from testbed.channel.cost import NO_OVERHEADS, Overheads, Sizes
from testbed.config import DemoConfig, RunConfig
from testbed.errors import BadInput
from testbed.protocols import PROTOCOLS, TARGET_ONLY, protocol
from testbed.protocols.adaptive import ByLatency, Choice, by_rtt
from testbed.protocols.greedy import Coupled, Greedy
from testbed.protocols.methods import AUTO, COLOCATED, Ahead, check_sampling, run_method
from testbed.protocols.quantise import FULL_BITS, quantised
from testbed.protocols.sampling import GREEDY, Sampling, request_seed
from testbed.ue.channel_state import ChannelState, UnknownChannel
from testbed.ue.client import HANDSHAKES, Client
from testbed.ue.drafters.base import Drafter
from testbed.ue.gate import Divergence, compare
from testbed.ue.pace import REAL_TIME, Pace
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.session import DecodingSession, Progress
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.base import WindowPolicy
from testbed.ue.windows.lookahead import Lookahead, lookahead_of
from testbed.ue.windows.stream_choice import StreamChoice


def check_speed(speed_tps: float | None, accept_slower: bool) -> None:
    """Refuse a token speed that cannot be requested.

    Raises:
        BadInput: a speed that is not positive, or none although a slower one would be accepted.
    """
    if speed_tps is not None and not 0 < speed_tps < math.inf:
        raise BadInput(f"a speed is a positive number of tokens a second, not {speed_tps:g}")
    if speed_tps is None and accept_slower:
        raise BadInput("slower than what? give --speed-tps with --accept-slower")


def sampling_of(config: RunConfig | DemoConfig) -> Sampling:
    """Sampling of a run; without a temperature, at 1 if a protocol samples or coupled sampling is asked for, else
    greedy.

    Raises:
        BadInput: a value out of its range, or one that applies to none of the methods.
    """
    coupled, temperature = config.sampling == "coupled", config.temperature
    if temperature is None:
        protocols = [PROTOCOLS[method] for method in config.methods if method in PROTOCOLS]
        temperature = 1.0 if coupled or any(p.sampled or p.coupled for p in protocols) else 0.0
    block = config.verification == "block"
    asked = Sampling(temperature, config.top_k, config.top_p, coupled, block, config.q_top, config.q_bits)
    check_sampling(asked, config.methods)
    return asked


class OwnOutput(NamedTuple):
    """What the target's own output depends on, beside the prompt's text."""

    request: int
    max_tokens: int
    sampling: Sampling = GREEDY
    seed: int = 0
    """Seed of its random numbers."""


def own_output(method: str, sampling: Sampling, seed: int, request: int, max_tokens: int) -> OwnOutput:
    """The output of the target alone that a method's output is compared with: greedy, or with the same noise.

    Args:
        sampling: sampling of the run.
        seed: seed of the run.
    """
    how = run_method(method).sampling(sampling)
    if not how.coupled:
        return OwnOutput(request, max_tokens)
    return OwnOutput(request, max_tokens, how, request_seed(seed, Coupled.kind, request))


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
    """Settings that all requests of a run share.

    Attributes:
        tolerance: largest logit gap that counts as a tie (0 in float32).
        rule: rule of `auto`, one of `adaptive.RULES`.
        sampling: how methods that sample draw or choose tokens; the others are greedy.
        seed: seed of the random numbers.
        hidden_bits: bits per element of uploaded hidden states.
        sizes: sizes by which `auto` computes payloads; None: those of this drafter.
        overheads: fixed bits of every message, for `auto`.
        speed_tps: token speed in tokens/s that the BS must guarantee every request; None: no guarantee.
        accept_slower: accept the speed that the BS offers where it cannot guarantee that one.
        lookahead, stream: see `DecodingSession`; `colocated` has none.

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
    lookahead: Ahead = 0
    stream: bool = True

    def __post_init__(self) -> None:
        check_speed(self.speed_tps, self.accept_slower)


class JobRunner:
    """Runs jobs, and keeps the state of window policies, channel and `auto` between them."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._policies: dict[str, WindowPolicy] = {}
        self._choosers: dict[str, Lookahead] = {}
        alone = setting.stream and setting.lookahead != "stream"
        self._streams = StreamChoice(setting.policy.max_window, alone)
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
        """Decode one prompt by one method; random numbers depend on `request`, the index of the prompt."""
        link, sampling = self._setting.clients.link, run_method(method).sampling(self._setting.sampling)
        # methods with coupled sampling share the noise, so that their outputs can be compared
        seed = request_seed(self._setting.seed, Coupled.kind if sampling.coupled else method, request)
        if method == TARGET_ONLY:
            how = (sampling, seed, self._setting.speed_tps, self._setting.accept_slower)
            return await decode_remotely(link, prompt, max_tokens, end_ids, progress, *how)
        if method == COLOCATED:
            return await self._colocated(prompt, max_tokens, end_ids, progress)
        session = await self.session(method, sampling, seed)

        def ended(record: RoundRecord) -> None:
            self.observe(record)
            if progress:
                progress(record)

        return await session.decode(prompt, max_tokens, end_ids, ended)

    async def trouble(self, within_s: float) -> str:
        """See `Client.trouble`."""
        return await self._setting.clients.link.trouble(within_s)

    async def session(self, method: str, sampling: Sampling, seed: int) -> DecodingSession:
        """A session over the link, by a protocol or `auto`; pass its rounds to `observe`."""
        await self._setting.state.begin()
        choice = await self._choose() if method == AUTO else Choice(method, "")
        how = run_method(method).sampling(sampling)
        return self._session(self._setting.clients.link, choice, how, seed, self._setting.lookahead)

    def observe(self, record: RoundRecord) -> None:
        """Learn from a finished round over the link."""
        if record.drafted and not record.hidden_s and not record.streamed:  # else a part of its link time is missing
            self._setting.state.observe(record)
        self._policy(record.protocol).observe(record)
        if not PROTOCOLS[record.protocol].sampled:
            self._by_latency.observe(record.candidates)

    def draws(self, method: str) -> bool:
        """Whether a method's output is random, so that it cannot be compared with the target's token by token."""
        return run_method(method).sampling(self._setting.sampling).independent

    def own_output(self, method: str, request: int, max_tokens: int) -> OwnOutput:
        """See `own_output`."""
        return own_output(method, self._setting.sampling, self._setting.seed, request, max_tokens)

    async def own(self, prompt: Sequence[int], which: OwnOutput, end_ids: Sequence[int]) -> RequestRecord:
        """The target's own output."""
        link = self._setting.clients.link
        return await decode_remotely(link, prompt, which.max_tokens, end_ids, sampling=which.sampling, seed=which.seed)

    def _session(
        self, client: Client, choice: Choice, sampling: Sampling = GREEDY, seed: int = 0, lookahead: Ahead = 0
    ) -> DecodingSession:
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
            lookahead=lookahead,
            stream=setting.stream and client is setting.clients.link,
            streams=self._streams if client is setting.clients.link else None,
            chooser=self._chooser(choice.kind) if client is setting.clients.link else None,
        )

    def _policy(self, kind: str) -> WindowPolicy:
        """The window policy of one protocol, or of `colocated`; each learns from its own rounds only."""
        return self._policies.setdefault(kind, self._setting.policy.fresh())

    def _chooser(self, kind: str) -> Lookahead:
        """What chooses lookahead and window of one protocol's rounds; it learns from all requests of the run."""
        made = lookahead_of(self._setting.lookahead, not PROTOCOLS[kind].sampled, self._setting.policy)
        return self._choosers.setdefault(kind, made)

    async def _choose(self) -> Choice:
        """The protocol that `auto` chooses for the next request."""
        rtt_s = min(await self._setting.clients.link.rtt_s(HANDSHAKES))
        state = self._setting.state.now()
        if self._setting.rule == "latency" and state is not None:
            return self._by_latency.choose(msgspec.structs.replace(state, rtt_ms=rtt_s * 1e3))
        return by_rtt(rtt_s * 1e3)

    async def _colocated(
        self, prompt: Sequence[int], max_tokens: int, end_ids: Sequence[int], progress: Progress | None
    ) -> RequestRecord:
        """Both models at the BS: the rounds do not cross the link; the request and its answer do, once."""
        clients = self._setting.clients
        link_s = 0.0 if clients.local is clients.link else (await clients.link.rtt_s(1))[0]
        session = self._session(clients.local, Choice(Greedy.kind, ""))
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
        self, which: OwnOutput, prompt: Sequence[int], output: Sequence[int], target: Sequence[int]
    ) -> Divergence | None:
        """Compare an output with the target's own."""
        setting, drawn = self._setting, (which.sampling, which.seed)
        return await compare(setting.clients.local, which.request, prompt, output, target, setting.tolerance, *drawn)


def schedule(methods: Sequence[str], prompts: int, seed: int) -> list[Job]:
    """Every prompt under every method; the order of methods is drawn anew for each prompt."""
    rng = random.Random(f"methods/{seed}")
    jobs = []
    for request in range(prompts):
        jobs += [Job(method, request) for method in rng.sample(list(methods), len(methods))]
    return jobs
