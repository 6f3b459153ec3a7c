"""Configuration of `testbed chat`."""

from __future__ import annotations

from typing import Annotated

from testbed import fields
from testbed.config import ConnectedConfig
from testbed.options import option


class ChatConfig(ConnectedConfig, frozen=True):
    """Configuration of `testbed chat`."""

    protocol: Annotated[str, option("Protocol of the rounds.", kinds="protocols", panel="Protocol")] = "greedy"
    temperature: Annotated[
        float, option("Sampling temperature, for coupled, rejection and split.", panel="Sampling")
    ] = 1.0
    seed: Annotated[int, option("Seed of sampling.", least=0)] = 0
    context: Annotated[
        int | None,
        option("Positions of the conversation. Default: the drafter's, at most 8192.", unit="tokens", panel="Models"),
    ] = None
    max_tokens: Annotated[int, option("Output tokens per answer, at most.", least=1, panel="Workload")] = 256
    prompt_format: fields.PromptFormat = "auto"
