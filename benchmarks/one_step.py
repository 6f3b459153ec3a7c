"""Writes word problems of one step in the format of GSM8K, which a language model of 135M parameters can solve in part.

    python benchmarks/one_step.py --out FILE.jsonl [--prompts 200] [--seed 0]

Numbers are below 20. No problem occurs twice, so that parts of a file have none in common. Such a model seldom writes
its answer as GSM8K does; `--scorer benchmarks/one_step.py:last_number` takes the last number of an output.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from pathlib import Path

NAMES = ("Mia", "Omar", "Lena", "Raj", "Ines", "Tom", "Aiko", "Paul", "Nora", "Sven")
THINGS = ("apples", "books", "pencils", "coins", "eggs", "cards", "shells", "stamps", "oranges", "marbles")
STORIES = (
    ("+", "{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?"),
    ("+", "There are {a} {things} in one box and {b} {things} in another. How many {things} are there in all?"),
    ("-", "{name} has {a} {things} and gives {b} of them away. How many {things} are left?"),
    ("-", "{a} {things} lie on a table. {name} takes {b} of them. How many {things} remain on the table?"),
    ("*", "{name} has {a} bags with {b} {things} in each. How many {things} does {name} have?"),
)


def problem(rng: random.Random) -> dict[str, str]:
    """A problem with its answer."""
    sign, story = rng.choice(STORIES)
    a, b = rng.randint(2, 19), rng.randint(2, 19)
    if sign == "-":
        a, b = max(a, b) + 1, min(a, b)
    if sign == "*":
        a, b = rng.randint(2, 9), rng.randint(2, 9)
    result = {"+": a + b, "-": a - b, "*": a * b}[sign]
    question = story.format(name=rng.choice(NAMES), things=rng.choice(THINGS), a=a, b=b)
    return {"question": question, "answer": f"{a}{sign}{b}={result}\n#### {result}"}


def last_number(text: str) -> str | None:
    """The last number of an output, without separators of thousands; None: there is none."""
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return found[-1].replace(",", "").rstrip(".") if found else None


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng, found = random.Random(asked.seed), dict[str, dict[str, str]]()
    while len(found) < asked.prompts:
        one = problem(rng)
        found.setdefault(one["question"], one)
    asked.out.write_text("".join(json.dumps(one) + "\n" for one in found.values()), encoding="utf-8")


if __name__ == "__main__":
    main()
