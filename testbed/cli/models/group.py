"""`testbed models`: the bundled pair, and GGUF files of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from testbed.cli.models import distill, onboard
from testbed.cli.options import AsJson, Force, completion, configured, refuse_to_overwrite
from testbed.cli.output import note, print_json, progress
from testbed.cli.screens import CommandGroup
from testbed.errors import TestbedError
from testbed.models.random_model import RandomModel

app = CommandGroup(no_args_is_help=True, help="The bundled pair, public models, and GGUF files of your own models.")


@app.command()
def path(as_json: AsJson = False) -> None:
    """Print the paths of the bundled pair.

    Examples:

        testbed models path

        testbed models path --json
    """
    from dataclasses import asdict

    from testbed.models.bundle import bundled

    paths = {name: None if value is None else str(value) for name, value in asdict(bundled()).items()}
    if as_json:
        print_json(paths)
        return
    for name, value in paths.items():
        print(f"{name}: {value or '–'}")


@app.command()
def fetch(
    name: Annotated[
        str, typer.Argument(help="Model to fetch, such as smollm2.", autocompletion=completion("fetched drafters"))
    ],
    as_json: AsJson = False,
) -> None:
    """Fetch a public model into the user's cache, once, and compare llama.cpp with transformers on it.

    Afterwards, --model NAME and --drafter NAME take it wherever they take paths. A drafter such as smollm2-draft comes
    with the package; otherwise it is distilled from its model on this machine, which takes days on a CPU.

    Examples:

        testbed models fetch smollm2

        testbed models fetch smollm2-draft
    """
    from testbed.assets.model_names import DISTILLED
    from testbed.models.real.fetch import fetch as fetched
    from testbed.models.real.parity import Parity

    model = fetched(DISTILLED.get(name, name), note)
    if name in DISTILLED:
        _show_drafter(name, as_json)
        return
    if as_json:
        print_json(model)
        return
    for key, value in (model | {"parity": Parity(**model["parity"])}).items():
        print(f"{key}: {value}")


def _show_drafter(name: str, as_json: bool) -> None:
    """Make a distilled drafter if it is missing, and print what it is."""
    from testbed.experiments.distill.named import made

    with progress() as told:
        card = made(name, note, told)
    if as_json:
        print_json(card)
        return
    for key in ("name", "drafter", "target", "license", "source", "bytes", "acceptance", "acceptance_interval", "cost"):
        print(f"{key}: {card[key]}")


@app.command()
def overlap(
    a: Annotated[str, typer.Argument(help="Drafter: directory or GGUF file with tokenizer.json, name, or bundled.")],
    b: Annotated[str, typer.Argument(help="Target, likewise.")],
    as_json: AsJson = False,
) -> None:
    """Compare two vocabularies: how many tokens of the target a drafter could draft.

    A drafter in a GGUF file beside a tokenizer of its own drafts the tokens that both know. Acceptance falls
    with what it does not know.

    Example:

        testbed models overlap bundled smollm2
    """
    from testbed.assets.model_names import DISTILLED, Part, named
    from testbed.models.bundle import bundled
    from testbed.protocols.vocabulary import overlap as compared

    parts: tuple[tuple[str, Part], ...] = ((a, "drafter" if a in DISTILLED else "tokenizer"), (b, "tokenizer"))
    paths = [bundled().require("tokenizer") if name == "bundled" else Path(named(name, part)) for name, part in parts]
    found = compared(*paths)
    if as_json:
        print_json(found._asdict())
        return
    print(f"{a}: {found.ids_a} tokens")
    print(f"{b}: {found.ids_b} tokens, of which {a} has {found.common} ({found.share:.1%})")


@app.command()
def export(
    model: Annotated[Path, typer.Option(help="Hugging Face directory: Llama, Qwen2 or Qwen3.")],
    out: Annotated[Path, typer.Option(help="GGUF file to write.")],
    dtype: Annotated[Literal["f32", "f16", "q8_0", "q4_0"], typer.Option(help="Type of the weights.")] = "f16",
    min_agreement: Annotated[
        float | None,
        typer.Option(
            help="Keep the file if this share of greedy tokens is the same on text; 0 for any. Default: 0.9 for q8_0, "
            "0.75 for q4_0."
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Turn a Hugging Face directory into GGUF for llama.cpp and compare what both compute.

    Files in f32 and f16 are kept if logits and hidden states are those of the directory; quantised ones also if greedy
    tokens agree on text often enough for a drafter.

    Examples:

        testbed models export --model ./Qwen2.5-0.5B-Instruct --out drafter.gguf --dtype q8_0

        testbed models export --model ./Qwen2.5-0.5B-Instruct --out drafter.gguf --dtype q4_0 --min-agreement 0.6
    """
    from dataclasses import asdict

    from testbed.models.real.parity import export_and_prove

    refuse_to_overwrite([out], force)
    parity = export_and_prove(model, out, dtype, min_agreement)
    if as_json:
        print_json({"file": str(out), "dtype": dtype, "ok": parity.ok, **asdict(parity)})
    else:
        note(f"wrote {out}: {parity}")


@app.command("random")
@configured(RandomModel)
def make_random_model(
    config: RandomModel,
    out: Annotated[Path, typer.Option(help="Directory to write.")],
    as_json: AsJson = False,
) -> None:
    """Write a random target of a chosen size, with the bundled tokenizer, to measure latency with.

    Examples:

        testbed models random --hidden 512 --layers 8 --out random

        testbed models random --kind qwen3-moe --experts 16 --active 2 --out moe
    """
    from testbed.models.random_model import make_random

    count = make_random(config, out)
    if as_json:
        print_json({"directory": str(out), "parameters": count})
    else:
        note(f"wrote {out}: {count / 1e6:.1f} million parameters")


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="Output directory of the pair.")] = Path("pair"),
    work: Annotated[Path, typer.Option(help="Checkpoints; an interrupted run goes on from them.")] = Path("pair/work"),
    seed: Annotated[int, typer.Option(help="Seed of data and weights.", min=0)] = 0,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train the bundled pair from a seed; run it again to resume.

    Example:

        testbed models train --out pair --seed 0
    """
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from testbed.cli.output import console
    from testbed.models.pair import make_pair

    if threads:
        torch.set_num_threads(threads)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    tasks: dict[str, object] = {}
    with Progress(*columns, console=console(stderr=True), disable=not console(stderr=True).is_terminal) as bar:

        def told(role: str, step: int, steps: int, loss: float) -> None:
            if role not in tasks:
                tasks[role] = bar.add_task(role, total=steps, loss=loss)
            bar.update(tasks[role], completed=step, loss=loss)  # type: ignore[arg-type]

        make_pair(work, out, seed, told)
    if as_json:
        print_json({"directory": str(out), "seed": seed})
    note(f"wrote {out}; measure it with: testbed models card --pair {out}")


@app.command()
def card(
    pair: Annotated[Path | None, typer.Option(help="Directory with target/ and drafter/; default: bundled.")] = None,
    problems: Annotated[int, typer.Option(help="Test problems for the accuracies.", min=1)] = 500,
    judged: Annotated[int, typer.Option(help="Those of them for the two judges, at most.", min=1)] = 100,
    out: Annotated[Path | None, typer.Option(help="Write the card here as Markdown.")] = None,
    check: Annotated[bool, typer.Option(help="Exit with status 1 unless the pair meets its requirements.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure the pair and write its model card.

    Example:

        testbed models card --out MODEL_CARD.md
    """
    from testbed.experiments.results.directory import write_text
    from testbed.models.bundle import DATA
    from testbed.models.card import measure, render, shortfalls

    facts = measure(pair or DATA, problems, judged, note)
    text = render(facts)
    if out:
        write_text(out, text)
    if as_json:
        print_json(facts)
    elif not out:
        print(text)
    short = shortfalls(facts)
    for line in short:
        note(f"falls short: {line}")
    if check and short:
        raise TestbedError(f"the pair falls short: {'; '.join(short)}")


app.command("distill")(distill.distill)
app.command("onboard")(onboard.onboard)
app.command("parity")(onboard.parity)
