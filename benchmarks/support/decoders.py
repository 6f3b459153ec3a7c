"""Systems that decode a prompt greedily: the testbed over loopback, and other libraries with the same models."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from support.vocabulary import with_vocabulary

WINDOW = 8
WAITING: dict[str, dict[str, str]] = {
    "testbed": {},
    "openmp": {"GOMP_SPINCOUNT": "300000"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
}
"""Environment variables by how OpenMP's threads wait; anything else is a number of polls."""
POSITIONS = 1024

Decode = Callable[..., dict[str, Any]]
"""Takes prompt ids, output tokens and end ids; returns the output's ids, the target's passes and the seconds."""


class Pair(NamedTuple):
    """Paths of target and drafter in both formats."""

    target: str
    target_gguf: str
    drafter: str
    drafter_gguf: str


def pair_of(model: str | None) -> Pair:
    """The bundled pair; or a fetched model whose own GGUF file drafts for it."""
    from testbed.experiments.inputs.pair import drafter_for, target_for
    from testbed.models.bundle import bundled

    target = target_for("vllm", model)
    drafter = target if model else str(bundled().require("drafter_hf"))
    return Pair(target, target_for("llama", model), drafter, str(drafter_for(model)))


def load(system: str, pair: list[str], options: dict[str, Any]) -> tuple[float, Decode]:
    """Load a system; returns the seconds that it took, and what it decodes with."""
    start_s = time.perf_counter()
    made = SYSTEMS[system](Pair(*pair), **options)
    return time.perf_counter() - start_s, made


def transformers(pair: Pair, assisted: bool) -> Decode:
    """transformers' `generate`, alone or with an assistant model that drafts 8 tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    paths = (pair.target, pair.drafter) if assisted else (pair.target,)
    target, *rest = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval() for path in paths)
    for drafter in rest:
        drafter.generation_config.num_assistant_tokens = WINDOW
        drafter.generation_config.num_assistant_tokens_schedule = "constant"
    passes: list[None] = []
    target.register_forward_pre_hook(lambda *_: passes.append(None))

    def decode(ids: list[int], tokens: int, ends: list[int]) -> dict[str, Any]:
        passes.clear()
        prompt, start_s = torch.tensor([ids]), time.perf_counter()
        with torch.inference_mode():
            output = target.generate(
                prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=tokens,
                eos_token_id=ends, pad_token_id=ends[0], **({"assistant_model": rest[0]} if rest else {}),
            )  # fmt: skip
        took_s = time.perf_counter() - start_s
        return {"s": took_s, "ids": output[0, len(ids) :].tolist(), "passes": len(passes)}

    return decode


def vllm(pair: Pair, compiled: bool, drafted: bool) -> Decode:
    """`vllm.LLM.generate`, alone or with vLLM's own draft model."""
    from testbed.bs.engines.vllm.engine import ENVIRONMENT

    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from vllm import LLM, SamplingParams

    from testbed.bs.engines.vllm.compiled import read_compiled_code

    read_compiled_code()  # or else every start compiles again

    extra: dict[str, Any] = {}
    if drafted:
        extra["speculative_config"] = {
            "method": "draft_model", "model": pair.drafter, "num_speculative_tokens": WINDOW,
        }  # fmt: skip
    llm = LLM(
        pair.target, dtype="float32", enforce_eager=not compiled, skip_tokenizer_init=True, block_size=32,
        kv_cache_memory_bytes=1 << 30, max_model_len=POSITIONS, disable_log_stats=True, seed=0, **extra,
    )  # fmt: skip
    core: Any = getattr(llm.llm_engine.engine_core, "engine_core")  # noqa: B009, in this process
    step, passes = core.step_fn, list[None]()

    def counted() -> Any:
        outputs, ran = step()
        if ran:
            passes.append(None)
        return outputs, ran

    core.step_fn = counted

    def decode(ids: list[int], tokens: int, ends: list[int]) -> dict[str, Any]:
        llm.reset_prefix_cache()
        passes.clear()
        params = SamplingParams(temperature=0, max_tokens=tokens, stop_token_ids=ends, detokenize=False)
        start_s = time.perf_counter()
        (output,) = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
        took_s = time.perf_counter() - start_s
        return {"s": took_s, "ids": list(output.outputs[0].token_ids), "passes": len(passes)}

    return decode


def llama(pair: Pair) -> Decode:
    """llama-cpp-python in this process, without a server."""
    from llama_cpp import Llama

    threads = int(os.environ.get("OMP_NUM_THREADS", 0)) or None
    model = Llama(pair.target_gguf, n_ctx=POSITIONS, n_threads=threads, n_threads_batch=threads, verbose=False)

    def decode(ids: list[int], tokens: int, ends: list[int]) -> dict[str, Any]:
        start_s, found = time.perf_counter(), list[int]()
        for token in model.generate(ids, temp=0, reset=True):
            found.append(token)
            if len(found) == tokens or token in ends:
                break
        return {"s": time.perf_counter() - start_s, "ids": found, "passes": len(found)}

    return decode


def server(pair: Pair, program: str, drafted: bool, threads: int | None) -> Decode:
    """llama.cpp's own server over loopback, alone or with its draft model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    target, drafter = (with_vocabulary(path, folder) for path in (pair.target_gguf, pair.drafter_gguf))
    command = [program, "-m", target, "--port", str(port), "-c", str(POSITIONS), "-np", "1", "--no-webui"]
    if drafted:
        command += ["-md", drafter, "--spec-type", "draft-simple", "--spec-draft-n-max", str(WINDOW)]
    if threads:
        command += ["-t", str(threads)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    atexit.register(process.kill)

    def ask(method: str, path: str, body: str | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            content = reply.read()
            if reply.status != 200:
                raise RuntimeError(f"llama-server answers {reply.status}: {content[:200].decode(errors='replace')}")
            return json.loads(content)

    for _ in range(300):
        if process.poll() is not None:
            raise RuntimeError(f"llama-server ended with code {process.returncode}")
        with contextlib.suppress(OSError, RuntimeError):
            ask("GET", "/health")
            break
        time.sleep(0.2)

    def decode(ids: list[int], tokens: int, ends: list[int]) -> dict[str, Any]:
        body = {"prompt": ids, "n_predict": tokens, "temperature": 0, "cache_prompt": False, "return_tokens": True}
        start_s = time.perf_counter()
        found = ask("POST", "/completion", json.dumps(body))
        took_s = time.perf_counter() - start_s
        passes = len(found["tokens"]) - found["timings"].get("draft_n_accepted", 0)
        return {"s": took_s, "ids": found["tokens"], "passes": passes}

    return decode


def loopback(
    pair: Pair,
    engine: str,
    compiled: bool = False,
    bs_threads: int | None = None,
    ue_threads: int | None = None,
    waiting: str = "testbed",
    drafter_gguf: str | None = None,
    kv_type: Literal["f16", "f32"] | None = None,
) -> Decode:
    """A base-station process, and a UE in this one, over loopback.

    Args:
        waiting: see `WAITING`.
        drafter_gguf: GGUF file of the drafter; None: the pair's.
        kv_type: see `ServeConfig`.
    """
    os.environ.update(WAITING.get(waiting, {"GOMP_SPINCOUNT": waiting}))
    from testbed.bs.engines.target import describe
    from testbed.channel.link import ZmqLink, new_identity
    from testbed.clock import WallClock
    from testbed.config import ServeConfig
    from testbed.experiments.runs.processes import base_station
    from testbed.protocols import protocol
    from testbed.ue.client import Client
    from testbed.ue.llama.drafter import LlamaDrafter
    from testbed.ue.records import RequestRecord
    from testbed.ue.session import DecodingSession
    from testbed.ue.target_only import decode_remotely
    from testbed.ue.windows.fixed import FixedWindow

    model = pair.target_gguf if engine == "llama" else pair.target
    serve = ServeConfig(
        engine=engine, model=model, bind="tcp://127.0.0.1:*", compiled=compiled, threads=bs_threads,
        max_model_len=POSITIONS, kv_type=kv_type,
    )  # fmt: skip
    held = contextlib.ExitStack()
    atexit.register(held.close)
    ready = held.enter_context(base_station(serve))
    loop = asyncio.new_event_loop()
    client = Client(ZmqLink(ready["bind"], new_identity()), WallClock(), 1)
    target = describe(model)
    drafter = LlamaDrafter(
        Path(drafter_gguf or pair.drafter_gguf), target.vocab_size, context=POSITIONS, sequences=1, threads=ue_threads
    )
    loop.run_until_complete(client.connect(target.tokenizer, target.vocab_size))
    held.callback(lambda: loop.run_until_complete(client.close()))

    async def one(ids: list[int], tokens: int, ends: list[int], method: str) -> RequestRecord:
        if method == "target-only":
            return await decode_remotely(client, ids, tokens, ends)
        session = DecodingSession(client, drafter, protocol(method), FixedWindow(WINDOW))
        return await session.decode(ids, tokens, ends)

    def decode(ids: list[int], tokens: int, ends: list[int], method: str = "greedy") -> dict[str, Any]:
        start_s = time.perf_counter()
        found = loop.run_until_complete(one(ids, tokens, ends, method))
        return {"s": time.perf_counter() - start_s, "ids": found.token_ids, "passes": len(found.rounds)}

    return decode


SYSTEMS: dict[str, Callable[..., Decode]] = {
    "transformers": transformers,
    "vllm": vllm,
    "llama": llama,
    "server": server,
    "testbed": loopback,
}
