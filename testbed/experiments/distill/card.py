"""The card of a distilled drafter: what it is, what it was trained on, and what it is worth."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from testbed.assets.fingerprints import model_fingerprint
from testbed.assets.model_names import RELEASES
from testbed.config import resolved
from testbed.experiments.distill.config import DistillConfig
from testbed.experiments.distill.prepare import Distillation
from testbed.files import whole_file

CARD, DOCUMENT = "card.md", "card.json"


def write_card(config: DistillConfig, work: Distillation, facts: dict[str, Any], out: Path) -> dict[str, Any]:
    """Write `card.md` and `card.json`; returns the document."""
    release = RELEASES.get(config.target)
    document = {
        "drafter": str(out / "drafter.gguf"),
        "target": config.target,
        "target_fingerprint": model_fingerprint(work.target.path),
        "license": None if release is None else release.license,
        "source": None if release is None else release.source,
        "layers": list(work.layers),
        "prompts": len(work.prompts),
        "held_out": len(work.held_out),
        **facts,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "config": resolved(config),
    }
    for name, text in ((CARD, render(document)), (DOCUMENT, json.dumps(document, indent=1) + "\n")):
        with whole_file(out / name) as part:
            part.write_text(text, encoding="utf-8")
    return document


def render(card: dict[str, Any]) -> str:
    """The card as Markdown."""
    return f"""# Drafter for {card["target"]}

{_about(card)}

## Acceptance

{_acceptance(card)}

## Time and size

{_cost(card)}

## Training

{_training(card)}
"""


def _about(card: dict[str, Any]) -> str:
    settings = card["config"]
    layers = f"layers {', '.join(map(str, card['layers']))} of the target"
    if settings["hidden"] is not None:
        layers = f"{len(card['layers'])} layers of hidden dimension {card['hidden']}, untrained at first"
    head = "all of the target's ids"
    if card["vocabulary"] is not None:
        head = f"{card['vocabulary']} ids, which are {card['coverage']:.1%} of the tokens of the target's answers"
    origin = "The licence of the target applies to it."
    if card["license"]:
        origin = f"The target is {card['source']}; its licence, {card['license']}, applies to the drafter."
    return (
        f"Distilled by `testbed models distill` from {layers}, with {head}: {card['parameters'] / 1e6:.1f} million "
        f"parameters, {settings['gguf']}. {origin}"
    )


def _acceptance(card: dict[str, Any]) -> str:
    low, high = card["acceptance_interval"]
    shown = "" if low is None else f" (95 % {low:.3f} to {high:.3f} over prompts)"
    positions = card["acceptance_by_position"]
    numbers, shares = (
        " | ".join(map(str, range(1, len(positions) + 1))),
        " | ".join(f"{share:.3f}" for share in positions),
    )
    return f"""On {card["held_out"]} prompts that were not trained on, greedy, window {card["config"]["window"]}: \
{card["acceptance"]:.3f} of the drafted tokens{shown}, {card["acceptance_cond"]:.3f} per token given those before it, \
mean accepted length {card["mean_accepted"]:.2f}. Before the training: {card["looks"][0]["acceptance"]:.3f}.

| position | {numbers} |
|---|{"---|" * len(positions)}
| accepted | {shares} |"""


def _cost(card: dict[str, Any]) -> str:
    lines = [
        f"- {card['bytes'] / 2**20:.1f} MiB",
        f"- {card['draft_ms']:.2f} ms per drafted token under llama.cpp, on {card['machine']}",
        f"- one token of the target: {card['engine_pass_ms']:.2f} ms on {card['config']['engine']}",
    ]
    if card["target_ms"] is not None:
        lines.append(
            f"- the target drafting for itself under llama.cpp: {card['target_ms']:.2f} ms per token, so that the "
            f"drafter takes {card['cost']:.3f} of it"
        )
    return "\n".join(lines)


def _training(card: dict[str, Any]) -> str:
    settings = card["config"]
    rates = [card[tokens] / max(1e-9, card[seconds]) for tokens, seconds in
             (("answer_tokens", "answer_s"), ("trained_tokens", "train_s"))]  # fmt: skip
    looks = "\n".join(
        f"| {one['step']} | {'–' if one['loss'] is None else format(one['loss'], '.3f')} | {one['acceptance']:.3f} |"
        for one in card["looks"]
    )
    more = f", {card['invented']} prompts that the target invented" if card["invented"] else ""
    return f"""Data: {settings["prompts"]}, {card["prompts"]} prompts{more}, and {card["held_out"]} held out; the \
target's own greedy answers of at most {settings["max_tokens"]} tokens, {card["answer_tokens"]} tokens in \
{card["answer_s"]:.0f} s ({rates[0]:.0f} tokens/s).

{card["steps"]} steps of {settings["rows"]} prompts, {card["trained_tokens"]} tokens in {card["train_s"]:.0f} s \
({rates[1]:.0f} tokens/s); loss {settings["kl"]:g} · divergence + {1 - settings["kl"]:g} · cross-entropy; learning \
rate {settings["rate"]:g}; seed {settings["seed"]}.

| step | loss | acceptance |
|---:|---:|---:|
{looks}"""
