"""A UE's run: prompts by methods, in an order shuffled by the seed, warm-up left out, held against the target."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from testbed.channel.csi import Csi
from testbed.errors import BadInput
from testbed.protocols import PROTOCOLS, TARGET_ONLY, protocol
from testbed.ue.client import Client
from testbed.ue.drafting import Drafter
from testbed.ue.gate import Divergence, compare
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.remote import decode_remotely
from testbed.ue.session import Session
from testbed.ue.window import WindowPolicy

COLOCATED = "colocated"
"""Greedy speculation with both models on the BS: the drafter talks to it over `Links.local`."""
AUTO = "auto"
FULL_HIDDEN_RTT_S = 0.010
"""`auto` takes FH above this RTT and SH below it (WISV Section VII-B)."""


def check_method(method: str) -> str:
    """Return a method that can be run.

    Raises:
        BadInput: unknown; the message lists the known ones.
    """
    known = (TARGET_ONLY, COLOCATED, AUTO, *PROTOCOLS)
    if method not in known:
        raise BadInput(f"unknown protocol {method!r}; known: {', '.join(known)}")
    return method


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


class Runner:
    """Runs jobs one after another and keeps what the gate needs.

    Args:
        tolerance: largest logit gap that counts as a tie (0 in float32).
        csi: the current channel state, or None where it is not known.
    """

    def __init__(
        self,
        clients: Clients,
        drafter: Drafter,
        policy: WindowPolicy,
        threshold: float = 0.0,
        tolerance: float = 0.0,
        csi: Callable[[], Csi | None] = lambda: None,
    ) -> None:
        self._clients, self._drafter, self._policy = clients, drafter, policy
        self._threshold, self._tolerance, self._csi = threshold, tolerance, csi

    async def decode(
        self,
        method: str,
        prompt: Sequence[int],
        max_tokens: int,
        end_ids: Sequence[int],
        progress: Callable[[RoundRecord], None] | None = None,
    ) -> RequestRecord:
        """Decode one prompt by one method."""
        if method == TARGET_ONLY:
            return await decode_remotely(self._clients.link, prompt, max_tokens, end_ids, progress)
        kind, client = method, self._clients.link
        if method == COLOCATED:
            kind, client = "greedy", self._clients.local
        elif method == AUTO:
            kind = "fh" if min(await client.rtt_s(3)) > FULL_HIDDEN_RTT_S else "sh"
        session = Session(client, self._drafter, protocol(kind), self._policy, self._threshold, self._csi)
        return await session.decode(prompt, max_tokens, end_ids, progress)

    async def check(
        self, request: int, prompt: Sequence[int], output: Sequence[int], target: Sequence[int]
    ) -> Divergence | None:
        """Hold an output against the target's own."""
        return await compare(self._clients.local, request, prompt, output, target, self._tolerance)


def schedule(methods: Sequence[str], prompts: int, seed: int) -> list[Job]:
    """Every prompt under every method; the order of methods is drawn anew for each prompt."""
    rng = random.Random(f"methods/{seed}")
    jobs = []
    for request in range(prompts):
        jobs += [Job(method, request) for method in rng.sample(list(methods), len(methods))]
    return jobs
