"""Fields that several configurations share."""

from __future__ import annotations

from typing import Annotated, Literal

from testbed.options import option

Bs = Annotated[
    str,
    option(
        "Base-station address; repeat for failover, in order.", repeat=True, metavar="ADDRESS", panel="Base station"
    ),
]
UeKeys = Annotated[
    str | None,
    option("Keys made by `testbed keys new --ue`; repeat in the order of --bs.", repeat=True, metavar="DIR"),
]
UeInsecure = Annotated[bool, option("Connect beyond loopback without keys.")]
Failover = Annotated[
    float,
    option("Silence of a base station after which the next one takes over.", above=0, unit="s"),
]
Timeout = Annotated[float, option("Longest wait for an answer.", above=0, unit="s", flags=("--timeout",))]
DrafterFile = Annotated[
    str | None,
    option(
        "Drafter: GGUF file, or name such as smollm2-draft, suffix or suffix+FILE.gguf. Default: the bundled one.",
        metavar="FILE",
        kinds="drafters",
        panel="Models",
    ),
]
DrafterMemory = Annotated[
    int,
    option(
        "Tokens of earlier requests that the drafter suffix copies from, too; 0: none.",
        least=0, most=1 << 17, panel="Models",
    ),
]  # fmt: skip
Tokenizer = Annotated[
    str | None,
    option(
        "Directory of tokenizer.json, or name of a fetched model. Default: the drafter's if it has a name, else the "
        "bundled one, unless prompts are ids.",
        metavar="DIR",
        completes="fetched models",
    ),
]
SamplingRule = Annotated[
    Literal["independent", "coupled"],
    option(
        "How fh, sh, auto and target-only sample: coupled with noise that UE and BS share, so that drafted tokens are "
        "compared with samples of the target; or independent, where target-only samples by itself and the others are "
        "greedy."
    ),
]
Verification = Annotated[
    Literal["token", "block"],
    option(
        "How rejection sampling accepts drafted tokens: each by itself, or jointly, which commits at least as many per "
        "round on average (rejection)."
    ),
]
QTop = Annotated[
    int,
    option(
        "Most likely ids of the drafter that rejection and split draw from, and rejection uploads; 0 for all.",
        least=0, most=256,
    ),
]  # fmt: skip
QBits = Annotated[int, option("Bits of an uploaded draft probability (rejection, split): 16, 8 or 4.", unit="bits")]
ChunkTokens = Annotated[
    int | None,
    option(
        "New tokens of one prompt in an engine pass; longer prompts continue in later passes, beside other rounds. "
        "With fcfs, also of the further rounds of one UE beside others.",
        least=16, none="all", metavar="<int>|all", unit="tokens",
    ),
]  # fmt: skip
KvType = Annotated[Literal["f16", "f32"], option("Type of the drafter's KV cache.", panel="Models")]
DrafterThreads = Annotated[
    int | None, option("CPU threads of the drafter. Default: as for `bs serve`, 8 at most.", least=1, most=512)
]
EngineThreads = Annotated[
    int | None,
    option("CPU threads of the engine. Default: all cores but one; for large models at least two.", least=1, most=512),
]
GpuLayers = Annotated[int, option("Layers of the drafter on a GPU; -1 for all.", least=-1, unit="layers")]
Csi = Annotated[
    str,
    option(
        "Source of the channel state: none, passive (estimated from the rounds), handshake (the RTT before every "
        "request), FILE.json of `channel measure` (then as passive), passive,radio or FILE.json,radio (with SNR and "
        "level of the Wi-Fi link or modem, read before every request), "
        "trace=NAME, or uplink_mbps=20,downlink_mbps=20,rtt_ms=50.",
        panel="Channel",
    ),
]
Engine = Annotated[str, option("Inference engine.", kinds="engines", panel="Models")]
Target = Annotated[
    str | None,
    option(
        "Target: directory, Hugging Face id, GGUF file (llama), or name of a fetched model such as smollm2. Default: "
        "the bundled one.",
        completes="fetched models",
        panel="Models",
    ),
]
Dtype = Annotated[str, option("Type of the target's weights: float32 or bfloat16.", panel="Models")]
Compiled = Annotated[
    bool,
    option(
        "Compile the target on a CPU (vLLM): shorter passes, longer loading, mainly the first time.", panel="Models"
    ),
]
Dataset = Annotated[
    str,
    option(
        "Prompts: bundled:test, bundled:edit, bundled:chat, FILE.jsonl, .json, .jsonl.gz or .parquet (GSM8K, MT-Bench, "
        "Spec-Bench, SPEED-Bench, HumanEval, chat logs), or hf:NAME[:CONFIG[:SPLIT]].",
        panel="Workload",
    ),
]
Window = Annotated[int, option("Draft window K, drafted tokens per round.", least=1, most=256, panel="Protocol")]
Lookahead = Annotated[
    int | Literal["stream"] | None,
    option(
        "1: draft and send the next window while the verdict is on its way (greedy, coupled, fh, sh). 0: wait for the "
        "verdict. stream: draft on, and send chunks of at most K tokens, which the target waits for (greedy, coupled; "
        "others as 1). auto: chosen from measured times and acceptance, together with windows or chunks of at most K "
        "tokens; without --no-stream, the target may go on alone (greedy, coupled).",
        least=0, most=1, none="auto", metavar="0|1|stream|auto", panel="Protocol",
    ),
]  # fmt: skip
Stream = Annotated[
    bool,
    option(
        "With a drafter without a model, or a hybrid, or --lookahead auto (greedy, coupled): the target decodes on by "
        "itself where that is faster, and drafted tokens join its output. With --no-stream it waits for windows.",
        panel="Protocol",
    ),
]
Threshold = Annotated[
    float, option("Decision threshold θ; 0 rejects every mismatched token.", least=0, most=1, panel="Protocol")
]
AutoRule = Annotated[
    str, option("Rule by which `auto` chooses between fh and sh.", kinds="auto rules", panel="Protocol")
]
HiddenBits = Annotated[int, option("Bits per element of uploaded hidden states (fh, sh): 16, 8 or 4.", unit="bits")]
States = Annotated[
    Literal["predicting", "after"],
    option(
        "Hidden states that heads read: those predicting a drafted token, or those after reading it, which takes one "
        "more draft pass per window."
    ),
]
Head = Annotated[
    str | None,
    option(
        "Decision head: a directory, `bundled` or `bundled:NAME`. Default: bundled, if one is needed.", panel="Judging"
    ),
]
QualityBudget = Annotated[
    float | None, option("Share of answers that judge `budget` may change, such as 0.01.", above=0, below=1)
]
Judge = Annotated[
    str | None,
    option("Judge of mismatched tokens. Default: head if one is given, else strict.", kinds="judges", panel="Judging"),
]
MaxTokens = Annotated[int, option("Output tokens per request, at most.", least=1, most=2**20, panel="Workload")]
PromptFormat = Annotated[str, option("Prompt format: auto, plain, chat, or a template with {question}.")]
Prompts = Annotated[int, option("Prompts to decode.", least=1, panel="Workload")]
First = Annotated[int, option("Prompts of the data set to skip.", least=0, panel="Workload")]
Shots = Annotated[int, option("Worked examples before every question.", least=0)]
Scorer = Annotated[
    str, option("Extracts the final answer: number, exact, choice, package.module:function or file.py:function.")
]
RunScorer = Annotated[
    str,
    option(
        "Scorer of the answers: number, exact, choice, code (with --run-code), agreement[:NAME] (with the target's own "
        "answer), package.module:function or file.py:function."
    ),
]
RunCode = Annotated[
    bool, option("Run programs that the model wrote (--scorer code), with limits that are no safe isolation.")
]
RunTemperature = Annotated[
    float | None,
    option(
        "Sampling temperature for coupled, rejection, split and target-only; 0 for greedy. Default: 1 if one of "
        "the first three or coupled sampling is selected, else 0.",
        least=0,
        panel="Sampling",
    ),
]
Seed = Annotated[int, option("Seed of the random numbers.", least=0, panel="Workload")]
Pace = Annotated[
    str | None,
    option(
        "Emulate another machine's pass times (see `bs serve --pace`).",
        metavar="PROFILE|FILE.json",
        completes="profiles",
        panel="Models",
    ),
]
