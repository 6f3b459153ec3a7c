"""The card of a pair: what onboarding measured and made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.config import resolved
from testbed.experiments.onboard.config import OnboardConfig
from testbed.experiments.onboard.steps import LINK, EndedStep, Step
from testbed.files import whole_file

COLUMNS = {
    "method": "{}", "requests": "{}", "lossless": "{}", "acceptance": "{:.3f}", "mean_acceptance_length": "{:.2f}",
    "latency_s": "{:.3f}", "speedup_target_only": "{:.2f}", "accuracy": "{:.3f}",
}  # fmt: skip


def write_onboarding(
    config: OnboardConfig, steps: Sequence[Step], records: Mapping[str, EndedStep], out: Path
) -> dict[str, Any]:
    """Write `card.md` and `card.json`; returns the document."""
    documents = {name: one.document for name, one in records.items() if one.failure is None}
    theta = (documents.get("theta") or {}).get("rows") or [{}]
    card = {
        "target": config.target,
        "drafter": config.drafter,
        "steps": [
            {"step": one.name, "seconds": records[one.name].seconds, "failure": records[one.name].failure,
             "command": records[one.name].command} for one in steps
        ],
        "lossless": _lossless(documents.get("profile")),
        "rows": (documents.get("check") or documents.get("profile") or {}).get("rows", []),
        "parity": documents.get("parity"),
        "passes": documents.get("passes"),
        "head": documents.get("head"),
        "thresholds": theta[0].get("thresholds"),
        "predictor": documents.get("predictor"),
        "config": resolved(config),
    }  # fmt: skip
    for name, text in (("card.md", render_pair(card)), ("card.json", json.dumps(card, indent=1) + "\n")):
        with whole_file(out / name) as part:
            part.write_text(text, encoding="utf-8")
    return card


def _lossless(document: Mapping[str, Any] | None) -> bool | None:
    """Whether every greedy output was the target's own; None: not known."""
    found = [row.get("lossless") for row in (document or {}).get("rows", []) if row["method"] == "greedy"]
    return found[0] if found else None


def render_pair(card: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    steps = "\n".join(f"| {one['step']} | {one['failure'] or 'done'} | {one['seconds']:.0f} |" for one in card["steps"])
    return f"""# {card["drafter"]} drafting for {card["target"]}

{_facts(card)}

## On test prompts

{_table(card["rows"])}

Virtual time with the profile of this machine, {LINK}.

## Steps

| step | how it ended | seconds |
|---|---|---:|
{steps}
"""


def _facts(card: Mapping[str, Any]) -> str:
    lines = []
    if card["parity"] is not None:
        share = card["parity"]["argmax_agreement"]
        lines.append(
            f"- llama.cpp and transformers agree about the drafter's next token at {share:.1%} of the positions"
        )
    if card["lossless"] is not None:
        lines.append(f"- greedy outputs are{'' if card['lossless'] else ' NOT'} the target's own")
    if card["passes"] is not None:
        lines.append(f"- pass times: R² {card['passes']['unseen']['r2']:.3f} on passes that were not fitted")
    if card["head"] is not None:
        lines.append(f"- decision head: AUC {card['head']['auc']:.3f} on held-out mismatches")
    if card["thresholds"] is not None:
        lines.append("- θ: " + ", ".join(f"{value:g} at quality {q:.3g}" for q, value in card["thresholds"]))
    if card["predictor"] is not None:
        best = next(row for row in card["predictor"]["rows"] if row["model"] == card["predictor"]["best"])
        lines.append(f"- rejection predictor: {best['model']}, AUC {best['auc']:.3f} on validation prompts")
    return "\n".join(lines)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "No run."
    head = f"| {' | '.join(COLUMNS)} |\n|---|{'---:|' * (len(COLUMNS) - 1)}"
    cells = [
        " | ".join("–" if row.get(name) is None else form.format(row[name]) for name, form in COLUMNS.items())
        for row in rows
    ]
    return "\n".join([head, *(f"| {line} |" for line in cells)])
