"""`testbed ue`: the user equipment."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli.options import OUTPUT, AsJson, configured
from testbed.cli.output import COLUMNS, ENERGY_COLUMNS, note, note_power, print_json, visible
from testbed.cli.screens import CommandGroup
from testbed.cli.tables import TableCommand, print_rows
from testbed.config import RunConfig
from testbed.errors import BadInput, GateError, LinkError

if TYPE_CHECKING:
    from testbed.experiments.runs.uerun import UeResult

app = CommandGroup(no_args_is_help=True, help="The user equipment: drafts with a small model.")
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Resume the unfinished run in --out with the same options.", rich_help_panel=OUTPUT),
]


@app.callback()
def group() -> None:
    """The user equipment: drafts with a small model."""


@app.command(cls=TableCommand)
@configured(RunConfig)
def run(
    config: RunConfig,
    prompt: Annotated[
        list[str] | None, typer.Option(help="Decode this question; repeat for several.", rich_help_panel="Workload")
    ] = None,
    prompt_ids: Annotated[
        list[str] | None, typer.Option(help="Decode this prompt of token ids: 1,2,3.", rich_help_panel="Workload")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a run directory here.", rich_help_panel=OUTPUT)] = None,
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Decode a prompt or a data set with a BS.

    Examples:

        testbed ue run --prompt "Ada has 12 apples. Ben gives Ada 30 apples. How many?"

        testbed ue run --bs tcp://192.0.2.7:5555 --keys orin-1 --limit 50 --protocol greedy,fh,sh --window 16

        testbed ue run --bs tcp://192.0.2.7:5555 --bs tcp://192.0.2.8:5555 --keys orin-1 --out runs/far

        testbed ue run --bs tcp://192.0.2.7:5555 --bs tcp://192.0.2.8:5555 --keys orin-1 --out runs/far --resume

        testbed ue run --bs tcp://192.0.2.7:5555 --keys orin-1 --power auto --out runs/energy
    """
    from testbed.experiments.runs.journal import check_folder
    from testbed.experiments.runs.uerun import run_ue
    from testbed.protocols.methods import check_temperature
    from testbed.ue.run import sampling_of

    check_temperature(sampling_of(config), config.methods)
    if out is not None and not resume:
        check_folder(out)
    with _explained(out):
        result = run_ue(config, _given(prompt, prompt_ids), out, resume)
    if as_json:
        print_json(result.document())
    else:
        _show(result, bool(prompt) or bool(prompt_ids), out)
    if result.losses:
        raise GateError(result.losses[0])


@contextlib.contextmanager
def _explained(out: Path | None) -> Iterator[None]:
    """Say what is kept of a run that is interrupted or loses its BS, and how to go on."""
    from testbed.experiments.runs.journal import kept

    try:
        yield
    except (KeyboardInterrupt, SystemExit):  # SIGINT, SIGTERM
        note(kept(out))
        raise
    except LinkError as exc:
        raise type(exc)(f"{exc}; {kept(out)}") from exc


def _show(result: UeResult, with_text: bool, out: Path | None) -> None:
    """A run for people: outputs of prompts that were given, the tables, and where the run was written."""
    if with_text:
        prompts, methods = ({output[name] for output in result.outputs} for name in ("prompt", "method"))
        for prompt, outputs in itertools.groupby(result.outputs, lambda output: output["prompt"]):
            if len(prompts) > 1:
                print(visible(f"> {prompt}"))
            for output in outputs:
                label = f"{output['method']}: " if len(methods) > 1 else ""
                print(visible(label + (output["text"] or ",".join(map(str, output["token_ids"])))))
    print_rows(result.rows, None, COLUMNS)
    if result.power is not None:
        print_rows(result.rows, None, ENERGY_COLUMNS)
        note_power(result.power)
    if out:
        note(f"wrote {out}")


def _given(prompts: list[str] | None, prompt_ids: list[str] | None) -> list[int] | list[str] | None:
    """The prompts that were given, as text, or one as ids."""
    if prompts and prompt_ids:
        raise BadInput("give --prompt or --prompt-ids, not both")
    if prompt_ids:
        if len(prompt_ids) > 1:
            raise BadInput("--prompt-ids takes one prompt: give it once")
        try:
            return [int(i) for i in prompt_ids[0].split(",") if i.strip()]
        except ValueError as exc:
            raise BadInput(f"--prompt-ids takes integers separated by commas, not {prompt_ids[0]!r}") from exc
    return prompts or None
