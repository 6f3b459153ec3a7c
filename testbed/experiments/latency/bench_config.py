"""Configuration of `testbed bench`."""

from __future__ import annotations

from typing import Annotated

from testbed import fields
from testbed.options import Config, option


class BenchConfig(Config, frozen=True):
    """Configuration of `testbed bench`."""

    bs: Annotated[
        str | None, option("Base-station address. Default: start one.", metavar="ADDRESS", panel="Base station")
    ] = None
    keys: fields.UeKeys = None
    insecure: fields.UeInsecure = False
    timeout_s: fields.Timeout = 600.0
    engine: fields.Engine = "vllm"
    model: fields.Target = None
    dtype: fields.Dtype = "float32"
    drafter: fields.DrafterFile = None
    tokenizer: fields.Tokenizer = None
    threads: fields.DrafterThreads = None
    methods: Annotated[
        tuple[str, ...],
        option("Protocols, separated by commas.", flags=("--methods", "--protocol"), kinds="methods", panel="Protocol"),
    ] = ("greedy", "target-only")
    window: fields.Window = 8
    rates: Annotated[
        tuple[float, ...],
        option("Request rates of Poisson arrivals; inf sends all requests at once.", unit="requests/s", panel="Load"),
    ] = (1.0, 2.0, 4.0)
    requests: Annotated[int, option("Requests at each rate.", least=2, most=10**6)] = 40
    max_concurrency: Annotated[int, option("Requests decoded concurrently, at most; others wait.", least=1)] = 16
    goodput: Annotated[
        tuple[str, ...],
        option("Limits that count for goodput, in ms: ttft:MS, tpot:MS, e2el:MS.", none="none", metavar="NAME:MS"),
    ] = ()
    dataset: fields.Dataset = "bundled:test"
    max_tokens: fields.MaxTokens = 128
    seed: fields.Seed = 0
