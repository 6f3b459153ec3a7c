"""`testbed head relabel`, `train` and `eval`: from labelled episodes to a decision head and what it is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from testbed.cli.options import AsJson, Force, configured, refuse_to_overwrite
from testbed.cli.output import console, note, print_json
from testbed.cli.tables import print_table
from testbed.decision_head.settings import Relabelling, Training
from testbed.errors import BadInput

Episodes = Annotated[Path, typer.Argument(metavar="EPISODES", help="Directory of labelled episodes.")]


@configured(Relabelling)
def relabel(
    config: Relabelling,
    episodes: Episodes,
    out: Annotated[Path, typer.Option(metavar="FILE", help="safetensors file of instances to write.")],
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Turn base labels into actions that depend on the channel (WISV, eqs. 28-31).

    Every episode is seen under several channel states. On a poor channel the budget covers only a share of the repairs,
    and critical mismatches of small importance are accepted first.

    Examples:

        testbed head relabel episodes/calibration --out relabelled.safetensors

        testbed head relabel episodes/calibration --draws 8 --least-share 0.5 --out relabelled.safetensors --json
    """
    from testbed.experiments.head.steps import relabel_to

    refuse_to_overwrite([out], force)
    document = relabel_to(episodes, out, config)
    if as_json:
        print_json(document)
        return
    note(f"wrote {out}: {document['instances']} instances of {document['mismatches']} mismatches")
    _table(document["bands"], "critical mismatches repaired, by channel quality")


@configured(Training)
def train(
    config: Training,
    episodes: Episodes,
    out: Annotated[Path, typer.Option(metavar="DIR", help="New or empty, for head.json and head.safetensors.")],
    relabelled: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File that relabel wrote. Default: relabel by its defaults.")
    ] = None,
    csi: Annotated[bool, typer.Option("--csi/--no-csi", help="Let the head see the channel.")] = True,
    relabels: Annotated[bool, typer.Option("--relabel/--no-relabel", help="Let labels depend on the channel.")] = True,
    draws: Annotated[int, typer.Option(help="Channel states per episode.")] = Relabelling().draws,
    about: Annotated[str, typer.Option(help="A line for head.json.")] = "",
    as_json: AsJson = False,
) -> None:
    """Train a decision head on labelled episodes (WISV, eqs. 23-26); the same seed gives the same head.

    Examples:

        testbed head train episodes/calibration --out head

        testbed head train episodes/calibration --relabelled relabelled.safetensors --width 128 --out head

        testbed head train episodes/calibration --no-csi --out head-blind

        testbed head train episodes/calibration --hidden-bits 4 --out head-4bit --json
    """
    config = config if csi else msgspec.structs.replace(config, features=())
    if relabelled is not None and not (csi and relabels):
        raise BadInput("--no-csi and --no-relabel take the labels as they are: leave out --relabelled")
    least_share = Relabelling().least_share if relabels else 1.0
    source = relabelled or Relabelling(draws=draws, seed=config.seed, least_share=least_share)
    from testbed.experiments.head.steps import train_to

    with _progress(config.epochs) as told:
        document = train_to(episodes, out, config, source, told, about)
    if as_json:
        print_json(document)
        return
    note(f"wrote {out}: kept epoch {document['best_epoch'] + 1} of {len(document['history'])}")
    scores = f"AUC {document['auc']:.4f}, Brier {document['brier']:.4f}, log loss {document['log_loss']:.4f}"
    print(f"on {document['held_out_mismatches']} mismatches of held-out prompts: {scores}")


@configured(Relabelling, only=["draws", "seed"])
def evaluate(
    config: Relabelling,
    head: Annotated[Path, typer.Argument(metavar="HEAD", help="Directory of a head.")],
    episodes: Annotated[Path, typer.Option(metavar="DIR", help="Labelled episodes, preferably of unseen prompts.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Directory for tables and plots.")] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Directory of tokenizer.json, for the digit rule. Default: the bundled target's."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a head on labelled mismatches: AUC, calibration, accepted shares by threshold and channel.

    Examples:

        testbed head eval head --episodes episodes/heldout

        testbed head eval head --episodes episodes/heldout --out evaluation --json
    """
    from testbed.experiments.head.steps import evaluate_on

    found = evaluate_on(head, episodes, config, tokenizer)
    if out is not None:
        from testbed.experiments.plots.head import write_evaluation

        write_evaluation(found, out)
        note(f"wrote {out}")
    if as_json:
        print_json(found.document)
    else:
        _show(found.document)


@contextmanager
def _progress(epochs: int) -> Iterator[Any]:
    """Progress of training, by epoch, on a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    err = console(stderr=True)
    columns = (TextColumn("epoch"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=epochs)

        def told(number: int, train_loss: float, held_out_loss: float) -> None:
            bar.update(task, completed=number + 1, description=f"loss {train_loss:.4f}, held out {held_out_loss:.4f}")

        yield told


def _show(document: Mapping[str, Any]) -> None:
    """An evaluation for people."""
    about = f"{document['mismatches']} mismatches of {document['prompts']} prompts, {document['critical']:.1%} critical"
    losses = f"Brier {document['brier']:.4f}, log loss {document['log_loss']:.4f}"
    if document["auc"] is None:
        print(f"{about}: no AUC where all are of one kind; {losses}")
    else:
        low, high = document["auc_interval"]
        print(f"{about}: AUC {document['auc']:.4f} (95 % {low:.4f} to {high:.4f}), {losses}")
    rule = document["digits"]
    if rule is not None:
        shown = {name: "–" if value is None else f"{value:.4f}" for name, value in rule.items()}
        print(
            f"the rule that accepts what has no digit: AUC {shown['auc']}, accepts {shown['harmless_accepted']} of the "
            f"harmless and {shown['critical_accepted']} of the critical"
        )
    _table(document["reliability"], "reliability on a perfect channel")
    _table(document["bands"], "by channel quality, against actions as relabelled")
    points: dict[float, dict[str, Any]] = {}
    for row in document["operating"]:
        shares = [_cell(row[f"{kind}_accepted"]) for kind in ("harmless", "critical")]
        points.setdefault(row["threshold"], {"θ": row["threshold"]})[row["channel"]] = " / ".join(shares)
    _table(list(points.values()), "shares of harmless / critical mismatches that θ accepts, by channel")


def _table(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    from rich.table import Table

    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(title=title, title_justify="left")
    for name in names:
        table.add_column(name.replace("_", " "), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in names))
    print_table(table)


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
