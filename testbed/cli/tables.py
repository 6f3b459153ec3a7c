"""Tables of commands: for a terminal of any width, or as Markdown, CSV, JSON or LaTeX."""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.main import get_command

from testbed.cli.options import OUTPUT
from testbed.cli.output import console, visible
from testbed.cli.screens import PanelCommand
from testbed.errors import BadInput
from testbed.intervals import printable
from testbed.table_text import NOTHING, TableData, as_csv, as_latex, as_markdown

Columns = Mapping[str, tuple[str, str]]
"""Header and format of each column, by key."""
Show = Callable[[Sequence[str]], None]
"""Prints a table with columns of these keys; none: the usual ones."""
TEXT, MARKDOWN, CSV, JSON, LATEX = FORMATS = ("text", "md", "csv", "json", "latex")
ALL = "all"
"""Choice of every column that the rows have."""
NAMES_SHARE = 0.6
"""Largest share of the width for the columns that name the rows; where they are wider, rows are numbered."""


class TableStyle(NamedTuple):
    """How a command prints its tables."""

    form: str = TEXT
    columns: tuple[str, ...] = ()
    """Keys or headers of the columns; empty: the usual ones."""
    wide: bool = False


@dataclass
class ColumnSearch:
    """The search for chosen columns in all tables of a command."""

    known: dict[str, str] = field(default_factory=dict)
    """Keys of the columns of the tables so far, by key and by header."""
    held: list[tuple[list[str], Show]] = field(default_factory=list)
    """Tables that lack some of the columns: those that they have, and what prints them."""


STYLE: ContextVar[TableStyle] = ContextVar("style", default=TableStyle())  # noqa: B039
SEARCH: ContextVar[ColumnSearch] = ContextVar("search", default=ColumnSearch())  # noqa: B039


class TableCommand(PanelCommand):
    """A command whose tables take `--format`, `--columns` and `--wide`."""

    def __init__(self, *arguments: Any, params: list[Any] | None = None, **more: Any) -> None:
        super().__init__(*arguments, params=[*(params or []), *_options()], **more)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, then print the tables that lack chosen columns.

        Raises:
            BadInput: no table has one of the chosen columns.
        """
        SEARCH.set(ColumnSearch())
        try:
            result = super().invoke(ctx)
        except typer.Exit:
            print_held()
            raise
        print_held()
        return result


@functools.cache
def _options() -> list[Any]:
    """The options of tables, as typer makes them of this signature; each sets its part of the style."""

    def command(
        table_format: Annotated[
            str, typer.Option("--format", help=f"Format of tables: {', '.join(FORMATS)}.", callback=_set_form)
        ] = TEXT,
        columns: Annotated[
            str | None,
            typer.Option(help=f"Columns of tables, separated by commas; {ALL} for every one.", callback=_set_columns),
        ] = None,
        wide: Annotated[
            bool, typer.Option("--wide", help="Do not divide tables that are too wide.", callback=_set_wide)
        ] = False,
    ) -> None:
        """Stand-in."""

    app = typer.Typer(add_completion=False)
    command.__annotations__ = inspect.get_annotations(command, eval_str=True, locals=locals())
    app.command()(command)
    options: list[Any] = [one for one in get_command(app).params if one.name in ("table_format", "columns", "wide")]
    for one in options:
        one.expose_value, one.rich_help_panel = False, OUTPUT
    return options


def _set_form(value: str) -> str:
    if value not in FORMATS:
        raise BadInput(f"unknown format {value!r} of tables; known: {', '.join(FORMATS)}")
    STYLE.set(STYLE.get()._replace(form=value))
    return value


def _set_columns(value: str | None) -> str | None:
    names = tuple(part.strip() for part in (value or "").split(",") if part.strip())
    STYLE.set(STYLE.get()._replace(columns=names))
    return value


def _set_wide(value: bool) -> bool:
    STYLE.set(STYLE.get()._replace(wide=value))
    return value


def chosen_format() -> str:
    """Format of tables that the command line chose."""
    return STYLE.get().form


def print_rows(rows: Sequence[Mapping[str, Any]], title: str | None, columns: Columns) -> None:
    """Print rows without empty columns; divided where the terminal is narrow, with the rows' names in each part."""
    held = dict.fromkeys(key for row in rows for key, value in row.items() if not isinstance(value, dict | list))
    every = {key: spec for key, spec in columns.items() if any(row.get(key) is not None for row in rows)}
    every |= {key: (key, "{}") for key in held if key not in columns}

    def show(keys: Sequence[str]) -> None:
        shown = {key: every[key] for key in keys} or _filled(rows, columns)
        if STYLE.get().form == JSON:
            _write(json.dumps([{key: row.get(key) for key in shown} for row in rows], indent=1) + "\n")
        else:
            _print(_table(rows, shown, title))

    _print_chosen({key: key for key in every} | {header: key for key, (header, _) in every.items()}, show)


def markdown_rows(rows: Sequence[Mapping[str, Any]], columns: Columns) -> str:
    """Rows as a Markdown table, without empty columns."""
    return as_markdown(_harmless(_table(rows, _filled(rows, columns), None)))


def _filled(rows: Sequence[Mapping[str, Any]], columns: Columns) -> Columns:
    """The columns that have values to print."""
    return {key: spec for key, spec in columns.items() if any(printable(row, key) is not None for row in rows)}


def _table(rows: Sequence[Mapping[str, Any]], columns: Columns, title: str | None) -> TableData:
    lines = [[_cell(printable(row, key), form) for key, (_, form) in columns.items()] for row in rows]
    left = [any(isinstance(row.get(key), str) for row in rows) for key in columns]
    return TableData([header for header, _ in columns.values()], lines, _naming(lines), left, title)


def print_table(table: Table) -> None:
    """Print a table of rich in the chosen format."""
    headers = [str(column.header) for column in table.columns]
    lines = [list(map(_plain, line)) for line in zip(*(column._cells for column in table.columns), strict=True)]
    left = [column.justify == "left" for column in table.columns]
    title = None if table.title is None else _plain(table.title)

    def show(keys: Sequence[str]) -> None:
        places = [headers.index(key) for key in keys] or list(range(len(headers)))
        names, cells = [headers[i] for i in places], [[line[i] for i in places] for line in lines]
        if STYLE.get().form == JSON:
            _write(json.dumps([dict(zip(names, line, strict=True)) for line in cells], indent=1) + "\n")
        else:
            _print(TableData(names, cells, _naming(cells), [left[i] for i in places], title))

    _print_chosen({header: header for header in headers}, show)


def _print_chosen(known: Mapping[str, str], show: Show) -> None:
    """Print a table with the chosen columns, or hold it until the command ends if it lacks some of them.

    Args:
        known: the columns' keys, by key and by header.
    """
    wanted, search = STYLE.get().columns, SEARCH.get()
    if not wanted or wanted == (ALL,):
        show(list(dict.fromkeys(known.values())) if wanted else ())
        return
    search.known |= known
    found = [known[name] for name in wanted if name in known]
    if len(found) == len(wanted):
        show(found)
    else:
        search.held.append((found, show))


def print_held() -> None:
    """Print the tables that lack chosen columns: with those that they have or, before an error, with the usual ones.

    Raises:
        BadInput: no table has one of the chosen columns.
    """
    search = SEARCH.get()
    unknown = [name for name in STYLE.get().columns if search.known and name not in search.known]
    for found, show in search.held:
        if found or unknown:
            show(() if unknown else found)
    search.held.clear()
    if unknown:
        near = difflib.get_close_matches(unknown[0], search.known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        raise BadInput(f"no column {unknown[0]!r}{hint} known: {', '.join(dict.fromkeys(search.known.values()))}")


def _cell(value: Any, form: str) -> str:
    if value is None or isinstance(value, bool):
        return NOTHING if value is None else "yes" if value else "no"
    try:
        return f"{value:.4g}" if form == "{}" and isinstance(value, float) else form.format(value)
    except (ValueError, TypeError):  # another type, in damaged results
        return str(value)


def _naming(lines: Sequence[Sequence[str]]) -> int:
    """The smallest number of first columns that tells the rows apart; 0 if none does."""
    width = len(lines[0]) if lines else 0
    return next((n for n in range(1, width) if len({tuple(line[:n]) for line in lines}) == len(lines)), 0)


# ---------------------------------------------------------------- formats


def _harmless(data: TableData) -> TableData:
    """The table without control characters and line breaks: its text may come from results of others."""
    headers, *lines = ([visible(cell).replace("\n", " ") for cell in line] for line in (data.headers, *data.lines))
    return data._replace(headers=headers, lines=lines, title=None if data.title is None else visible(data.title))


def _print(data: TableData) -> None:
    form, data = STYLE.get().form, _harmless(data)
    if form == TEXT:
        _print_text(data, console())
    else:
        _write({MARKDOWN: as_markdown, CSV: as_csv, LATEX: as_latex}[form](data))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _print_text(data: TableData, out: Console) -> None:
    """One table, or several that fit the terminal."""
    if STYLE.get().wide:
        table = _rich(data, range(len(data.headers)))
        wide = Console(file=out.file, width=max(out.width, _width(table, out)), highlight=False)
        wide.print(table, soft_wrap=True)
        return
    unnamed = not data.names or _width(_rich(data, range(data.names)), out) > NAMES_SHARE * out.width
    if unnamed and _width(_rich(data, range(len(data.headers)), data.title), out) > out.width:
        data = _numbered(data)
    names, title = list(range(max(1, data.names))), data.title
    rest = [i for i in range(len(data.headers)) if i not in names]
    while True:
        tables = ([*names, *rest[:count]] for count in range(len(rest), 0, -1))
        fits = next((t for t in tables if _width(_rich(data, t, title), out) <= out.width), [*names, *rest[:1]])
        out.print(_rich(data, fits, title))
        rest, title = rest[max(1, len(fits) - len(names)) :], None
        if not rest:
            return


def _numbered(data: TableData) -> TableData:
    """The table with the number of each row in front, which names it in every part."""
    lines = [[str(number), *line] for number, line in enumerate(data.lines, 1)]
    return TableData(["#", *data.headers], lines, 1, [False, *data.left], data.title)


def _width(table: Table, out: Console) -> int:
    """Columns of a terminal that a table takes where nothing is shortened."""
    return table.__rich_measure__(out, out.options.update(max_width=1000)).maximum


def _rich(data: TableData, places: Sequence[int], title: str | None = None) -> Table:
    table = Table(title=None if title is None else Text(title), title_justify="left")
    for i in places:
        table.add_column(Text(data.headers[i]), justify="left" if data.left[i] else "right", no_wrap=True)
    for line in data.lines:
        table.add_row(*(Text(line[i]) for i in places))
    return table


def _plain(cell: Any) -> str:
    return str(getattr(cell, "plain", cell))
