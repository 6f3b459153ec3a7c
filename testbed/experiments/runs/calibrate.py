"""Measuring this machine once: compute times of a real pair of processes, as a profile for virtual runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from testbed.channel.spec import ChannelSpec
from testbed.config import RunConfig, ServeConfig
from testbed.errors import TestbedError
from testbed.experiments.inputs.profile import Hot, LinearDraft, LinearVerify, Profile
from testbed.experiments.results import directory as results
from testbed.experiments.runs.processes import base_station, proxy, user_equipment
from testbed.protocols import TARGET_ONLY
from testbed.protocols.greedy import Greedy
from testbed.protocols.methods import COLOCATED, run_method

PROMPTS = 6
"""Decoded at every window; enough for some hundred rounds."""
HOT_WITHIN_S = 0.02
"""Work after a shorter pause counts as hot: longer than a co-located round's parts, shorter than a wireless RTT."""


def calibrate(
    serve: ServeConfig,
    run: RunConfig,
    windows: Sequence[int],
    rtt_ms: float,
    say: Callable[[str], None],
) -> Profile:
    """Decode a few prompts with real processes at several windows, and fit the times of their rounds.

    The processes talk through a relay with the run's own RTT and no rate: a pass after a wait takes longer than one
    that follows hot on the last (caches, clocks), by half as much again on some machines.

    Args:
        serve: the base station.
        run: names the prompts, the models and the output tokens; its other options stay at their defaults.

    Raises:
        BadInput: a process refused its configuration.
        TestbedError: one failed, or the rounds do not suffice for a fit.
    """
    import pyarrow.parquet as pq

    link = ChannelSpec(kind="proxy", rtt_ms=rtt_ms)
    rounds: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="testbed-") as scratch,
        base_station(serve, say=say) as ready,
        proxy(link, ready["bind"]) as relay,
    ):
        for done, window in enumerate(kinds := list(dict.fromkeys(windows))):
            say(f"measuring this machine: {PROMPTS} prompts at window {window} ({done + 1} of {len(kinds)})")
            out = Path(scratch) / str(window)
            user_equipment(measured_run(run, relay["listen"], ready["bind"], window), out)
            rounds += pq.read_table(out / "rounds.parquet").to_pylist()
    return fit(rounds, results.host()["cpu"], rtt_ms)


def measured_run(run: RunConfig, link: str, near: str, window: int) -> RunConfig:
    """The run that is measured: rounds one after another, since the times of a round in a stream, or of one drafted
    ahead, do not add up to its duration.
    """
    return RunConfig(
        bs=link, local_bs=near, methods=(Greedy.kind, COLOCATED, TARGET_ONLY), window=window, limit=PROMPTS,
        gate=False, csi="none", dataset=run.dataset, max_tokens=run.max_tokens, drafter=run.drafter,
        tokenizer=run.tokenizer, stream=False,
    )  # fmt: skip


def fit(rounds: Sequence[dict[str, Any]], about: str, rtt_ms: float) -> Profile:
    """A profile from rows of `rounds.parquet`: greedy rounds over a link that took `rtt_ms` of each, and, for work that
    follows hot on the last, those of `colocated` and `target-only`.

    Drafting: base + per token, and the prompt's share of the first round. Verifying: base + per new token; a pass
    without a draft is cheaper than that line says, and has a time of its own. What is
    left of a round is software on both ends and between them; half of it goes each way.

    Raises:
        TestbedError: fewer than ten later rounds of a method, or all of one window.
    """
    near = [r for r in rounds if run_method(r["method"]).on_bs]
    alone = [r for r in rounds if not run_method(r["method"]).drafts]
    far = [r for r in rounds if r not in near and r not in alone]
    draft, verify, stack_s = _fit(far, rtt_ms / 1e3)
    hot_draft, hot_verify, hot_stack_s = _fit(near, 0.0)
    one_s = float(np.median(column(alone, "verify_s"))) if alone else hot_verify.base_s + hot_verify.per_new_s
    hot_verify = msgspec.structs.replace(hot_verify, undrafted_s=one_s - hot_verify.base_s - hot_verify.per_new_s)
    return Profile(
        name="measured",
        about=about,
        source=f"{len(rounds)} rounds on this machine, a relay with an RTT of {rtt_ms:g} ms between its processes",
        assumptions=(
            "Times are linear in tokens; what a round spends elsewhere is the same for all, half of it each way.",
        ),
        draft=draft,
        verify=verify,
        hot=Hot(within_s=HOT_WITHIN_S, draft=hot_draft, verify=hot_verify, stack_s=hot_stack_s),
        stack_s=stack_s,
    )


def _fit(rounds: Sequence[dict[str, Any]], rtt_s: float) -> tuple[LinearDraft, LinearVerify, float]:
    """Drafting, verifying, and what is left of a round, one way."""
    first = [r for r in rounds if r["round"] == 0]
    later = [r for r in rounds if r["round"] > 0]
    if len(later) < 10 or len({r["drafted"] for r in later}) < 2 or not first:
        raise TestbedError("too few rounds to measure this machine by; give longer outputs, or a profile")
    base_s, per_token_s = line(column(later, "drafted"), column(later, "draft_s"))
    opening = column(first, "draft_s") - base_s - per_token_s * column(first, "drafted")
    prefill_s = max(0.0, float(np.median(opening / column(first, "base_len"))))
    new = np.array([r["drafted"] + (1 if r["round"] else r["base_len"]) for r in rounds], float)
    verify_base_s, verify_s = line(new, column(rounds, "verify_s"))
    left = sum(column(later, name) for name in ("link_s", "queue_s", "judge_s", "overhead_s"))
    return (
        LinearDraft(per_token_s=per_token_s, base_s=base_s, prefill_per_token_s=prefill_s),
        LinearVerify(base_s=verify_base_s, per_new_s=verify_s),
        max(0.0, float(np.mean(left)) - rtt_s) / 2,
    )


def column(rows: Sequence[Mapping[str, Any]], name: str) -> NDArray[np.float64]:
    """One column of rows [n]."""
    return np.array([r[name] for r in rows], np.float64)


def line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Least squares of y on x: intercept and slope, neither negative."""
    slope, base = (float(v) for v in np.polyfit(x, y, 1))
    if slope < 0:
        return float(y.mean()), 0.0
    if base < 0:
        return 0.0, float((x @ y) / (x @ x))
    return base, slope
