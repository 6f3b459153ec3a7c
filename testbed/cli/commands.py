"""The commands of `testbed`, in the order of its help screen. A module is imported once its command is called: all of
them take longer to import than most commands run.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import NamedTuple

from testbed.cli.screens import LINKS, RESULTS, START, STUDIES, TRAIN, CommandGroup, PanelCommand


class CommandPlace(NamedTuple):
    """Where a command is."""

    panel: str
    module: str
    """Below `testbed.cli`; it has a group `app`, or a function with the name of the command."""
    kind: str = "group"
    """`group`, `command`, or `table`: a command with options for its tables."""


COMMANDS = {
    "demo": CommandPlace(START, "runs.demo", "table"),
    "chat": CommandPlace(START, "runs.chat", "command"),
    "doctor": CommandPlace(START, "doctor", "table"),
    "bs": CommandPlace(START, "bs"),
    "ue": CommandPlace(START, "ue.group"),
    "keys": CommandPlace(LINKS, "keys"),
    "channel": CommandPlace(LINKS, "channel.group"),
    "field": CommandPlace(LINKS, "field"),
    "power": CommandPlace(LINKS, "power"),
    "sweep": CommandPlace(STUDIES, "runs.sweep", "table"),
    "bench": CommandPlace(STUDIES, "runs.bench", "table"),
    "capacity": CommandPlace(STUDIES, "capacity", "table"),
    "cell": CommandPlace(STUDIES, "cell"),
    "latency": CommandPlace(STUDIES, "latency.group"),
    "optim": CommandPlace(STUDIES, "optim.group"),
    "estimator": CommandPlace(STUDIES, "estimator"),
    "head": CommandPlace(TRAIN, "head.group"),
    "predictor": CommandPlace(TRAIN, "predictor"),
    "models": CommandPlace(TRAIN, "models.group"),
    "report": CommandPlace(RESULTS, "runs.report", "table"),
    "rerun": CommandPlace(RESULTS, "runs.rerun", "table"),
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
