"""The commands of `testbed`, in the order of its help screen. A module is imported once its command is called: all of
them take longer to import than most commands run.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import NamedTuple

from testbed.cli.screens import LINKS, RESULTS, START, STUDIES, TRAIN, CommandGroup, PanelCommand


class Entry(NamedTuple):
    """Where a command is."""

    panel: str
    module: str
    """Below `testbed.cli`; it has a group `app`, or a function with the name of the command."""
    kind: str = "group"
    """`group`, `command`, or `table`: a command with options for its tables."""


COMMANDS = {
    "demo": Entry(START, "runs.demo", "table"),
    "chat": Entry(START, "runs.chat", "command"),
    "doctor": Entry(START, "doctor", "table"),
    "bs": Entry(START, "bs"),
    "ue": Entry(START, "ue.group"),
    "keys": Entry(LINKS, "keys"),
    "channel": Entry(LINKS, "channel.group"),
    "field": Entry(LINKS, "field"),
    "power": Entry(LINKS, "power"),
    "sweep": Entry(STUDIES, "runs.sweep", "table"),
    "bench": Entry(STUDIES, "runs.bench", "table"),
    "capacity": Entry(STUDIES, "capacity", "table"),
    "cell": Entry(STUDIES, "cell"),
    "latency": Entry(STUDIES, "latency.group"),
    "optim": Entry(STUDIES, "optim.group"),
    "estimator": Entry(STUDIES, "estimator"),
    "head": Entry(TRAIN, "head.group"),
    "predictor": Entry(TRAIN, "predictor"),
    "models": Entry(TRAIN, "models.group"),
    "report": Entry(RESULTS, "runs.report", "table"),
    "rerun": Entry(RESULTS, "runs.rerun", "table"),
}


def add_commands(app: CommandGroup, names: Iterable[str]) -> None:
    """Import these commands and add them to the app."""
    for name in names:
        panel, path, kind = COMMANDS[name]
        module = import_module(f"testbed.cli.{path}")
        if kind == "group":
            app.add_typer(module.app, name=name, rich_help_panel=panel)
        else:
            app.command(name, cls=_class(kind), rich_help_panel=panel)(getattr(module, name))


def _class(kind: str) -> type[PanelCommand]:
    if kind == "command":
        return PanelCommand
    from testbed.cli.tables import TableCommand

    return TableCommand
