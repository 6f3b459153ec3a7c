"""An endpoint in this process, on real sockets, over the synthetic pair; its tokenizer knows the words w0, w1, …"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import uvicorn
from openai import AsyncOpenAI
from tokenizers import Tokenizer, models, pre_tokenizers

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.server import BaseStation
from testbed.bs.sessions import SessionTable
from testbed.clock import Clock
from testbed.ue.api.app import Service
from testbed.ue.api.backend import Backend
from testbed.ue.api.config import EndpointConfig
from testbed.ue.api.schema import RequestLimits
from testbed.ue.api.serve import connected, web_settings
from testbed.ue.channel_state import ChannelState, UnknownChannel
from testbed.ue.client import Client
from testbed.ue.drafters.base import Choose
from testbed.ue.drafters.synthetic import SyntheticDrafter, SyntheticSequence
from testbed.ue.prompts import Prompter
from testbed.web.listening import listening, url_of
from tests.support.stations import station

WORDS = 64
CONTEXT = 4096
MODEL = "words"


class HeldDrafter(SyntheticDrafter):
    """A drafter that opens no sequence while it is held."""

    def __init__(self) -> None:
        super().__init__(vocab_size=WORDS, alpha=0.8, hidden_size=8, context=CONTEXT)
        self.free, self.opening = threading.Event(), threading.Event()
        self.free.set()

    def open(
        self, prompt: Sequence[int], *, distributions: bool = False, choose: Choose | None = None
    ) -> SyntheticSequence:
        self.opening.set()
        assert self.free.wait(30)
        return super().open(prompt, distributions=distributions, choose=choose)

    @property
    def places_taken(self) -> int:
        return len(self._open)


class Site(NamedTuple):
    """A running endpoint."""

    url: str
    client: AsyncOpenAI
    backend: Backend
    drafter: HeldDrafter
    bs: BaseStation
    bs_address: str
    bs_sessions: SessionTable
    stop_bs: Callable[[], object]

    @property
    def at_rest(self) -> bool:
        """Whether no slot, sequence or session is in use."""
        return not (self.backend.busy or self.drafter.places_taken or len(self.bs_sessions))


def words(directory: Path) -> Path:
    """A tokenizer's directory."""
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until a condition is true."""
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition did not become true")


async def unknown(client: Client, clock: Clock) -> ChannelState:
    """No channel state."""
    return UnknownChannel()


@contextlib.asynccontextmanager
async def endpoint(
    directory: Path, config: EndpointConfig, *, end_ids: tuple[int, ...] = (), token: str | None = None
) -> AsyncIterator[Site]:
    """An endpoint with its own base station; the configuration's `bs` is ignored."""
    prompter, drafter, sessions = Prompter(words(directory), config.prompt_format), HeldDrafter(), SessionTable()
    async with contextlib.AsyncExitStack() as stack:
        stations = await stack.enter_async_context(contextlib.AsyncExitStack())
        engine = SyntheticEngine(vocab_size=WORDS, max_model_len=CONTEXT)
        bs, address = await stations.enter_async_context(station(engine, end_ids=end_ids, sessions=sessions))
        pair = connected(msgspec.structs.replace(config, bs=address), drafter, prompter, unknown)
        backend, _ = await asyncio.to_thread(pair.__enter__)
        stack.push_async_callback(asyncio.to_thread, pair.__exit__, None, None, None)
        limits = RequestLimits(config.max_tokens, config.temperature, backend.pair.context)
        service = Service(backend, prompter, limits, MODEL, 0, token)
        url = await stack.enter_async_context(_web(service))
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key=token or "none", max_retries=0, timeout=30)
        await stack.enter_async_context(client)
        yield Site(url, client, backend, drafter, bs, address, sessions, stations.aclose)
        drafter.free.set()
        await backend.close()


@contextlib.asynccontextmanager
async def _web(service: Service) -> AsyncIterator[str]:
    with listening("127.0.0.1", 0, guarded=service.token is not None) as listener:
        server = uvicorn.Server(web_settings(service))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield url_of(listener)
        finally:
            server.should_exit = True
            await serving
