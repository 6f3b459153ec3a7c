"""Configurations of the commands that run a base station or a UE.

The command line, `--config FILE`, child processes, sweeps and reference pages are made from their fields
(`testbed.options`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from testbed import fields
from testbed.options import Config, load, option, resolved, save

__all__ = [
    "BFLOAT16_TIE",
    "QUANTISED_TIE",
    "Config",
    "ConnectedConfig",
    "DecodingConfig",
    "DemoConfig",
    "RunConfig",
    "ServeConfig",
    "load",
    "resolved",
    "save",
]

BFLOAT16_TIE = 0.25
"""Four steps of a bfloat16 number between 8 and 16, where logits usually lie."""
QUANTISED_TIE = 1.25
"""llama.cpp rounds a token alone in a pass otherwise than one among others: with SmolLM2's 4-bit weights, gaps between
two of the 20 most likely ids differ by up to 1.15 on 144 places of text.
"""


class DecodingConfig(Config, frozen=True):
    """Options of decoding, common to `ue run` and `demo`."""

    window: fields.Window = 8
    lookahead: fields.Lookahead = 0
    stream: fields.Stream = True
    threshold: fields.Threshold = 0.0
    auto_rule: fields.AutoRule = "rtt"
    hidden_bits: fields.HiddenBits = 16
    states: fields.States = "predicting"
    window_rule: Annotated[
        str, option("When to stop drafting; with any rule but fixed, K is the upper limit.", kinds="window rules")
    ] = "fixed"
    predictor: Annotated[
        str | None,
        option("Rejection predictor. Default: the bundled one, where the rule needs one.", metavar="DIR"),
    ] = None
    temperature: fields.RunTemperature = None
    sampling: fields.SamplingRule = "independent"
    top_k: Annotated[int, option("Sample from the k most likely tokens only; 0 for all.", least=0)] = 0
    top_p: Annotated[
        float,
        option(
            "Nucleus sampling: keep the smallest set of tokens with at least this total probability.", above=0, most=1
        ),
    ] = 1.0
    verification: fields.Verification = "token"
    q_top: fields.QTop = 0
    q_bits: fields.QBits = 16
    dataset: fields.Dataset = "bundled:test"
    prompt_format: fields.PromptFormat = "auto"
    shots: fields.Shots = 0
    scorer: fields.RunScorer = "number"
    run_code: fields.RunCode = False
    max_tokens: fields.MaxTokens = 256
    seed: Annotated[int, option("Seed of the order of methods and of sampling.", least=0, panel="Workload")] = 0


class RunConfig(DecodingConfig, frozen=True):
    """Configuration of `testbed ue run`."""

    bs: fields.Bs = "tcp://127.0.0.1:5555"
    keys: fields.UeKeys = None
    insecure: fields.UeInsecure = False
    failover_s: fields.Failover = 5.0
    timeout_s: fields.Timeout = 60.0
    local_bs: Annotated[
        str | None, option("Address that `colocated` uses beside the link. Default: that of --bs.", metavar="ADDRESS")
    ] = None
    methods: Annotated[
        tuple[str, ...],
        option("Protocols, separated by commas.", flags=("--protocol", "--methods"), kinds="methods", panel="Protocol"),
    ] = ("greedy",)
    speed_tps: Annotated[
        float | None,
        option("Token speed that the BS is to guarantee per request (SLO class). Default: none.", unit="tokens/s"),
    ] = None
    accept_slower: Annotated[bool, option("Accept a lower speed if the BS cannot guarantee that one.")] = False
    drafter: fields.DrafterFile = None
    drafter_memory: fields.DrafterMemory = 0
    tokenizer: fields.Tokenizer = None
    kv_type: fields.KvType = "f16"
    threads: fields.DrafterThreads = None
    gpu_layers: fields.GpuLayers = -1
    limit: Annotated[int | None, option("Prompts from the data set. Default: all.", least=1, panel="Workload")] = None
    warmup: Annotated[int, option("Prompts decoded by every method before measuring.", least=0)] = 1
    concurrency: Annotated[int, option("Requests decoded concurrently.", least=1)] = 1
    csi: fields.Csi = "passive"
    pad: Annotated[
        str | None,
        option(
            "Device profile, by name or file: pad messages to the sizes that its models would send.",
            metavar="PROFILE",
            completes="profiles",
        ),
    ] = None
    gate: Annotated[bool, option("Compare outputs with the target's own.", panel="Checks")] = True
    tie_tolerance: Annotated[
        float, option("Largest logit gap that counts as a tie (outside float32).", least=0, panel="Checks")
    ] = 0.0
    power: Annotated[
        str | None,
        option(
            "Power source: auto, none, jetson, tegrastats, pi, rapl, nvml, several with commas, or a FILE of samples.",
            none="none",
            metavar="SOURCE",
            panel="Power",
        ),
    ] = None
    power_period_s: Annotated[
        float | None, option("Time between two samples. Default: suits the sensor.", least=0.002, most=60, unit="s")
    ] = None
    power_idle_s: Annotated[
        float, option("Measure the idle device for this long before the run.", least=0, most=3600, unit="s")
    ] = 3.0


class DemoConfig(DecodingConfig, frozen=True):
    """Configuration of `testbed demo`."""

    methods: Annotated[
        tuple[str, ...],
        option("Protocols, separated by commas.", flags=("--methods", "--protocol"), kinds="methods", panel="Protocol"),
    ] = ("target-only", "colocated", "greedy", "fh", "sh")
    judge: Annotated[
        str | None,
        option("Judge of mismatched tokens. Default: head if θ > 0 and one is used, else strict.", kinds="judges"),
    ] = None
    head: fields.Head = None
    quality_budget: fields.QualityBudget = None
    engine: fields.Engine = "vllm"
    model: fields.Target = None
    drafter: fields.DrafterFile = None
    drafter_memory: fields.DrafterMemory = 0
    dtype: fields.Dtype = "float32"
    compiled: fields.Compiled = False
    prompts: Annotated[int, option("Prompts to decode.", least=1, panel="Workload")] = 20
    channel: Annotated[
        str,
        option(
            "kind=none; kind=proxy|virtual|tc,uplink_mbps=20,downlink_mbps=20,rtt_ms=50,per=0[,profile=NAME]; "
            "or kind=trace,file=NAME,via=proxy|virtual.",
            panel="Channel",
        ),
    ] = "kind=none"
    csi: Annotated[
        str,
        option(
            "How the UE knows the channel state: oracle (an emulated link's own settings; passive where nothing is "
            "emulated), handshake (RTT before every request), passive (estimated from the rounds), "
            "report[,period_ms=40,delay_ms=10,levels=15,noise_db=1] (rates as a modem reports them), or none."
        ),
    ] = "oracle"
    tie_tolerance: Annotated[
        float | None,
        option(
            f"Largest logit gap that counts as a tie. Default: 0 with float32 weights, {BFLOAT16_TIE:g} with 16 bits, "
            f"{QUANTISED_TIE:g} with fewer.",
            least=0,
            panel="Checks",
        ),
    ] = None


class ConnectedConfig(Config, frozen=True):
    """Options of a UE that drafts for a base station, common to `ue serve` and `chat`."""

    bs: fields.Bs = "tcp://127.0.0.1:5555"
    keys: fields.UeKeys = None
    insecure: fields.UeInsecure = False
    failover_s: fields.Failover = 5.0
    timeout_s: fields.Timeout = 60.0
    window: fields.Window = 8
    lookahead: fields.Lookahead = 0
    threshold: fields.Threshold = 0.0
    hidden_bits: fields.HiddenBits = 16
    drafter: fields.DrafterFile = None
    drafter_memory: fields.DrafterMemory = 0
    tokenizer: fields.Tokenizer = None
    kv_type: fields.KvType = "f16"
    threads: fields.DrafterThreads = None
    gpu_layers: fields.GpuLayers = -1


class ServeConfig(Config, frozen=True):
    """Configuration of `testbed bs serve`."""

    bind: Annotated[
        str, option("Address to listen on; several separated by commas.", metavar="ADDRESS", panel="Network")
    ] = "tcp://127.0.0.1:5555"
    keys: Annotated[
        str | None,
        option("Directory of allowed client keys (`testbed keys`); all others are refused.", metavar="DIR"),
    ] = None
    insecure: Annotated[bool, option("Listen beyond loopback without keys.")] = False
    engine: fields.Engine = "vllm"
    model: fields.Target = None
    dtype: fields.Dtype = "float32"
    max_model_len: Annotated[int | None, option("Longest sequence. Default: the model's.", least=1, unit="tokens")] = (
        None
    )
    tensor_parallel: Annotated[int, option("GPUs that share the model (vLLM).", least=1, unit="GPUs")] = 1
    memory_share: Annotated[float, option("Share of GPU memory for vLLM.", above=0, most=1)] = 0.9
    threads: fields.EngineThreads = None
    prefix_cache: Annotated[
        bool, option("Read committed prefixes from vLLM's cache; otherwise recompute them every round.")
    ] = True
    compiled: fields.Compiled = False
    kv_type: Annotated[
        Literal["f16", "f32"] | None,
        option("Type of llama.cpp's KV cache. Default: f32 for a float32 target, else f16, which is faster."),
    ] = None
    scheduler: Annotated[str, option("Order of verification.", kinds="schedulers", panel="Scheduling")] = "fcfs"
    max_batch: Annotated[int, option("Requests of one engine pass, at most.", least=1)] = 256
    max_batch_tokens: Annotated[int, option("New tokens of one engine pass, at most.", least=1, unit="tokens")] = 8192
    coefficients: Annotated[
        str | None,
        option(
            "Pass times that slo and the window controller expect: a profile, FILE.json of `estimator fit`, or probe "
            "(measure at start). Default: probe.",
            completes="profiles",
        ),
    ] = None
    admission: Annotated[bool, option("Let slo refuse sessions whose token speed it cannot guarantee.")] = True
    chunk_tokens: fields.ChunkTokens = 512
    pace: Annotated[
        str | None,
        option(
            "Emulate a slower machine: passes take at least its pass times.",
            metavar="PROFILE|FILE.json",
            completes="profiles",
        ),
    ] = None
    window_controller: Annotated[
        str | None,
        option(
            "Send window hints to UEs of `ue run --window-rule hinted`: on, or settings such as max_window=8. "
            "Default: no hints."
        ),
    ] = None
    controller: Annotated[
        str | None,
        option(
            "Unix socket to listen on for a controller of the cell, which decides windows, protocols and the worth of "
            "tokens in the window controller's place.",
            metavar="PATH",
        ),
    ] = None
    judge: fields.Judge = None
    head: fields.Head = None
    quality_budget: fields.QualityBudget = None
    max_sessions: Annotated[int, option("Open sessions of all UEs.", least=1, panel="Limits")] = 1024
    max_sessions_per_ue: Annotated[int, option("Open sessions of one UE.", least=1)] = 64
    max_pending: Annotated[int, option("Windows that may wait for the engine.", least=1)] = 512
    max_window: Annotated[int, option("Tokens of a draft window.", least=1, most=2**15, unit="tokens")] = 256
    max_kv_tokens: Annotated[
        int | None,
        option("Tokens of all open sessions. Default: four times the engine's capacity.", least=1, unit="tokens"),
    ] = None
    max_ue_share: Annotated[
        float,
        option(
            "Share of these tokens and windows, and of guaranteed time, that one UE may hold while others are refused.",
            above=0,
            most=1,
        ),
    ] = 0.5
    idle_s: Annotated[float, option("Close a session after this long without a message.", above=0, unit="s")] = 600.0
    metrics: Annotated[
        str | None, option("Write counters to this file as JSON lines.", metavar="FILE", panel="Monitoring")
    ] = None
    metrics_interval_s: Annotated[float, option("Interval of counters.", least=0.01, unit="s")] = 1.0
    power: Annotated[
        str | None,
        option(
            "Count energy in the metrics: auto, none, nvml, rapl, several with commas, or a FILE of samples.",
            none="none",
            metavar="SOURCE",
        ),
    ] = None
    monitor: Annotated[
        str | None,
        option(
            "Serve the live view, /metrics, /healthz and /readyz; beyond loopback, --monitor-token-file is needed.",
            metavar="[HOST:]PORT",
        ),
    ] = None
    monitor_token_file: Annotated[str | None, option("File with the token of viewers.", metavar="FILE")] = None
    monitor_text: Annotated[bool, option("Show the outputs of UEs in the live view.")] = False
