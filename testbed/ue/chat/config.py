"""Configuration of `testbed chat`."""

from __future__ import annotations

from typing import Annotated

from testbed import fields
from testbed.options import Config, option


class ChatConfig(Config, frozen=True):
    """Configuration of `testbed chat`."""

    bs: fields.Bs = "tcp://127.0.0.1:5555"
    keys: fields.UeKeys = None
    insecure: fields.UeInsecure = False
    failover_s: fields.Failover = 5.0
    timeout_s: fields.Timeout = 60.0
    protocol: Annotated[str, option("Protocol of the rounds.", kinds="protocols", panel="Protocol")] = "greedy"
    window: fields.Window = 8
    threshold: fields.Threshold = 0.0
    hidden_bits: fields.HiddenBits = 16
    temperature: Annotated[float, option("Sampling temperature, for rejection and split.", panel="Sampling")] = 1.0
    seed: Annotated[int, option("Seed of sampling.")] = 0
    drafter: fields.DrafterFile = None
    tokenizer: fields.Tokenizer = None
    kv_type: fields.KvType = "f16"
    threads: fields.DrafterThreads = None
    gpu_layers: fields.GpuLayers = -1
    context: Annotated[
        int | None, option("Positions of the conversation. Default: the drafter's, at most 8192.", unit="tokens")
    ] = None
    max_tokens: Annotated[int, option("Output tokens per answer, at most.", least=1, panel="Workload")] = 256
    prompt_format: fields.PromptFormat = "auto"
