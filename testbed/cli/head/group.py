"""`testbed head`: the decision head. Collection and labels; training and θ are in `train` and `tune`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.cli.head import compare as head_compare
from testbed.cli.head import train as head_train
from testbed.cli.head import tune as head_tune
from testbed.cli.options import AsJson, configured
from testbed.cli.output import claim_stdout, note, print_json, progress
from testbed.cli.screens import CommandGroup
from testbed.cli.tables import TableCommand
from testbed.experiments.head.config import EpisodeCollectConfig

app = CommandGroup(no_args_is_help=True, help="The decision head: collect, label, relabel, train, evaluate.")


@app.command()
@configured(EpisodeCollectConfig)
def collect(
    config: EpisodeCollectConfig,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the episodes; an unfinished collection is resumed.")
    ],
    as_json: AsJson = False,
) -> None:
    """Decode a data set speculatively and keep every mismatch, with both hidden states (WISV Section V-B).

    The drafter runs on llama.cpp and the target on the serving engine, as in a run. Run it again to resume. Policy
    oracle labels during collection; with the other policies, use `head label` afterwards.

    Examples:

        testbed head collect --out runs/episodes --prompts 2500

        testbed head collect --out runs/gsm8k --dataset gsm8k-train.jsonl --prompts 1000 --max-tokens 512
        --model ./Llama-3.1-8B-Instruct --drafter Llama-3.2-1B-Instruct.gguf --dtype bfloat16
    """
    from testbed.experiments.head.collect import collect as run

    stdout = claim_stdout() if as_json else None
    with progress() as told:
        document = run(config, out, told)
    if as_json:
        print_json(document, stdout)
    else:
        show(document)


@app.command()
@configured(EpisodeCollectConfig, only=["engine", "model", "dtype", "concurrency", "threads", "memory_share"])
def label(
    config: EpisodeCollectConfig,
    episodes: Annotated[Path, typer.Argument(metavar="DIR", help="Directory that `head collect` wrote.")],
    scorer: Annotated[
        str | None,
        typer.Option(
            help="Extracts the final answer: number, exact, package.module:function or file.py:function. Default: as "
            "collected.",
            rich_help_panel="Labels",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Label every mismatch by whether keeping the draft token changes the final answer (as AutoJudge does).

    The target completes the output after the draft token and after its own. Where its own has no answer there is no
    label. Run it again to resume.

    Examples:

        testbed head label runs/episodes

        testbed head label runs/gsm8k --scorer my_task.py:answer --dtype bfloat16 --json
    """
    from testbed.experiments.head.label import label as run

    stdout = claim_stdout() if as_json else None
    with progress() as told:
        document = run(episodes, scorer, config, told)
    if as_json:
        print_json(document, stdout)
    else:
        show(document)


def show(document: Mapping[str, Any]) -> None:
    """Summary of a directory of episodes."""
    print(
        f"{document['mismatches']} mismatches of {document['prompts']} prompts in {document['chunks']} chunks, "
        f"{document['labelled']} labelled with {document['completions']} completions, "
        f"{document['unparsed']} without an answer"
    )
    shares = {"all": "critical", "with a digit": "critical_digits", "without": "critical_words"}
    known = [f"{name} {document[key]:.1%}" for name, key in shares.items() if document[key] is not None]
    if known:
        print(f"critical: {', '.join(known)}")
    note(f"{document['passes']} passes, {document['requests']} requests, {document['seconds']} s; {document['out']}")


app.command("relabel", cls=TableCommand)(head_train.relabel)
app.command("train", cls=TableCommand)(head_train.train)
app.command("eval", cls=TableCommand)(head_train.evaluate)
app.command("tune", cls=TableCommand)(head_tune.tune)
app.command("compare", cls=TableCommand)(head_compare.compare)
