"""A UE process on the synthetic pair that decodes until it is stopped, as `ue run` does, but without a model.

    python -m tests.support.faulty_ue '{"bs": "tcp://127.0.0.1:5555", "name": "a", "methods": ["greedy", "sh"]}'

Each output is a line of JSON on stdout. After a line or end of file on stdin, it finishes open requests and exits.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator

import msgspec

from testbed.clock import WallClock
from testbed.protocols import TARGET_ONLY, protocol
from testbed.protocols.greedy import Greedy
from testbed.protocols.sampling import GREEDY, Sampling
from testbed.ue.client import Client
from testbed.ue.dial import dial
from testbed.ue.drafters.hybrid import HybridDrafter
from testbed.ue.drafters.index import IndexDrafter
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.load_drafter import DrafterOptions, load_drafter
from testbed.ue.pace import ConstantPace
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.lookahead import Lookahead
from testbed.ue.windows.registry import HINTED
from testbed.ue.windows.stream_choice import StreamChoice
from testbed.ue.windows.uploads import Uploads

VOCAB = 512
"""Vocabulary of the synthetic engine."""
PROMPTS = 5
TOKENS = 24
SAMPLED = ("rejection", "split")
STREAMS = {"stream": 0, "model-stream": "stream", "hybrid-stream": None}
"""Methods that are greedy in streams, and their lookahead. The first drafts with `suffix`, which copies what earlier
requests of the process were answered, the second with a model, for which the target waits, the third with both."""
HINTED_METHODS = {"hinted": "greedy", "hinted-sh": "sh"}
"""Methods that follow hints, and their protocols: of windows, and of all."""
MEMORY_TOKENS = 1024
JUMP_S = 1.0


class Orders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Configuration of the UE."""

    bs: str
    name: str
    """ZeroMQ identity."""
    methods: tuple[str, ...]
    once: bool = False
    """Every prompt by every method, once, and stop."""
    at_once: int = 4
    """Number of simultaneous sessions."""
    token_s: float = 0.002
    """Time per drafted token."""
    seed: int = 0
    timeout_s: float = 90.0


def prompt_of(number: int) -> list[int]:
    """The prompts that all UEs share."""
    return [number + 1, 7 * number % VOCAB, 3, 1, 4]


async def decode(client: Client, method: str, number: int, token_s: float, index: IndexDrafter) -> list[int]:
    """One output; `index` drafts in streams."""
    prompt = prompt_of(number)
    if method == TARGET_ONLY:
        return (await decode_remotely(client, prompt, TOKENS, ())).token_ids
    sampling = Sampling(0.8) if method in SAMPLED else GREEDY
    model = SyntheticDrafter(vocab_size=VOCAB, alpha=0.7)
    if method in HINTED_METHODS:
        own = protocol(HINTED_METHODS[method])
        ahead = Lookahead(number % 2, hinted=True) if own.beside else None
        hinted = DecodingSession(
            client, model, own, HINTED.make(8, None), pace=ConstantPace(client.clock, token_s), lookahead=number % 2,
            chooser=ahead, uploads=Uploads(own, hinted=bool(own.beside)),
        )  # fmt: skip
        return (await hinted.decode(prompt, TOKENS, ())).token_ids
    drafters = {"stream": index, "hybrid-stream": HybridDrafter(index, model)}
    session = DecodingSession(
        client,
        drafters.get(method, model),
        protocol(Greedy.kind if method in STREAMS else method),
        FixedWindow(4),
        pace=ConstantPace(client.clock, token_s),
        sampling=sampling,
        seed=number,
        lookahead=STREAMS.get(method, number % 2),  # type: ignore[arg-type]
        stream=method in STREAMS,
        streams=StreamChoice(4, alone=STREAMS[method] is None) if method in STREAMS else None,
    )
    return (await session.decode(prompt, TOKENS, ())).token_ids


def jobs_of(orders: Orders) -> Iterator[tuple[str, int]]:
    """Methods and prompts: each combination once, or random ones without end."""
    everything = list(itertools.product(orders.methods, range(PROMPTS)))
    if orders.once:
        yield from everything
        return
    dice = random.Random(orders.seed)
    while True:
        yield dice.choice(everything)


async def work(orders: Orders) -> None:
    """Decode with the configured number of sessions."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    client = dial(orders.bs, None, WallClock(), orders.timeout_s, identity=orders.name.encode())
    jobs = jobs_of(orders)
    wall_s = time.time() - time.monotonic()
    index = load_drafter("suffix", DrafterOptions(VOCAB, memory_tokens=MEMORY_TOKENS))
    assert isinstance(index, IndexDrafter)

    async def worker() -> None:
        nonlocal wall_s
        for method, number in jobs:
            tokens = await decode(client, method, number, orders.token_s, index)
            jump_s, wall_s = time.time() - time.monotonic() - wall_s, time.time() - time.monotonic()
            said = {"job": [method, number], "tokens": tokens, "jumped": abs(jump_s) > JUMP_S}
            print(json.dumps(said), flush=True)
            if stop.is_set() and not orders.once:
                return

    try:
        await client.connect("", VOCAB)
        await asyncio.gather(*(worker() for _ in range(orders.at_once)))
    finally:
        await client.close()


def main() -> None:
    """Work until told to stop."""
    asyncio.run(work(msgspec.json.decode(sys.argv[1], type=Orders)))


if __name__ == "__main__":
    main()
