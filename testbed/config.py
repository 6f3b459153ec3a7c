"""Resolved configurations: frozen, refusing unknown keys; the CLI takes its defaults from here."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import msgspec

from testbed.errors import ConfigError
from testbed.files import whole_file

C = TypeVar("C", bound="Config")


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all configurations."""


class ServeConfig(Config, frozen=True):
    """What `testbed bs serve` does."""

    engine: str = "vllm"
    model: str | None = None
    """Directory, or Hugging Face id; None: the bundled target."""
    bind: str = "tcp://127.0.0.1:5555"
    keys: str | None = None
    """Directory of `channel.keys`: who is let in; None: everybody who can reach it."""
    insecure: bool = False
    """Do without keys beyond loopback."""
    max_sessions: int = 1024
    max_sessions_per_ue: int = 64
    max_pending: int = 512
    """Windows that may wait for the engine."""
    max_window: int = 256
    """Tokens of a draft window."""
    max_kv_tokens: int | None = None
    """Of all open sessions together; None: four times what the engine has room for, where it knows."""
    idle_s: float = 600.0
    """After which a session is forgotten whose UE says nothing."""
    dtype: str = "float32"
    max_model_len: int | None = None
    """Positions of a sequence; None: what the model allows."""
    scheduler: str = "fcfs"
    max_batch: int = 256
    """Requests of one pass."""
    max_batch_tokens: int = 8192
    """New tokens of one pass."""
    tensor_parallel: int = 1
    memory_share: float = 0.9
    """Share of a GPU's memory that vLLM may take."""
    threads: int | None = None
    """CPU threads of the engine; None: all but one."""
    prefix_cache: bool = True
    """Whether vLLM reads committed prefixes from its cache; without, every round computes its prefix anew."""
    judge: str | None = None
    """One of `bs.judging.registry.JUDGES`; None: head where there is one, else strict."""
    head: str | None = None
    """Directory of a decision head."""
    quality_budget: float | None = None
    """Share of answers that judge `budget` may let change."""
    coefficients: str | None = None
    """What scheduler slo and the window controller expect of passes: a profile, a file of `estimator fit --json`, or
    probe; None: probe."""
    admission: bool = True
    """Whether scheduler slo refuses sessions whose speed it cannot promise."""
    chunk_tokens: int | None = None
    """New tokens of a prompt that one pass of scheduler fcfs takes; None: all. slo goes by deadlines."""
    pace: str | None = None
    """Coefficients of another machine, as `coefficients` has them: passes last as long as there, at least."""
    window_controller: str | None = None
    """Hint UEs how much to draft: `on`, or fields of `optim.draft_window.controller.WindowConfig`, such as
    `max_window=8`; None: no hints."""
    metrics: str | None = None
    """File for counters, a line of JSON every interval; None: none."""
    metrics_interval_s: float = 1.0
    monitor: str | None = None
    """HOST:PORT of the live view and of /metrics, /healthz and /readyz; None: none."""
    monitor_token_file: str | None = None
    """Holds the token that viewers must give; needed beyond loopback."""
    monitor_text: bool = False
    """Whether the live view shows the outputs of UEs."""
    power: str | None = None
    """Whose power the metrics count: auto, nvml, rapl, several with commas, or a file of samples; None: none."""


class RunConfig(Config, frozen=True):
    """What `testbed ue run` does."""

    bs: str = "tcp://127.0.0.1:5555"
    """Several separated by commas: the first that answers serves, and the others where it falls silent."""
    keys: str | None = None
    """Directory that `keys new --ue` made; one for every BS, separated by commas, where they differ."""
    insecure: bool = False
    """Do without keys beyond loopback."""
    failover_s: float = 5.0
    """Without a sign of life after which the next base station takes over."""
    local_bs: str | None = None
    """Address that `colocated` uses beside the link; None: the same as `bs`."""
    drafter: str | None = None
    """GGUF file; None: the bundled drafter."""
    tokenizer: str | None = None
    """Directory with `tokenizer.json`; None: the bundled one, unless prompts are ids."""
    methods: tuple[str, ...] = ("greedy",)
    window: int = 8
    threshold: float = 0.0
    """θ of the decision head; 0 rejects every mismatch."""
    max_tokens: int = 256
    dataset: str = "bundled:test"
    limit: int | None = None
    """Prompts taken from the dataset; None: all."""
    prompt_format: str = "auto"
    """auto, plain, chat, or a template with {question}."""
    shots: int = 0
    """Worked examples before every question."""
    seed: int = 0
    warmup: int = 1
    """Prompts decoded by every method before anything is measured."""
    gate: bool = True
    """Hold every output against the target's own."""
    tie_tolerance: float = 0.0
    """Largest logit gap that counts as a tie; use it outside float32."""
    concurrency: int = 1
    """Requests under way at once."""
    kv_type: Literal["f16", "f32"] = "f16"
    """Type of the drafter's KV cache: f16 or f32."""
    threads: int | None = None
    gpu_layers: int = -1
    """Layers of the drafter on a GPU; -1: all."""
    timeout_s: float = 60.0
    """How long to wait for the BS before giving up."""
    csi: str = "passive"
    """Where the channel state comes from: none, passive, FILE.json, trace=…, or key=value,…"""
    auto_rule: str = "rtt"
    """How `auto` chooses: rtt or latency."""
    temperature: float | None = None
    """Of rejection, split and target-only; the other methods are greedy. None: 1 where rejection or split is among the
    methods, else 0."""
    top_k: int = 0
    """Most likely tokens that these draw from; 0: all."""
    top_p: float = 1.0
    """Probability that the most likely tokens they draw from must reach."""
    hidden_bits: int = 16
    """Bits of an element at which fh and sh upload hidden states: 16, 8 or 4."""
    speed_tps: float | None = None
    """Tokens a second that the BS is to promise every request, its service class; None: no promise."""
    accept_slower: bool = False
    """Take the class that the BS offers where it cannot promise that one."""
    window_rule: str = "fixed"
    """When to stop drafting, one of `ue.windows.rules.RULES`; with any but fixed, `window` is the most tokens of a
    round."""
    predictor: str | None = None
    """Directory of a rejection predictor; None: the bundled one, where the rule needs one."""
    pad: str | None = None
    """Device profile, by name or file: messages go up padded to what its models would send; None: as they are."""
    power: str | None = None
    """Where power is read beside the rounds: auto, one of `power.sources.SOURCES`, or a file of samples."""
    power_period_s: float | None = None
    """Between two samples; None: what suits the source."""
    power_idle_s: float = 3.0
    """For which the idle device is measured before the run."""


class DemoConfig(Config, frozen=True):
    """What `testbed demo` does."""

    prompts: int = 20
    window: int = 8
    methods: tuple[str, ...] = ("target-only", "colocated", "greedy", "fh", "sh")
    threshold: float = 0.0
    channel: str = "kind=none"
    dataset: str = "bundled:test"
    max_tokens: int = 256
    seed: int = 0
    engine: str = "vllm"
    model: str | None = None
    drafter: str | None = None
    dtype: str = "float32"
    auto_rule: str = "rtt"
    """How `auto` chooses: rtt or latency."""
    tie_tolerance: float | None = None
    """Largest logit gap that counts as a tie; None: 0 in float32, `BFLOAT16_TIE` outside it."""
    temperature: float | None = None
    """As `RunConfig` has it, and so the next two."""
    top_k: int = 0
    top_p: float = 1.0
    judge: str | None = None
    """As `ServeConfig` has it; None: head where the threshold is above 0 and something is judged, else strict."""
    head: str | None = None
    """Directory of a decision head, or one of the bundled pair's: `bundled`, `bundled:NAME`; None: the bundled one,
    where one is needed."""
    quality_budget: float | None = None
    """As `ServeConfig` has it."""
    hidden_bits: int = 16
    """As `RunConfig` has it."""
    window_rule: str = "fixed"
    """As `RunConfig` has it."""
    predictor: str | None = None
    """As `RunConfig` has it."""


class EndpointConfig(Config, frozen=True):
    """What `testbed ue serve` does."""

    bs: str = "tcp://127.0.0.1:5555"
    """As `RunConfig` has it, and so the next three."""
    keys: str | None = None
    insecure: bool = False
    failover_s: float = 5.0
    drafter: str | None = None
    """GGUF file; None: the bundled drafter."""
    tokenizer: str | None = None
    """Directory with `tokenizer.json`; None: the bundled one."""
    protocols: tuple[str, ...] = ("greedy", "rejection")
    """One for temperature 0 (greedy, fh, sh, auto), one for those above (rejection, split); default of what is not
    among them: these two. A lone rejection or split serves both."""
    window: int = 8
    threshold: float = 0.0
    """θ of the decision head; 0 rejects every mismatch."""
    host: str = "127.0.0.1"
    port: int = 8001
    """0: any that is free."""
    token_file: str | None = None
    """Holds the API key that clients must give; needed beyond loopback."""
    name: str | None = None
    """Of the model; None: what the BS calls its target."""
    max_tokens: int = 256
    """Output tokens of a request that gives no number."""
    temperature: float = 1.0
    """Of a request that gives none."""
    context: int | None = None
    """Positions of prompt and output together; None: what the drafter has, at most 2048."""
    sequences: int = 4
    """Requests decoded at once."""
    queue: int = 16
    """Requests that may wait beside them."""
    prompt_format: str = "auto"
    """auto, plain, chat, or a template with {question}: of conversations."""
    csi: str = "passive"
    """As `RunConfig` has it, and so the rest."""
    auto_rule: str = "rtt"
    hidden_bits: int = 16
    kv_type: Literal["f16", "f32"] = "f16"
    threads: int | None = None
    gpu_layers: int = -1
    timeout_s: float = 60.0


BFLOAT16_TIE = 0.25
"""Four steps of a bfloat16 number between 8 and 16, where logits usually lie."""


def load(kind: type[C], path: Path) -> C:
    """Read a configuration from YAML.

    Raises:
        ConfigError: unreadable, unknown keys, or values of a wrong type.
    """
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as exc:
        raise ConfigError(f"{path}: {exc}{_nearest(str(exc), kind)}") from exc


def _nearest(complaint: str, kind: type[Config]) -> str:
    """The known key nearest to the one that a complaint of msgspec is about, for its end; else nothing."""
    unknown = re.search(r"unknown field `(.*?)`", complaint)
    near = difflib.get_close_matches(unknown[1], _keys(kind), 1) if unknown else []
    return f"; did you mean {near[0]!r}?" if near else ""


def _keys(kind: type[msgspec.Struct]) -> list[str]:
    """Keys of a configuration, and of those within it."""
    fields = msgspec.structs.fields(kind)
    types = [one for field in fields for one in (field.type, *get_args(field.type))]  # its own, or of a tuple of them
    inner = [one for one in types if isinstance(one, type) and issubclass(one, Config)]
    return [*(field.encode_name for field in fields), *(key for one in inner for key in _keys(one))]


def resolved(config: Config) -> dict[str, Any]:
    """The configuration as plain values, to be written beside results."""
    document: dict[str, Any] = msgspec.to_builtins(config)
    return document


def save(config: Config, path: Path) -> None:
    """Write a configuration as YAML that `load` reads back, in one step.

    Raises:
        TestbedError: it cannot be written.
    """
    with whole_file(path) as part:
        part.write_bytes(msgspec.yaml.encode(config))
