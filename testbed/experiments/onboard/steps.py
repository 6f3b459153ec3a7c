"""What a new pair needs, as commands of the testbed that anybody can run alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from testbed.assets.model_names import named
from testbed.bs.engines.target import find
from testbed.errors import BadInput
from testbed.experiments.onboard.config import OnboardConfig
from testbed.protocols.vocabulary import tokenizer_directory

LINK = "uplink_mbps=20,downlink_mbps=20,rtt_ms=50"
"""The channel of the runs, in virtual time."""


class Step(NamedTuple):
    """A command, and what it needs."""

    name: str
    about: str
    command: tuple[str, ...]
    """Words after `testbed`."""
    needs: tuple[str, ...] = ()
    """Steps that must have succeeded."""
    makes: Path | None = None
    """Directory or file that is removed before the command begins anew; None: the command goes on by itself."""


class EndedStep(msgspec.Struct, frozen=True):
    """How a step ended."""

    name: str
    command: str
    seconds: float
    failure: str | None = None
    document: Any = None


def steps(config: OnboardConfig, out: Path) -> list[Step]:
    """All steps in order, without those that are to be left out.

    Raises:
        BadInput: an unknown step to leave out, or a target that is not there.
        ModelError: a name whose model has not been fetched.
    """
    found = [*_measurements(config, out), *_head(config, out), *_predictor(config, out), _check(config, out)]
    known = [one.name for one in found]
    if unknown := [name for name in config.skip if name not in known]:
        raise BadInput(f"unknown step {unknown[0]!r}; known: {', '.join(known)}")
    return [one for one in found if one.name not in config.skip]


def _pair(config: OnboardConfig) -> tuple[str, ...]:
    return ("--model", config.target, "--drafter", config.drafter, "--engine", config.engine, "--dtype", config.dtype)


def _prompts(config: OnboardConfig, dataset: str) -> tuple[str, ...]:
    return ("--dataset", dataset, "--prompt-format", config.prompt_format)


def _run(config: OnboardConfig, methods: str, profile: Path | None, out: Path) -> tuple[str, ...]:
    """A demo in virtual time."""
    channel = f"kind=virtual,{LINK}" + ("" if profile is None else f",profile={profile}")
    return (
        "demo", *_pair(config), "--methods", methods, "--channel", channel, *_prompts(config, config.test),
        "--scorer", config.scorer, "--prompts", str(config.tested), "--max-tokens", str(config.max_tokens),
        "--window", str(config.window), "--out", str(out),
    )  # fmt: skip


def _measurements(config: OnboardConfig, out: Path) -> list[Step]:
    passes = (
        "estimator", "profile", "--model", config.target, "--engine", config.engine, "--dtype", config.dtype,
        "--largest", str(config.largest), "--thin", str(config.thin), "--force", "--out", str(out / "passes.csv"),
    )  # fmt: skip
    return [
        Step("parity", "llama.cpp computes with the drafter what transformers computes",
             ("models", "parity", named(config.drafter, "drafter"))),
        Step("profile", "outputs are the target's own; profile of this machine for virtual time",
             _run(config, "target-only,greedy", None, out / "profile"), makes=out / "profile"),
        Step("passes", "times of verification passes, and their coefficients", passes),
    ]  # fmt: skip


def _head(config: OnboardConfig, out: Path) -> list[Step]:
    tokens, window = ("--max-tokens", str(config.max_tokens)), ("--window", str(config.window))
    data = (*_pair(config), *_prompts(config, config.dataset), "--scorer", config.scorer, *tokens, *window)
    tokenizer = tokenizer_directory(find(named(config.target, "tokenizer")))
    tune = (
        "head", "tune", str(out / "head"), *data, "--tokenizer", str(tokenizer), "--first", str(config.prompts),
        "--prompts", str(config.tuning), "--profile", str(out / "profile" / "profile.yaml"),
    )  # fmt: skip
    return [
        Step("episodes", "mismatches with labels, for the decision head",
             ("head", "collect", *data, "--prompts", str(config.prompts), "--out", str(out / "episodes"))),
        Step("head", "decision head", ("head", "train", str(out / "episodes"), "--out", str(out / "head")),
             ("episodes",), out / "head"),
        Step("theta", "θ of the head", tune, ("profile", "head")),
    ]  # fmt: skip


def _predictor(config: OnboardConfig, out: Path) -> list[Step]:
    collect = (
        "predictor", "collect", *_pair(config), *_prompts(config, config.dataset), "--prompts", str(config.prompts),
        "--max-tokens", str(config.max_tokens), "--window", str(config.window), "--out", str(out / "traces"),
    )  # fmt: skip
    train = (
        "predictor", "train", "--data", str(out / "traces"), "--out", str(out / "predictor"),
        "--trials", str(config.trials),
    )  # fmt: skip
    return [
        Step("traces", "accepted and rejected tokens, for the rejection predictor", collect),
        Step("predictor", "rejection predictor", train, ("traces",), out / "predictor"),
    ]


def _check(config: OnboardConfig, out: Path) -> Step:
    judged = (*_run(config, "target-only,greedy,fh", out / "profile" / "profile.yaml", out / "check"),
              "--judge", "table", "--threshold", "1", "--head", str(out / "head"))  # fmt: skip
    return Step("check", "the pair with its head, on test prompts", judged, ("profile", "theta"), out / "check")
