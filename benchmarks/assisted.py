"""Acceptance in the testbed beside transformers' assisted generation: same pair, same prompts, same window.

    python benchmarks/assisted.py [--model NAME] [--layers 24] [--prompts 10] [--tokens 64] [--window 4]
        [--dataset bundled:test] [--json] [--out FILE.csv]

The default is the bundled pair. `--model smollm2` takes the fetched model; it has no drafter of the same vocabulary, so
that some of its own layers, as they are, draft for it (`--layers`, as for `models distill`). Targets and assistant are
computed by transformers in float32; the testbed's drafter is the same weights in float32 under llama.cpp. `--out` keeps
the rounds, and the drafted and accepted tokens of every prompt. Intervals: 95 % bootstrap over prompts, of the
quotient over paired prompts.
"""

from __future__ import annotations

import argparse
import csv
import functools
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.commands import command_line, measure

from tests.support.assisted import Assisted, Round, own_rounds

COLUMNS = ("prompt", "rounds", "drafted", "accepted", "assisted_rounds", "assisted_drafted", "assisted_accepted")
FIGURES = {"acceptance": ("accepted", "drafted"), "mean_acceptance_length": ("accepted", "rounds")}
SIDES = ("", "assisted_")
"""Prefixes of the columns of the testbed, and of transformers."""


def main() -> int:
    """Decode all prompts on both sides and print the figures."""
    return measure(lambda *_: sys.exit("it has no workers"), parse, run, show)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--model", help="name of a fetched model; default: the bundled pair")
    parser.add_argument("--layers", default="24", help="the model's layers that draft for it: how many, or which")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--window", type=int, default=4)
    parser.add_argument("--dataset", default="bundled:test", help="as for `testbed demo`")
    parser.add_argument("--out", type=Path, help="file for the rows")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Decode all prompts on both sides; returns figures with intervals."""
    from testbed.bs.engines.target import describe
    from testbed.config import RunConfig
    from testbed.experiments.inputs.pair import target_for
    from testbed.experiments.runs.prepare import prepare

    target = describe(target_for("transformers", options.model))
    with tempfile.TemporaryDirectory() as folder:
        directory, file = drafter_of(options, target.path, Path(folder))
        config = RunConfig(
            methods=("greedy",), drafter=str(file), tokenizer=str(target.path), dataset=options.dataset,
            window=options.window, limit=options.prompts, max_tokens=options.tokens, warmup=0, kv_type="f32",
        )  # fmt: skip
        work = prepare(config)
        own = own_rounds(target.path, config, work)
        assisted = Assisted(target.path, directory, options.window)
        theirs = [assisted.rounds(prompt.ids, options.tokens, target.end_ids) for prompt in work.prompts]
    rows = [row(number, *pair) for number, pair in enumerate(zip(own, theirs, strict=True))]
    if options.out:
        with options.out.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return {"model": options.model or "bundled", "prompts": len(rows), "window": options.window, **summed(rows)}


def drafter_of(options: argparse.Namespace, target: Path, folder: Path) -> tuple[Path, Path]:
    """The drafter as a Hugging Face directory, and as a GGUF file in float32."""
    from testbed.files import json_object
    from testbed.models.bundle import bundled
    from testbed.models.distill.student import StudentShape, chosen_layers, make_student
    from testbed.models.export import export_gguf

    if options.model is None:
        return bundled().require("drafter_hf"), bundled().require("drafter")
    count = int(json_object(target / "config.json")["num_hidden_layers"])
    make_student(target, StudentShape(chosen_layers(options.layers, count))).save_pretrained(folder / "drafter")
    export_gguf(folder / "drafter", folder / "drafter.gguf")
    return folder / "drafter", folder / "drafter.gguf"


def row(prompt: int, own: Sequence[Round], theirs: Sequence[Round]) -> dict[str, int]:
    """Sums over the rounds of a prompt on both sides."""
    sums = [
        (len(rounds), sum(one.drafted for one in rounds), sum(one.accepted for one in rounds))
        for rounds in (own, theirs)
    ]
    return dict(zip(COLUMNS, (prompt, *sums[0], *sums[1]), strict=True))


def summed(rows: Sequence[dict[str, int]]) -> dict[str, Any]:
    """Figures of both sides, and their quotient, each with its interval."""
    from testbed.intervals import Bootstrap

    drawn = Bootstrap({name: [one[name] for one in rows] for name in COLUMNS})
    found = {}
    for name in FIGURES:
        for side in SIDES:
            found[side + name] = drawn.computed(functools.partial(figure, name, side))
        found[f"{name}_quotient"] = drawn.computed(functools.partial(quotient, name))
    return {name: [one.value, *one.ends] for name, one in found.items()}


def figure(name: str, side: str, total: Callable[[str], Any]) -> Any:
    """A figure of one side from sums of columns."""
    above, below = FIGURES[name]
    return (1 if below == "rounds" else 0) + total(side + above) / total(side + below)  # a round's bonus token


def quotient(name: str, total: Callable[[str], Any]) -> Any:
    """A figure of the testbed over that of transformers."""
    own, theirs = (figure(name, side, total) for side in SIDES)
    return own / theirs


def show(document: dict[str, Any]) -> None:
    """Print the figures as a table."""
    print(f"{document['model']}, {document['prompts']} prompts, window {document['window']}")
    labels = {"{}": "testbed", "assisted_{}": "transformers", "{}_quotient": "testbed / transformers"}
    for name in FIGURES:
        for key, label in labels.items():
            value, low, high = document[key.format(name)]
            between = "" if low is None else f" ({low:.4f} … {high:.4f})"
            print(f"  {name}, {label}: {value:.4f}{between}")


if __name__ == "__main__":
    sys.exit(main())
