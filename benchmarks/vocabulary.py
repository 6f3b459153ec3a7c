"""Acceptance of a drafter that knows only a part of the target's tokens.

    python benchmarks/vocabulary.py [--prompts 200] [--window 4] [--shares 1,0.5,0.25,0.1] [--json] [--csv FILE]

The bundled pair. Known are the ids that the target says most often in its answers to 200 calibration prompts; the
other tokens of a text are read as the longest known ones that spell them, and are never drafted (`IdMap`). Rounds are
greedy, on the target's answers to prompts of the test split. Intervals: 95 % bootstrap over prompts.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from support.commands import command_line, measure

CALIBRATION = 200
MAX_TOKENS = 256


def main() -> int:
    """Run the benchmark and print the results."""
    return measure(lambda *_: None, parse, run, show)  # type: ignore[arg-type]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--window", type=int, default=4)
    parser.add_argument("--shares", default="1,0.75,0.5,0.35,0.25,0.15,0.1,0.05", help="shares of the ids")
    parser.add_argument("--csv", type=Path, help="file of rows")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure every share."""
    from testbed.experiments.results.csv_file import write_csv
    from testbed.models.bundle import bundled
    from testbed.protocols.vocabulary import token_ids

    ids = token_ids(bundled().require("tokenizer"))
    seen, tested = answers("bundled:calibration", CALIBRATION), answers("bundled:test", options.prompts)
    counts = np.bincount(np.concatenate([one.output for one in seen]), minlength=len(ids))
    often = np.argsort(-counts, kind="stable")
    rows = [
        row(ids, often[: round(float(share) * len(ids))], tested, options.window) for share in options.shares.split(",")
    ]
    if options.csv:
        write_csv(options.csv, rows)
    return {"prompts": options.prompts, "window": options.window, "rows": rows}


def answers(dataset: str, count: int) -> list[Any]:
    """The target's own answers, greedy."""
    from testbed.bs.engines.target import describe
    from testbed.experiments.distill.answers import TargetAnswer
    from testbed.experiments.inputs.datasets import load_dataset
    from testbed.experiments.inputs.formats import prompt_ids
    from testbed.experiments.inputs.pair import target_for
    from testbed.models.distill.generate import BatchGenerator, Generation
    from testbed.ue.prompts import Prompter

    target = describe(target_for("transformers", None))
    prompter = Prompter(target.path)
    prompts = [prompt_ids(prompter, example) for example in load_dataset(dataset, count)]
    found = BatchGenerator(target.path, "float32", target.vocab_size).answers(
        prompts, Generation(MAX_TOKENS, target.end_ids, 1, 0.0, 0)
    )
    return [TargetAnswer(np.array(prompt, np.int32), *one) for prompt, one in zip(prompts, found, strict=True)]


def row(ids: dict[str, int], known: np.ndarray, tested: Sequence[Any], window: int) -> dict[str, Any]:
    """Acceptance of a drafter that knows these ids."""
    from testbed.experiments.distill.acceptance import replay
    from testbed.intervals import Bootstrap
    from testbed.models.bundle import bundled
    from testbed.ue.drafters.mapped import IdMap, MappedDrafter
    from testbed.ue.load_drafter import DrafterOptions, load_drafter

    mine = set(known.tolist())
    own = {token if number in mine else f"unknown {number}": number for token, number in ids.items()}
    drafter = load_drafter(str(bundled().require("drafter")), DrafterOptions(len(ids), context=1024))
    try:
        mapped = MappedDrafter(drafter, IdMap(own, ids))
        rounds = replay(mapped, tested, window)
    finally:
        drafter.close()
    drafted, accepted = (
        [sum(getattr(one, name) for one in each) for each in rounds] for name in ("drafted", "accepted")
    )
    drawn = Bootstrap({"drafted": drafted, "accepted": accepted, "rounds": [len(each) for each in rounds]})
    said = np.concatenate([one.output for one in tested])
    found: dict[str, Any] = {
        "ids": len(known), "share": len(known) / len(ids), "said": float(np.isin(said, known).mean()),
        "prompts": len(tested), "window": window,
    }  # fmt: skip
    for name, below, bonus in (("acceptance", "drafted", 0.0), ("mean_acceptance_length", "rounds", 1.0)):
        ratio = drawn.ratio("accepted", below)
        found |= {name: ratio.value + bonus, f"{name}_low": ratio.low + bonus, f"{name}_high": ratio.high + bonus}
    return found


def show(document: dict[str, Any]) -> None:
    """Print a line for each share."""
    for one in document["rows"]:
        low, high = one["acceptance_low"], one["acceptance_high"]
        print(
            f"{one['ids']:6} ids ({one['share']:5.0%}), {one['said']:6.1%} of what the target says: "
            f"acceptance {one['acceptance']:.3f} ({low:.3f} … {high:.3f}), "
            f"mean acceptance length {one['mean_acceptance_length']:.2f}"
        )


if __name__ == "__main__":
    raise SystemExit(main())
