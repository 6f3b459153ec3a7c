"""Help screens: options in panels, nothing cut off on a terminal of 80 columns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from testbed.cli.options import with_names

ARGUMENTS, OPTIONS, COMMANDS = "Arguments", "Options", "Commands"
"""Panels of what names none."""
START, LINKS, STUDIES, TRAIN, RESULTS = "Start here", "Links and field", "Studies", "Train", "Results"
PANELS = (START, LINKS, STUDIES, TRAIN, RESULTS)
"""Panels of `testbed --help`, in this order."""
NAMES = 30
"""Largest width of the column with the names of options."""

TYPES = {"str": "TEXT", "int": "INTEGER", "float": "NUMBER", "path": "PATH", "list[str]": "TEXT"}


class PanelCommand(TyperCommand):
    """A command with one panel for each group of its options."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Options and arguments of the usage line, named as in the panels."""
        found = [one for one in self.get_params(ctx) if one.param_type_name == "argument"]
        return [self.options_metavar or "", *map(_usage, found)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help screen."""
        console = _headed(self, ctx)
        panels = _options(self, ctx)
        for title in sorted(panels, key=lambda title: title != ARGUMENTS):
            console.print(_panel(title, [(_names(one, ctx), _about(one)) for one in panels[title]], NAMES))


class PanelGroup(TyperGroup):
    """A group with its commands in panels, in the order of their registration."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help screen."""
        console = _headed(self, ctx)
        panels: dict[str, list[tuple[Text, Text]]] = {}
        for name, command in self.commands.items():
            about = " ".join((command.short_help or command.help or "").split("\n\n")[0].split())
            title = getattr(command, "rich_help_panel", None) or COMMANDS
            panels.setdefault(title, []).append((Text(name, style="bold cyan"), Text(about)))
        width = max(len(name) for name in self.commands)
        for title in sorted(panels, key=lambda title: PANELS.index(title) if title in PANELS else len(PANELS)):
            console.print(_panel(title, panels[title], width))
        for title, options in _options(self, ctx).items():
            console.print(_panel(title, [(_names(one, ctx), _about(one)) for one in options], NAMES))


class CommandGroup(typer.Typer):
    """A group of commands whose help screens are these."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"cls": PanelGroup, **more})

    def command(self, name: str | None = None, **more: Any) -> Callable[[Any], Any]:
        """Same as typer's."""
        return super().command(name, **{"cls": PanelCommand, **more})


def _headed(command: Any, ctx: Any) -> Console:
    """A console, with usage and description printed."""
    console = Console(highlight=False)
    console.print(Padding(Text(command.get_usage(ctx), style="bold"), (1, 1)))
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        text, indent = " ".join(paragraph.split()), 4 if paragraph.startswith(" ") else 1
        console.print(Padding(Text(text), (0, 1, 1, indent)))
    return console


def _options(command: Any, ctx: Any) -> dict[str, list[Any]]:
    """Arguments and options by panel; --help goes with the last options."""
    panels: dict[str, list[Any]] = {}
    for one in command.get_params(ctx):
        if not getattr(one, "hidden", False):
            usual = ARGUMENTS if one.param_type_name == "argument" else OPTIONS
            panels.setdefault(getattr(one, "rich_help_panel", None) or usual, []).append(one)
    if len(panels) > 1 and len(panels.get(OPTIONS, ())) == 1:
        panels[list(panels)[-2]] += panels.pop(OPTIONS)
    return panels


def _panel(title: str, rows: Sequence[tuple[Text, Text]], widest: int) -> Panel:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(width=min(widest, max(len(names) for names, _ in rows)), overflow="fold")
    table.add_column(ratio=1, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return Panel(table, title=title, title_align="left", border_style="dim")


def _usage(argument: Any) -> str:
    """An argument in the usage line: in brackets if it may be left out, with an ellipsis if it may be repeated."""
    name = _argument(argument)
    name += "..." if argument.nargs == -1 and not name.endswith("...") else ""
    return name if argument.required else f"[{name}]"


def _argument(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _names(one: Any, ctx: Any) -> Text:
    """An option's names and what its value is."""
    if one.param_type_name == "argument":
        return Text(_argument(one), style="bold cyan")
    text = Text(" / ".join([*one.opts, *one.secondary_opts]), style="bold cyan")
    if not (one.is_flag or one.count):
        shown = one.display_type(ctx).strip("<>")
        text.append(f" {one.metavar or TYPES.get(shown, shown)}", "yellow")
    return text


def _about(one: Any) -> Text:
    """Description of an option, and its default."""
    text = Text(" ".join(with_names(one.help or "").split()))
    if one.required:
        text.append(" [required]", "red")
    elif shown := _shown(one.default):
        text.append(f" [default: {shown}]", "dim")
    return text


def _shown(default: Any) -> str:
    """A default for people; empty where there is none to show."""
    if isinstance(default, bool):
        return "on" if default else ""
    if isinstance(default, list | tuple):
        return ", ".join(map(_shown, default))
    return "" if default is None else f"{default:g}" if isinstance(default, float) else str(default)
