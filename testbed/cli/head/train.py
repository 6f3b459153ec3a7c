"""`testbed head relabel`, `train` and `eval`: from labelled episodes to a decision head and what it is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.channel.csi import FEATURES
from testbed.cli.output import console, note, print_json
from testbed.decision_head.settings import Relabelling, Training
from testbed.errors import BadInput

BUDGET, RECIPE = Relabelling(), Training()
Episodes = Annotated[Path, typer.Argument(metavar="EPISODES", help="Directory of labelled episodes.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Draws = Annotated[int, typer.Option(help="Channel states per episode.")]
Seed = Annotated[int, typer.Option(help="Of channel states, actions, held-out prompts and weights.")]


def relabel(
    episodes: Episodes,
    out: Annotated[Path, typer.Option(metavar="FILE", help="safetensors file of instances to write.")],
    draws: Draws = BUDGET.draws,
    seed: Seed = BUDGET.seed,
    tau: Annotated[float, typer.Option(help="τ_s: reach of a critical mismatch, in mismatches.")] = BUDGET.tau,
    temperature: Annotated[
        float, typer.Option(help="T: smoothness of the policy, in units of importance.")
    ] = BUDGET.temperature,
    least_share: Annotated[
        float, typer.Option(help="Share of critical mismatches repaired at channel quality 0.")
    ] = BUDGET.least_share,
    full_quality: Annotated[
        float, typer.Option(help="Channel quality from which all are repaired.")
    ] = BUDGET.full_quality,
    rate_mbps: Annotated[tuple[float, float], typer.Option(help="Range of rates, log-uniform.")] = BUDGET.rate_mbps,
    rtt_ms: Annotated[tuple[float, float], typer.Option(help="Range of RTTs, log-uniform.")] = BUDGET.rtt_ms,
    per: Annotated[tuple[float, float], typer.Option(help="Range of packet error rates, uniform.")] = BUDGET.per,
    as_json: AsJson = False,
) -> None:
    """Turn base labels into actions that depend on the channel (WISV, eqs. 28-31).

    Every episode is seen under several channel states; on a poor one its budget has room for a share of the repairs
    alone, and critical mismatches of small importance are let pass first.

    Examples:

        testbed head relabel episodes/calibration --out relabelled.safetensors

        testbed head relabel episodes/calibration --draws 8 --least-share 0.5 --out relabelled.safetensors --json
    """
    config = Relabelling(
        draws=draws, seed=seed, tau=tau, temperature=temperature, least_share=least_share, full_quality=full_quality,
        rate_mbps=rate_mbps, rtt_ms=rtt_ms, per=per,
    )  # fmt: skip
    from testbed.experiments.head.steps import relabel_to

    document = relabel_to(episodes, out, config)
    if as_json:
        print_json(document)
        return
    note(f"wrote {out}: {document['instances']} instances of {document['mismatches']} mismatches")
    _table(document["bands"], "critical mismatches repaired, by channel quality")


def train(
    episodes: Episodes,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the head goes: head.json, head.safetensors.")],
    relabelled: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What relabel wrote; without it, relabelled by its defaults.")
    ] = None,
    csi: Annotated[bool, typer.Option("--csi/--no-csi", help="Whether the head sees the channel.")] = True,
    relabels: Annotated[
        bool, typer.Option("--relabel/--no-relabel", help="Whether labels depend on the channel.")
    ] = True,
    hidden_bits: Annotated[
        int, typer.Option(help="Bits an element of drafter states on the uplink: 16, 8 or 4.")
    ] = RECIPE.hidden_bits,
    draws: Draws = BUDGET.draws,
    width: Annotated[int, typer.Option(help="Of the hidden layer.")] = RECIPE.width,
    dropout: Annotated[float, typer.Option(help="Share of hidden units left out in training.")] = RECIPE.dropout,
    learning_rate: Annotated[float, typer.Option(help="Of AdamW.")] = RECIPE.learning_rate,
    weight_decay: Annotated[float, typer.Option(help="Of AdamW.")] = RECIPE.weight_decay,
    batch: Annotated[int, typer.Option(help="Instances a step.")] = RECIPE.batch,
    epochs: Annotated[int, typer.Option(help="At most so many.")] = RECIPE.epochs,
    patience: Annotated[
        int, typer.Option(help="Epochs without a lower held-out loss until it ends.")
    ] = RECIPE.patience,
    held_out: Annotated[
        float, typer.Option(help="Share of prompts for early stopping and calibration.")
    ] = RECIPE.held_out,
    balanced: Annotated[
        bool, typer.Option("--balanced/--no-balanced", help="Whether both classes weigh the same.")
    ] = RECIPE.balanced,
    seed: Seed = RECIPE.seed,
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
    config = Training(
        width=width, dropout=dropout, learning_rate=learning_rate, weight_decay=weight_decay, batch=batch,
        epochs=epochs, patience=patience, held_out=held_out, seed=seed, balanced=balanced,
        features=FEATURES if csi else (), hidden_bits=hidden_bits,
    )  # fmt: skip
    if relabelled is not None and not (csi and relabels):
        raise BadInput("--no-csi and --no-relabel take the labels as they are: leave out --relabelled")
    least_share = BUDGET.least_share if relabels else 1.0
    source = relabelled or Relabelling(draws=draws, seed=seed, least_share=least_share)
    from testbed.experiments.head.steps import train_to

    with _progress(epochs) as told:
        document = train_to(episodes, out, config, source, told, about)
    if as_json:
        print_json(document)
        return
    note(f"wrote {out}: kept epoch {document['best_epoch'] + 1} of {len(document['history'])}")
    print(
        f"on {document['held_out_mismatches']} mismatches of held-out prompts: AUC {document['auc']:.4f}, Brier "
        f"{document['brier']:.4f}, log loss {document['log_loss']:.4f}"
    )


def evaluate(
    head: Annotated[Path, typer.Argument(metavar="HEAD", help="Directory of a head.")],
    episodes: Annotated[Path, typer.Option(metavar="DIR", help="Labelled episodes, best of prompts it has not seen.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where tables and plots go.")] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Holds tokenizer.json, for the digit rule; the bundled target has its own."),
    ] = None,
    draws: Draws = BUDGET.draws,
    seed: Seed = BUDGET.seed,
    as_json: AsJson = False,
) -> None:
    """Hold a head against labelled mismatches: AUC, calibration, what a threshold accepts, by channel.

    Examples:

        testbed head eval head --episodes episodes/heldout

        testbed head eval head --episodes episodes/heldout --out evaluation --json
    """
    config = Relabelling(draws=draws, seed=seed)
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
    """What hears of epochs and shows them on a terminal."""
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
    console().print(table)


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
