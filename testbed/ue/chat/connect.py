"""Connection of a chat: drafter, BS and prompts put together."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from testbed.clock import WallClock
from testbed.errors import BadInput
from testbed.protocols.sampling import Sampling
from testbed.ue.chat.config import ChatConfig
from testbed.ue.chat.conversation import Conversation
from testbed.ue.dial import dial
from testbed.ue.load_drafter import DrafterOptions, check_states, drafter_and_tokenizer, load_drafter
from testbed.ue.prompts import Prompter
from testbed.ue.run import Clients, JobRunner, Setting
from testbed.ue.windows.fixed import FixedWindow


@contextlib.asynccontextmanager
async def connected(
    config: ChatConfig, bundle: tuple[Path | None, Path | None] = (None, None)
) -> AsyncIterator[Conversation]:
    """A conversation over a new connection to a BS.

    Args:
        bundle: drafter and tokenizer directory to use if the configuration has none.

    Raises:
        BadInput: a drafter, tokenizer or option that cannot be used.
        LinkError: the BS cannot be reached.
    """
    name, directory = drafter_and_tokenizer(config.drafter, config.tokenizer, bundle)
    check_states(name, (config.protocol,))
    if directory is None:
        raise BadInput("which tokenizer? give --tokenizer DIR, the directory of tokenizer.json")
    prompter, sampling = Prompter(directory, config.prompt_format), Sampling(config.temperature)
    options = DrafterOptions(
        prompter.vocab_size, config.context, 1, config.threads, config.gpu_layers, config.kv_type,
        config.drafter_memory, prompter.directory, keep=True,
    )  # fmt: skip
    drafter = load_drafter(name, options)
    client = dial(config.bs, config.keys, WallClock(), config.timeout_s, config.failover_s, config.insecure)
    try:
        welcome = await client.connect(prompter.fingerprint, drafter.vocab_size)
        setting = Setting(
            Clients(client, client), drafter, FixedWindow(config.window), config.threshold,
            hidden_bits=config.hidden_bits, lookahead=config.lookahead,
        )  # fmt: skip
        context = min(drafter.context, welcome.max_positions)
        yield Conversation(
            JobRunner(setting), prompter, welcome, context, config.protocol, sampling, config.max_tokens, config.seed
        )
    finally:
        await client.close()
        drafter.close()
