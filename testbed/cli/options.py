"""Options of commands, made from the fields of configurations (`testbed.options`)."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
import typer

from testbed.assets import bundled_files
from testbed.errors import BadInput
from testbed.options import Config, Option, load, options_of

C = TypeVar("C", bound=Config)
Decorator = Callable[[Callable[..., None]], Callable[..., None]]
Number = TypeVar("Number", int, float)

KINDS = {
    "algorithms": "testbed.optim.baselines:ALGORITHMS",
    "auto rules": "testbed.protocols.adaptive:RULES",
    "bandwidth policies": "testbed.optim.bandwidth:POLICIES",
    "drafters": "testbed.ue.load_drafter:DRAFTERS",
    "engines": "testbed.bs.engines.registry:ENGINES",
    "fetched models": "testbed.assets.model_names:RELEASES",
    "fetched drafters": "testbed.assets.model_names:NAMES",
    "judges": "testbed.bs.judging.registry:JUDGES",
    "methods": "testbed.protocols.methods:methods",
    "protocols": "testbed.protocols:PROTOCOLS",
    "predictors": "testbed.experiments.predictor.models:FAMILIES",
    "schedulers": "testbed.bs.scheduling.registry:SCHEDULERS",
    "systems": "testbed.experiments.capacity.systems:system_names",
    "trace formats": "testbed.channel.formats.convert:FORMATS",
    "window rules": "testbed.ue.windows.registry:WINDOW_RULES",
}
"""Registry of each kind that can be chosen by name (`Option.kinds`, `Option.completes`), imported when its names are
shown; kinds of bundled files (`bundled_files.KINDS`) belong to them, too."""
OUTPUT = "Output"
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.", rich_help_panel=OUTPUT)]
Force = Annotated[bool, typer.Option("--force", help="Overwrite.", rich_help_panel=OUTPUT)]
ReadyJson = Annotated[bool, typer.Option("--json", help="Print one JSON line when ready.", rich_help_panel=OUTPUT)]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Read options from this YAML file; the command line takes precedence.",
        rich_help_panel=OUTPUT,
    ),
]  # fmt: skip


def refuse_to_overwrite(files: Iterable[Path], force: bool) -> None:
    """Refuse to write files over others without --force.

    Raises:
        BadInput: one of the files exists, and `force` is not set.
    """
    there = [path for path in files if os.path.lexists(path) and not path.is_dir()]
    if there and not force:
        raise BadInput(f"{there[0]} is there already; --force overwrites it")


@dataclass(frozen=True)
class Given:
    """Options of a command line: those that it names, and the file of `--config`."""

    values: dict[str, Any]
    file: Path | None = None

    def config(self, kind: type[C], base: Mapping[str, Any] = MappingProxyType({})) -> C:
        """The configuration: `base` or the file's, with the options that were given.

        Raises:
            BadInput: a value or file that cannot be used.
        """
        if self.file is None:
            values = {**base, **self.values}
            for one in options_of(kind):
                if one.default is msgspec.NODEFAULT and one.name not in values:
                    raise BadInput(f"missing option {one.flag}")
            return kind(**values)
        return msgspec.structs.replace(load(kind, self.file, pipes=True), **self.values)


def configured(kind: type[C], leave: Iterable[str] = (), only: Iterable[str] = ()) -> Decorator:
    """Decorator of a command: an option for each field of `kind`, and `--config FILE` for all of them.

    The command is called with the finished configuration and its own further parameters, which typer reads as usual.

    Args:
        leave: fields that the command line does not offer.
        only: the fields that it offers; default: all.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_config(given: Given, **values: Any) -> None:
            command(given.config(kind), **values)

        return offering(kind, leave, only)(with_config)

    return decorate


def offering(kind: type[Config], leave: Iterable[str] = (), only: Iterable[str] = ()) -> Decorator:
    """Like `configured`, for a command that makes its configuration itself: it is called with `Given`."""
    offered = {one.name: one for one in options_of(kind) if one.name not in leave and (not only or one.name in only)}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

        def called(typer_context: typer.Context, config_file: Path | None, **values: Any) -> None:
            given = {name: values.pop(name) for name in offered}
            named = {name: _value(offered[name], given[name]) for name in offered if _is_given(typer_context, name)}
            command(Given(named, config_file), **values)

        parameters = [
            inspect.Parameter("typer_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
            *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own if one.default is one.empty),
            *(_parameter(one) for one in offered.values()),
            *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own if one.default is not one.empty),
            inspect.Parameter("config_file", inspect.Parameter.KEYWORD_ONLY, annotation=ConfigFile, default=None),
        ]
        functools.update_wrapper(called, command)
        del called.__wrapped__  # type: ignore[attr-defined]  # its signature is not that of the command
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in parameters}
        called.configuration = kind  # type: ignore[attr-defined]  # for reference pages
        return called

    return decorate


def numbers(text: str, kind: Callable[[str], Number], option: str) -> list[Number]:
    """Numbers separated by commas.

    Raises:
        BadInput: anything else.
    """
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError as exc:
        whole = "whole numbers" if kind is int else "numbers"
        raise BadInput(f"{option} takes {whole} separated by commas, not {text!r}") from exc


def about(one: Option) -> str:
    """The description of an option, with the numbers that it takes and, for `with_names`, a mark for the names."""
    text = one.about
    if one.kinds:
        text += f" One of {{{one.kinds}}}."
    if one.bounds:
        bounds = str(one.bounds)
        text += f" {'Range ' if bounds[0] in '([0123456789' else ''}{bounds[0].upper()}{bounds[1:]}."
    return text


def with_names(text: str) -> str:
    """A description with the names of each kind in place of its mark, such as `{engines}`."""
    for kind in KINDS:
        if (mark := f"{{{kind}}}") in text:
            text = text.replace(mark, ", ".join(_names(kind)))
    return text


def completion(kind: str) -> Callable[[str], list[str]]:
    """Completion of a name of this kind, or of the last of several separated by commas."""

    def complete(incomplete: str) -> list[str]:
        head, comma, last = incomplete.rpartition(",")
        return [f"{head}{comma}{name}" for name in _names(kind) if name.startswith(last)]

    return complete


def _names(kind: str) -> list[str]:
    """Names of one of `KINDS`, or of the bundled files of a kind."""
    if kind in bundled_files.KINDS:
        return bundled_files.names(kind)
    module, _, name = KINDS[kind].partition(":")
    found: Any = getattr(importlib.import_module(module), name)
    return list(found() if callable(found) else found)


def _is_given(context: typer.Context, name: str) -> bool:
    """Whether the command line names an option, rather than leaving it at its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _parameter(one: Option) -> inspect.Parameter:
    """An option as typer declares it."""
    needed, names = one.default is msgspec.NODEFAULT, one.kinds or one.completes  # a file may have what is needed
    flags = one.flags or ((f"{one.flag}/--no-{one.flag[2:]}",) if one.kind is bool else (one.flag,))
    info = typer.Option(
        *flags, help=about(one) + (" Required." if needed else ""), metavar=one.metavar, rich_help_panel=one.panel,
        hidden=one.hidden, autocompletion=completion(names) if names else None,
    )  # fmt: skip
    return inspect.Parameter(
        one.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None if needed else _shown(one),
        annotation=Annotated[_typed(one) | None if needed else _typed(one), info],
    )


def _typed(one: Option) -> Any:
    """Type of an option for typer: lists are text with commas, unless the option is repeated."""
    if one.repeat:
        return list[str] | None
    as_text = _element(one) is not None or dict in _origins(one) or _number(one) is not None
    return str if as_text else one.kind


def _shown(one: Option) -> Any:
    """Default of an option as the command line writes it."""
    if one.repeat:
        return [str(one.default)] if one.default is not None else None
    if one.default is None:
        return one.none
    if _element(one) is None:
        return one.default
    return ",".join(f"{part:g}" if isinstance(part, float) else str(part) for part in one.default)


def _value(one: Option, given: Any) -> Any:
    """Value of a field from what the command line says.

    Raises:
        BadInput: not a list of such values.
    """
    if one.none is not None and given == one.none:
        return () if _element(one) else None
    element = _element(one)
    if one.repeat:
        return tuple(given) if element else ",".join(given)
    if given is not None and (number := _number(one)) is not None:
        return _one_number(one, given, number)
    if element is None or given is None:
        return given
    if element is not str:
        return tuple(numbers(given, element, one.flag))
    parts = tuple(dict.fromkeys(part.strip() for part in given.split(",") if part.strip()))
    if not parts:
        raise BadInput(f"{one.flag} takes names separated by commas, not {given!r}")
    return parts


def _one_number(one: Option, given: Any, kind: type[int] | type[float]) -> float | str:
    words = [word for part in _kinds(one) if get_origin(part) is Literal for word in get_args(part)]
    if given in words:
        return str(given)
    try:
        return kind(given)
    except ValueError as exc:
        what = "a whole number" if kind is int else "a number"
        raise BadInput(
            f"{one.flag} takes {what}{''.join(f', {w}' for w in words)} or {one.none}, not {given!r}"
        ) from exc


def _number(one: Option) -> type[int] | type[float] | None:
    """Type of a field that is one number, or None by a word."""
    if one.none is None:
        return None
    kinds: tuple[type[int], type[float]] = (int, float)
    return next((kind for kind in kinds if kind in _kinds(one)), None)


def _element(one: Option) -> Any:
    """Type of the elements of a field that is a tuple of any length; else None."""
    return next((get_args(kind)[0] for kind in _kinds(one) if get_args(kind)[1:] == (...,)), None)


def _origins(one: Option) -> list[Any]:
    return [get_origin(kind) for kind in _kinds(one)]


def _kinds(one: Option) -> tuple[Any, ...]:
    """The types of a field, one by one where it is a union."""
    return get_args(one.kind) if get_origin(one.kind) in (Union, types.UnionType) else (one.kind,)
