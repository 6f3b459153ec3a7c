"""`testbed head`: the decision head, from prompts to its evaluation; here its data, the rest in `head_train`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from testbed.cli.head import train as head_train
from testbed.cli.head import tune as head_tune
from testbed.cli.output import claim_stdout, console, note, print_json
from testbed.cli.screens import CommandGroup
from testbed.experiments.head.config import EpisodeCollectConfig

app = CommandGroup(no_args_is_help=True, help="The decision head: collect, label, relabel, train, evaluate.")
DEFAULT = EpisodeCollectConfig()

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Engine = Annotated[str, typer.Option(help="vllm or transformers.")]
Dtype = Annotated[str, typer.Option(help="float32 or bfloat16.")]
Concurrency = Annotated[int, typer.Option(help="Prompts under way at once.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads of a model; default: all cores but one.")]
Memory = Annotated[float, typer.Option(help="Share of a GPU's memory that vLLM may take.")]
SCORERS = "number, exact, package.module:function or file.py:function"


@app.command()
def collect(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the episodes; one that is there goes on.")],
    dataset: Annotated[str, typer.Option(help="bundled:calibration, FILE.jsonl, or hf:NAME.")] = DEFAULT.dataset,
    prompts: Annotated[int, typer.Option(help="Prompts to take from the data set.")] = DEFAULT.prompts,
    first: Annotated[int, typer.Option(help="Prompts to pass over before them.")] = DEFAULT.first,
    window: Annotated[int, typer.Option(help="Draft window K, tokens a round.")] = DEFAULT.window,
    max_tokens: Annotated[int, typer.Option(help="Output tokens at most.")] = DEFAULT.max_tokens,
    policy: Annotated[
        str,
        typer.Option(
            help="What becomes of a mismatch. oracle: labelled at once, kept if harmless; explore: chance; "
            "strict: rejected."
        ),
    ] = DEFAULT.policy,
    explore: Annotated[float, typer.Option(help="Chance that policy explore keeps one.")] = DEFAULT.explore,
    scorer: Annotated[str, typer.Option(help=f"Reads the final answer: {SCORERS}.")] = DEFAULT.scorer,
    engine: Engine = DEFAULT.engine,
    model: Annotated[str | None, typer.Option(help="Target: directory or id; default: the bundled one.")] = None,
    drafter: Annotated[str | None, typer.Option(help="GGUF drafter; default: the bundled one.")] = None,
    dtype: Dtype = DEFAULT.dtype,
    seed: Annotated[int, typer.Option(help="Of policy explore.")] = DEFAULT.seed,
    concurrency: Concurrency = DEFAULT.concurrency,
    threads: Threads = None,
    gpu_layers: Annotated[int, typer.Option(help="Layers of the drafter on a GPU; -1: all.")] = DEFAULT.gpu_layers,
    kv_type: Annotated[Literal["f16", "f32"], typer.Option(help="The drafter's KV cache.")] = DEFAULT.kv_type,
    memory_share: Memory = DEFAULT.memory_share,
    as_json: AsJson = False,
) -> None:
    """Decode a data set speculatively and keep every mismatch, with both hidden states (WISV Section V-B).

    The drafter runs on llama.cpp and the target on the serving engine, as in a run. Call it again to go on after an
    interruption. Policy oracle labels on the way; after the others, use `head label`.

    Examples:

        testbed head collect --out runs/episodes --prompts 2500

        testbed head collect --out runs/gsm8k --dataset gsm8k-train.jsonl --prompts 1000 --max-tokens 512
        --model ./Llama-3.1-8B-Instruct --drafter Llama-3.2-1B-Instruct.gguf --dtype bfloat16
    """
    from testbed.experiments.head.collect import collect as run

    config = EpisodeCollectConfig(
        dataset=dataset, prompts=prompts, first=first, window=window, max_tokens=max_tokens, policy=policy,
        explore=explore, scorer=scorer, engine=engine, model=model, drafter=drafter, dtype=dtype, seed=seed,
        concurrency=concurrency, threads=threads, gpu_layers=gpu_layers, kv_type=kv_type, memory_share=memory_share,
    )  # fmt: skip
    stdout = claim_stdout() if as_json else None
    with progress() as told:
        document = run(config, out, told)
    if as_json:
        print_json(document, stdout)
    else:
        show(document)


@app.command()
def label(
    episodes: Annotated[Path, typer.Argument(metavar="DIR", help="Directory that `head collect` wrote.")],
    scorer: Annotated[
        str | None, typer.Option(help=f"Reads the final answer: {SCORERS}; default: as collected.")
    ] = None,
    engine: Engine = DEFAULT.engine,
    model: Annotated[str | None, typer.Option(help="Where the target is; default: where it was.")] = None,
    dtype: Dtype = DEFAULT.dtype,
    concurrency: Concurrency = DEFAULT.concurrency,
    threads: Threads = None,
    memory_share: Memory = DEFAULT.memory_share,
    as_json: AsJson = False,
) -> None:
    """Say of every mismatch whether keeping the draft token changes the final answer (AutoJudge's way).

    The target completes the output after the draft token and after its own. Two outputs without an answer agree. Call
    it again to go on after an interruption.

    Examples:

        testbed head label runs/episodes

        testbed head label runs/gsm8k --scorer my_task.py:answer --dtype bfloat16 --json
    """
    from testbed.experiments.head.label import label as run

    config = EpisodeCollectConfig(
        engine=engine, model=model, dtype=dtype, concurrency=concurrency, threads=threads, memory_share=memory_share
    )
    stdout = claim_stdout() if as_json else None
    with progress() as told:
        document = run(episodes, scorer, config, told)
    if as_json:
        print_json(document, stdout)
    else:
        show(document)


@contextlib.contextmanager
def progress() -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on a terminal, nothing else; yields what it is told with: done, in all, of what."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    err = console(stderr=True)
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as bar:
        task = bar.add_task("loading", total=None)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=text)


def show(document: Mapping[str, Any]) -> None:
    """What a directory of episodes holds, for people."""
    print(
        f"{document['mismatches']} mismatches of {document['prompts']} prompts in {document['chunks']} chunks, "
        f"{document['labelled']} labelled with {document['completions']} completions"
    )
    shares = {"all": "critical", "with a digit": "critical_digits", "without": "critical_words"}
    known = [f"{name} {document[key]:.1%}" for name, key in shares.items() if document[key] is not None]
    if known:
        print(f"critical: {', '.join(known)}")
    note(f"{document['passes']} passes, {document['requests']} requests, {document['seconds']} s; {document['out']}")


app.command("relabel")(head_train.relabel)
app.command("train")(head_train.train)
app.command("eval")(head_train.evaluate)
app.command("tune")(head_tune.tune)
