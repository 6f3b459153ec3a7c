"""`testbed models distill`: a drafter for a target that has none."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.options import AsJson, Given, offering
from testbed.cli.output import claim_stdout, note, print_json, progress
from testbed.config import resolved
from testbed.experiments.distill.config import DistillConfig


@offering(DistillConfig)
def distill(
    given: Given,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the drafter; an unfinished distillation is resumed.")
    ],
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the settings of this directory; --limit, --invented, --steps, --threads and --device may "
            "be others.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a drafter for a target out of some of its layers, or as a narrower net, trained on the target's own answers.

    The target answers the prompts on its engine; the drafter learns its tokens and distributions. The directory gets
    drafter.gguf with its tokenizer, card.md with acceptance, time and size, and the trained weights in model/. Run the
    same command again to resume.

    Examples:

        testbed models distill --target smollm2 --out runs/smollm2-draft --layers 6 --vocabulary 8192 --gguf q4_0

        testbed models distill --target ./Qwen3-8B --out runs/draft --prompts chats.jsonl --limit 20000 --dtype bfloat16
    """
    from testbed.experiments.distill.run import begun
    from testbed.experiments.distill.run import distill as run

    config = given.config(DistillConfig, resolved(begun(out)) if resume else {})
    stdout = claim_stdout() if as_json else None
    with progress() as told:
        document = run(config, out, note, told)
    if as_json:
        print_json(document, stdout)
        return
    low, high = document["acceptance_interval"]
    between = "" if low is None else f" ({low:.3f} to {high:.3f})"
    print(
        f"{document['drafter']}: {document['bytes'] / 2**20:.1f} MiB, acceptance {document['acceptance']:.3f}{between} "
        f"on {document['held_out']} held-out prompts, {document['draft_ms']:.2f} ms per token; {out / 'card.md'}"
    )
