"""Start and shutdown of the endpoint: connects drafter and BS, warms up, and runs the web server."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import uvicorn

from testbed.clock import Clock, WallClock
from testbed.errors import BadInput, TestbedError
from testbed.process.heap import loaded_heap_frozen
from testbed.protocols import PROTOCOLS
from testbed.protocols.adaptive import RULES
from testbed.protocols.messages import Welcome
from testbed.protocols.methods import AUTO
from testbed.protocols.quantise import check_bits
from testbed.protocols.sampling import Sampling
from testbed.tasks import beside
from testbed.ue.api.app import REQUESTS, Service, make_app
from testbed.ue.api.backend import Backend, ConnectedPair
from testbed.ue.api.config import EndpointConfig
from testbed.ue.api.drafting_thread import DraftingThread
from testbed.ue.api.schema import RequestLimits
from testbed.ue.channel_state import ChannelState
from testbed.ue.client import Client
from testbed.ue.dial import check_silence, dial, keys_for, short_name
from testbed.ue.drafters.base import Drafter
from testbed.ue.load_drafter import DrafterOptions, check_states, drafter_and_tokenizer, load_drafter
from testbed.ue.prompts import Prompter
from testbed.ue.run import Clients, JobRunner, Setting
from testbed.ue.windows.fixed import FixedWindow
from testbed.web.listening import key_in, listening, url_of
from testbed.web.server import BACKLOG, SPARE, BoundedHttp, request_limit

State = Callable[[Client, Clock], Awaitable[ChannelState]]
"""Creates the channel state of a connection."""
Ready = Callable[[str, str], None]
"""Called once the endpoint answers, with its address and the model's name."""
GRACE_S = 5
"""Time that active responses have to finish when the endpoint stops."""
WARM_UP = 2
"""Number of tokens that each method decodes before the endpoint is ready."""


def serve(config: EndpointConfig, bundle: tuple[Path | None, Path | None], state: State, ready: Ready) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        bundle: drafter and tokenizer directory to use if the configuration has none.

    Raises:
        BadInput: an invalid configuration.
        LinkError: the BS cannot be reached.
        ProtocolError: the BS refuses.
    """
    requests = request_limit(REQUESTS)
    name, prompter = check(config, bundle)
    token = key_in(config.token_file)
    with listening(config.host, config.port, guarded=token is not None) as listener:
        options = DrafterOptions(
            prompter.vocab_size, config.context, config.sequences, config.threads, config.gpu_layers, config.kv_type,
            config.drafter_memory, prompter.directory, keep=True,
        )  # fmt: skip
        drafter = load_drafter(name, options)
        try:
            with connected(config, drafter, prompter, state) as (backend, welcome):
                service = Service(
                    backend,
                    prompter,
                    RequestLimits(config.max_tokens, config.temperature, backend.pair.context),
                    config.name or short_name(welcome.model),
                    int(time.time()),
                    token,
                    config.host,
                    requests,
                )
                with loaded_heap_frozen():
                    asyncio.run(_run(service, listener, lambda: ready(url_of(listener), service.name)))
        finally:
            drafter.close()


def check(config: EndpointConfig, bundle: tuple[Path | None, Path | None]) -> tuple[str, Prompter]:
    """Check a configuration; returns the drafter's file or name, and the prompter.

    Raises:
        BadInput: an invalid configuration.
    """
    used = methods(config.protocols)
    Sampling(config.temperature)
    keys_for(config.bs, config.keys, config.insecure)
    check_silence(config.failover_s)
    check_bits(config.hidden_bits)
    if config.auto_rule not in RULES:
        raise BadInput(f"unknown auto-rule {config.auto_rule!r}; known: {', '.join(RULES)}")
    drafter, directory = drafter_and_tokenizer(config.drafter, config.tokenizer, bundle)
    check_states(drafter, used)
    if directory is None:
        raise BadInput("which tokenizer? give --tokenizer DIR, the directory of tokenizer.json")
    return drafter, Prompter(directory, config.prompt_format)


def methods(names: tuple[str, ...]) -> tuple[str, str]:
    """The methods for temperature 0 and for higher ones.

    Raises:
        BadInput: an unknown method, or two for the same temperatures.
    """
    known = (AUTO, *PROTOCOLS)
    for name in names:
        if name not in known:
            raise BadInput(f"unknown protocol {name!r}; an endpoint takes {', '.join(known)}")
    sampled = [n for n in names if n in PROTOCOLS and (PROTOCOLS[n].sampled or PROTOCOLS[n].coupled)]
    greedy = [n for n in names if n not in sampled]
    if len(sampled) > 1 or len(greedy) > 1:
        raise BadInput(f"protocols {', '.join(names)}: give one for temperature 0 and one for those above")
    at_zero, above = EndpointConfig().protocols
    return (*greedy, *sampled, at_zero)[0], (*sampled, above)[0]


@contextlib.contextmanager
def connected(
    config: EndpointConfig, drafter: Drafter, prompter: Prompter, state: State
) -> Iterator[tuple[Backend, Welcome]]:
    """A warmed-up backend, in its own thread.

    Raises:
        BadInput: drafter, window or context do not fit the BS's target.
        LinkError: the BS cannot be reached.
        ProtocolError: the BS refuses.
    """
    device = DraftingThread()
    clients: list[Client] = []

    async def connect() -> tuple[ConnectedPair, Welcome]:
        how = (WallClock(), config.timeout_s, config.failover_s, config.insecure)
        clients.append(dial(config.bs, config.keys, *how))
        return await _meet(config, clients[0], drafter, prompter, state)

    async def disconnect() -> None:
        for client in clients:
            await client.close()

    try:
        pair, welcome = device.run(connect())
        yield Backend(device, pair, config.sequences, config.queue), welcome
    finally:
        if not device.lost:
            device.run(disconnect())
        device.close()


async def _meet(
    config: EndpointConfig, client: Client, drafter: Drafter, prompter: Prompter, state: State
) -> tuple[ConnectedPair, Welcome]:
    """Connect to the BS, and warm up each method."""
    welcome = await client.connect(prompter.fingerprint, drafter.vocab_size)
    if config.window > welcome.max_window:
        raise BadInput(f"window {config.window}: the BS takes at most {welcome.max_window}")
    setting = Setting(
        Clients(client, client),
        drafter,
        FixedWindow(config.window),
        config.threshold,
        state=await state(client, client.clock),
        rule=config.auto_rule,
        hidden_bits=config.hidden_bits,
        lookahead=config.lookahead,
    )
    runner, (greedy, sampled) = JobRunner(setting), methods(config.protocols)
    for method in dict.fromkeys((greedy, sampled)):
        session = await runner.session(method, Sampling(), 0)
        await session.decode([0], WARM_UP, ())
    context = min(drafter.context, welcome.max_positions)
    return ConnectedPair(runner, prompter.tokenizer, welcome.end_ids, greedy, sampled, context), welcome


def web_settings(service: Service) -> uvicorn.Config:
    """Settings of the web server."""
    return uvicorn.Config(
        make_app(service), http=BoundedHttp, ws="none", lifespan="off", log_config=None, log_level="error",
        access_log=False, backlog=BACKLOG,
        limit_concurrency=service.requests + SPARE, timeout_graceful_shutdown=GRACE_S,
    )  # fmt: skip


class _Server(uvicorn.Server):
    """A web server that reports when it is ready, and leaves signals to its caller."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._say = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._say()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _run(service: Service, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until a signal arrives; then cancel active requests and close their sessions."""
    server = _Server(web_settings(service), ready)
    closing: list[asyncio.Task[None]] = []

    def stop() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True
        closing.append(asyncio.ensure_future(service.backend.close()))

    def lose() -> None:
        server.should_exit = server.force_exit = True  # no request will ever end

    loop, device = asyncio.get_running_loop(), service.backend.device
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    device.on_loss = lambda: loop.call_soon_threadsafe(lose)
    await beside([service.backend.watch()], server.serve(sockets=[listener]))
    if device.lost:
        raise TestbedError("the endpoint failed: its drafting thread has ended")
    await asyncio.gather(*closing)
