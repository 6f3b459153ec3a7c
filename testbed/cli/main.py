"""`testbed`: the command line. One thin file per command group: parse, build a config, call."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
import typer

from testbed import __version__
from testbed.cli import bs, demo, doctor, models, report, ue
from testbed.errors import BadInput, TestbedError

app = typer.Typer(
    name="testbed",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="A wireless device-edge testbed for LLM inference by speculative decoding.",
)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.command("report")(report.report)
app.add_typer(bs.app, name="bs")
app.add_typer(ue.app, name="ue")
app.add_typer(models.app, name="models")


def _version(value: bool) -> None:
    if value:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """A wireless device-edge testbed for LLM inference by speculative decoding."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code: 0 done, 1 the work failed, 2 bad input, 130 interrupted."""
    try:
        code = app(args=list(sys.argv[1:] if argv is None else argv), standalone_mode=False)
    except click.UsageError as exc:
        context = f" (see {exc.ctx.command_path} --help)" if exc.ctx else ""
        return _say(f"{exc.format_message()}{context}", 2)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _say("interrupted", 130)
    except BadInput as exc:
        return _say(str(exc), 2)
    except TestbedError as exc:
        return _say(str(exc), 1)
    except BrokenPipeError:
        return 1
    return code if isinstance(code, int) else 0


def _say(text: str, code: int) -> int:
    """One line on stderr."""
    line = " ".join(text.split())
    print(f"testbed: {line}", file=sys.stderr)
    return code


def run() -> None:
    """Entry point of the console script."""
    sys.exit(main())
