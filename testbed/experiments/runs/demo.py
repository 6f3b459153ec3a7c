"""`testbed demo`: a BS and a UE on this machine, every method over one link, one table, one run directory.

Where the link is real or emulated, BS, UE and proxy are processes; where it is virtual, both ends run in this one.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from testbed.bs.engines.registry import ENGINES
from testbed.bs.engines.target import describe, find
from testbed.bs.judging.base import Judge
from testbed.bs.judging.registry import JUDGES, judge_kind, make_judge
from testbed.channel.spec import ChannelSpec, parse_channel, tc_config
from testbed.channel.tc.links import Namespaces
from testbed.config import (
    BFLOAT16_TIE,
    QUANTISED_TIE,
    DecodingConfig,
    DemoConfig,
    RunConfig,
    ServeConfig,
    resolved,
    save,
)
from testbed.errors import BadInput, GateError
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.inputs.pair import target_for
from testbed.experiments.inputs.profile import load_profile
from testbed.experiments.inputs.state import csi_text
from testbed.experiments.report.page import write_report
from testbed.experiments.results import directory as results
from testbed.experiments.results.claims import CONFIG, claimed
from testbed.experiments.runs.calibrate import calibrate
from testbed.experiments.runs.execute import Watch
from testbed.experiments.runs.journal import NAME as JOURNAL
from testbed.experiments.runs.journal import PROFILE, check_folder
from testbed.experiments.runs.prepare import check_window_rule, prepare
from testbed.experiments.runs.processes import base_station, proxy, user_equipment
from testbed.experiments.runs.progress import LiveProgress
from testbed.experiments.runs.uerun import result_of, write_run
from testbed.experiments.runs.virtual import counted_bytes, load_models, run_virtual
from testbed.llama.gguf_rules import check_gguf, is_float, is_float32
from testbed.models.bundle import BUNDLED, bundled, head_directory
from testbed.protocols.adaptive import RULES
from testbed.protocols.methods import check_lookahead, run_method
from testbed.protocols.quantise import check_bits
from testbed.protocols.vocabulary import fingerprint
from testbed.ue.load_drafter import check_states, needs_target
from testbed.ue.run import sampling_of
from testbed.ue.windows.registry import WINDOW_RULES

Say = Callable[[str], None]


def run_demo(config: DemoConfig, out: Path, say: Say, resume: bool = False) -> dict[str, Any]:
    """Run the demo and write its run directory; returns the document of `summary.json`.

    Args:
        resume: continue the unfinished demo in `out`. In virtual time it begins anew, with the profile measured then.

    Raises:
        BadInput: anything in the configuration that cannot be used; nothing was started then.
        GateError: an output of a strict method differs from the target's own.
    """
    channel = check_demo(config)
    if not (resume and (out / JOURNAL).exists()):
        check_folder(out)
    with claimed(config, out, "demo", None if resume else lambda _: None, resumes=False):
        run = _virtual if channel.is_virtual else _real
        rows, pids = run(config, channel, out, say, resume)
        save(config, out / CONFIG)
        return _concluded(config, out, [labelled(row, config) for row in rows], pids)


def _concluded(config: DemoConfig, out: Path, rows: list[dict[str, Any]], pids: dict[str, int]) -> dict[str, Any]:
    """Write summary and report, and check that strict methods are lossless."""
    summary = results.summary(resolved(config), config.seed, {**results.host(), "pids": pids}, rows)
    results.write_summary(out, summary)
    write_report([out], out)
    strict = JUDGES[judging(config)[0]].lossless
    held = [r for r in summary["rows"] if run_method(r["method"]).exact(config.threshold, strict)]
    lossy = [r["method"] for r in held if r["lossless"] is False]
    if lossy:
        raise GateError(f"outputs of {', '.join(lossy)} differ from the target's own; see {out}/requests.parquet")
    return summary


def check_demo(config: DemoConfig) -> ChannelSpec:
    """Refuse what cannot run, before anything is started; returns the channel."""
    for method in config.methods:
        run_method(method)
    check_lookahead(config.lookahead, config.methods)
    check_window_rule(config.window_rule, config.predictor)
    engine = ENGINES.choose(config.engine)
    if config.drafter:
        check_states(config.drafter, config.methods, config.states)
        if needs_target(config.drafter) and not config.model:
            raise BadInput("a drafter of your own needs its target: give --model too")
    if config.auto_rule not in RULES:
        raise BadInput(f"unknown auto-rule {config.auto_rule!r}; known: {', '.join(RULES)}")
    check_bits(config.hidden_bits)
    sampling_of(config)
    check_judge(config)
    _check_pair(config)
    channel = parse_channel(config.channel)
    if channel.file is not None:
        channel.trace()
    if channel.profile is not None:
        load_profile(channel.profile)
    if channel.kind == "tc":
        tc_config(channel, namespaces=1)
    csi_text(channel, kind=config.csi)
    if channel.is_virtual and not engine.needs_model:
        raise BadInput("a virtual demo needs a real target: --engine vllm, transformers or llama")
    load_dataset(config.dataset, config.prompts)
    return channel


def _check_pair(config: DemoConfig) -> None:
    """Refuse the bundled drafter for a target with another tokenizer, before anything is started."""
    if config.model is None or config.drafter is not None or not ENGINES.choose(config.engine).needs_model:
        return
    own = fingerprint(bundled().require("tokenizer"))
    if describe(str(_model(config))).tokenizer != own:
        raise BadInput(
            f"the bundled drafter has another tokenizer than {config.model}: give --drafter FILE.gguf, a small model "
            "of the same family (testbed models export writes one)"
        )


# ---------------------------------------------------------------- the judge


def judging(config: DemoConfig) -> tuple[str, str | None]:
    """Kind of the judge and the head that it takes: by default none at a threshold of 0, else the bundled one.

    Raises:
        BadInput: options that do not go together.
    """
    asked = config.threshold > 0 and any(run_method(method).judged for method in config.methods)
    given = (config.judge, config.head, config.quality_budget)
    kind = judge_kind("head" if asked and given == (None, None, None) else config.judge, *given[1:])
    entry = JUDGES[kind]
    if not entry.takes_threshold and config.threshold == 0:
        raise BadInput(f"at threshold 0 judge {kind} keeps no mismatch; give a threshold up to 1")
    return kind, (config.head or BUNDLED) if entry.needs_head else None


def check_judge(config: DemoConfig) -> None:
    """Refuse a judge that the base station would refuse.

    Raises:
        BadInput: options that do not go together, no head where one is needed, or another target's.
    """
    if judging(config)[1] is not None:
        judge_of(config)


def judge_of(config: DemoConfig) -> Judge:
    """The judge of a run."""
    kind, head = judging(config)
    target = find(str(_model(config))) if ENGINES.choose(config.engine).needs_model else None
    return make_judge(kind, head_directory(head) if head else None, config.quality_budget, target)


def labelled(row: dict[str, Any], config: DemoConfig) -> dict[str, Any]:
    """A row with its link, where that is emulated and constant, the source of its channel state, and the judge and head
    of its method; θ only where the judge uses it.
    """
    truth = parse_channel(config.channel).csi()
    if truth is not None:
        link = ("uplink_mbps", "downlink_mbps", "rtt_ms")
        row = {**row, **{name: getattr(truth, name) for name in link}, "per": truth.per_up}
    row = {**row, "csi": config.csi}
    if not run_method(row["method"]).judged:
        return {**row, "judge": None, "head": None}
    kind, head = judging(config)
    return {
        **row,
        "threshold": row["threshold"] if JUDGES[kind].takes_threshold else None,
        "judge": kind if config.quality_budget is None else f"{kind} {config.quality_budget:g}",
        "head": head,
    }


# ---------------------------------------------------------------- processes


def _real(
    config: DemoConfig, channel: ChannelSpec, out: Path, say: Say, resume: bool
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """BS and UE as processes; the link between them is loopback, the proxy's, or tc's."""
    with tempfile.TemporaryDirectory(prefix="testbed-") as scratch, contextlib.ExitStack() as held:
        local = f"ipc://{scratch}/bs.sock"
        host, prefix = held.enter_context(_place(channel))
        say(f"starting the base station ({config.engine})")
        alone = channel.kind == "tc"  # the link is between two namespaces of this machine: no keys needed
        serve = msgspec.structs.replace(serve_config(config), bind=f"tcp://{host}:*,{local}", insecure=alone)
        ready = held.enter_context(base_station(serve, say=say))
        bind = ready["bind"].split(",")[0]
        say(f"base station ready on {bind} (pid {ready['pid']}); starting the UE")
        pids, origin_s = {"bs": ready["pid"], "demo": os.getpid()}, 0.0
        if channel.is_proxied:
            relay = held.enter_context(proxy(channel, bind))
            bind, origin_s, pids["proxy"] = relay["listen"], relay["origin_s"], relay["pid"]
        link = {"bs": bind, "local_bs": local, "insecure": alone, "csi": csi_text(channel, origin_s, config.csi)}
        ue = msgspec.structs.replace(run_config(config), **link)
        document, pids["ue"] = user_equipment(ue, out, prefix, resume and (out / JOURNAL).exists())
    return document["rows"], pids


@contextlib.contextmanager
def _place(channel: ChannelSpec) -> Iterator[tuple[str, list[str]]]:
    """Address of the BS, and the command prefix of UE processes: under tc, they run in a namespace of their own."""
    if channel.kind != "tc":
        yield "127.0.0.1", []
        return
    with Namespaces([tc_config(channel, namespaces=1).link]) as spaces:
        yield spaces.host_address(0), spaces.prefix(0)


def serve_config(config: DemoConfig) -> ServeConfig:
    """Configuration of a demo's base station, on a free port of loopback."""
    kind, head = judging(config)
    return ServeConfig(
        bind="tcp://127.0.0.1:*",
        engine=config.engine,
        model=str(_model(config)) if ENGINES.choose(config.engine).needs_model else None,
        dtype=config.dtype,
        compiled=config.compiled,
        judge=kind,
        head=str(head_directory(head)) if head else None,
        quality_budget=config.quality_budget,
        window_controller="on" if WINDOW_RULES[config.window_rule].hinted else None,
    )


def run_config(config: DemoConfig) -> RunConfig:
    """Configuration of a demo's UE, with no link yet."""
    return RunConfig(
        **{name: getattr(config, name) for name in DecodingConfig.__struct_fields__},
        methods=config.methods,
        limit=config.prompts,
        drafter=config.drafter,
        drafter_memory=config.drafter_memory,
        tokenizer=config.model if config.drafter else None,
        tie_tolerance=_tolerance(config),
    )


def _model(config: DemoConfig) -> Path:
    return Path(target_for(config.engine, config.model))


def _tolerance(config: DemoConfig) -> float:
    if config.tie_tolerance is not None:
        return config.tie_tolerance
    if ENGINES.choose(config.engine).gguf:
        header = check_gguf(_model(config))
        return 0.0 if is_float32(header) else BFLOAT16_TIE if is_float(header) else QUANTISED_TIE
    return 0.0 if config.dtype == "float32" else BFLOAT16_TIE


# ---------------------------------------------------------------- virtual time


def _virtual(
    config: DemoConfig, channel: ChannelSpec, out: Path, say: Say, resume: bool
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Both ends in this process and virtual time; compute times from a profile, or measured first."""
    run = run_config(config)
    work = prepare(run, turns=True)
    measured = out / PROFILE
    if channel.profile is not None or (resume and measured.exists()):
        profile = load_profile(channel.profile or str(measured))
    else:
        windows = (max(1, config.window // 2), config.window, min(2 * config.window, 64))
        rtt_ms = float(np.mean(trace.rtt_ms)) if (trace := channel.trace()) else channel.rtt_ms
        say(
            "no profile given: measuring drafts and passes of this machine first, for some minutes; ,profile=NAME in "
            "--channel takes known times"
        )
        profile = calibrate(serve_config(config), run, windows, rtt_ms, say)
        save(profile, measured)
    say(f"virtual run with profile {profile.name} ({profile.about})")
    models = load_models(_model(config), config.engine, config.dtype, run, work, judging(config)[1] is not None)
    try:
        with LiveProgress(len(work.prompts) * len(run.methods)) as live:
            watch = Watch(live.round, live.done)
            outcomes = run_virtual(run, work, watch, channel, profile, models, judge=judge_of(config), csi=config.csi)
    finally:
        models.close()
    result = result_of(run, work, outcomes, counted=counted_bytes(profile))
    save(profile, measured)
    write_run(out, run, work, result)
    return result.rows, {"demo": os.getpid()}
