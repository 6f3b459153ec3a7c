"""Options: fields of configurations that say what they mean, in which unit, and between which bounds.

A field is annotated once: `window: Annotated[int, option("Draft window K.", least=1, unit="tokens")] = 8`. The command
line, checks of values, and reference pages all read it from there.
"""

from __future__ import annotations

import datetime
import difflib
import functools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from testbed.errors import BadInput, ConfigError
from testbed.files import whole_file, yaml_file

LONGEST = 400
"""Characters of a complaint that are shown."""

C = TypeVar("C", bound="Config")
S = TypeVar("S", bound=msgspec.Struct)

DATES = (datetime.datetime, datetime.date)
"""Types of YAML beside those of JSON."""
METAVARS = {"s": "SECONDS"}
"""Placeholder of a value on help screens, by unit."""


@dataclass(frozen=True)
class Bounds:
    """An interval of numbers; None: no end on that side."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    """Like `least`, but the value itself is excluded."""
    below: float | None = None
    """Like `most`, but the value itself is excluded."""

    def __str__(self) -> str:
        """The interval in words, to follow "must" or to stand by itself."""
        low, high = self.above if self.least is None else self.least, self.below if self.most is None else self.most
        if low is None or high is None:
            if self.above == 0:
                return "positive"
            word, end = ("at least", low) if high is None else ("at most", high)
            if self.above is not None or self.below is not None:
                word = "above" if high is None else "below"
            return f"{word} {end:.10g}"
        if isinstance(low, int) and isinstance(high, int) and self.above is None and self.below is None and high > 1:
            return f"{low}..{high}"
        return f"{'(' if self.least is None else '['}{low:g}, {high:g}{')' if self.most is None else ']'}"

    def holds(self, value: float) -> bool:
        """Whether a number is finite and within."""
        return _is_finite(value) and not (
            (self.least is not None and value < self.least)
            or (self.most is not None and value > self.most)
            or (self.above is not None and value <= self.above)
            or (self.below is not None and value >= self.below)
        )


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the largest float
        return False


@dataclass(frozen=True)
class Option:
    """A field of a configuration."""

    name: str
    kind: Any
    """Type of the field, without the annotation."""
    default: Any
    """`msgspec.NODEFAULT`: it must be given."""
    about: str
    """One or two sentences."""
    unit: str | None = None
    bounds: Bounds | None = None
    panel: str | None = None
    """Heading under which help screens list it; None in `option`: that of the field before it."""
    metavar: str | None = None
    flags: tuple[str, ...] = ()
    """Names on the command line; default: the field's own."""
    kinds: str | None = None
    """Registry whose names are its values, for help screens and reference pages."""
    completes: str | None = None
    """Names that the shell completes, where files or other values are taken, too."""
    none: str | None = None
    """Word that stands for None on the command line."""
    repeat: bool = False
    """Given once for each value, rather than as a list with commas."""
    hidden: bool = False
    """Left out of help screens."""

    @property
    def flag(self) -> str:
        """The first name on the command line."""
        return self.flags[0] if self.flags else f"--{self.name.replace('_', '-')}"

    def check(self, value: Any) -> None:
        """Refuse a number outside the bounds.

        Raises:
            BadInput: the message names the option, its bounds and the value.
        """
        for one in value if isinstance(value, tuple) else (value,):
            if self.bounds and isinstance(one, int | float) and not self.bounds.holds(one):
                raise BadInput(f"{self.flag[2:]} must {_verb(str(self.bounds))}, not {one}")


def option(
    about: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    **more: Any,
) -> msgspec.Meta:
    """Annotation of a field.

    Args:
        about: the description, in plain text.
        least, most: smallest and largest allowed value; `above`, `below`: the same, themselves excluded.
        more: further attributes of `Option`: unit, panel, metavar, flags, kinds, completes, none, repeat,
            hidden.
    """
    bounds = Bounds(least, most, above, below)
    return msgspec.Meta(description=about, extra={**more, "bounds": None if bounds == Bounds() else bounds})


@functools.cache
def options_of(kind: type[msgspec.Struct]) -> tuple[Option, ...]:
    """The annotated fields of a configuration, in their order."""
    hints = get_type_hints(kind, include_extras=True)
    found: list[Option] = []
    panel = None
    for one in msgspec.structs.fields(kind):
        inner, *notes = get_args(hints[one.name]) if get_origin(hints[one.name]) is Annotated else [hints[one.name]]
        meta = next((note for note in notes if isinstance(note, msgspec.Meta)), None)
        if meta is None or meta.description is None:
            continue
        more = {"metavar": METAVARS.get((meta.extra or {}).get("unit", "")), **(meta.extra or {})}
        panel = more.pop("panel", panel)
        default = one.default if one.default_factory is msgspec.NODEFAULT else one.default_factory()
        found.append(Option(one.name, inner, default, meta.description, panel=panel, **more))
    return tuple(found)


def _verb(interval: str) -> str:
    return f"be {interval}" if interval.startswith(("at ", "positive", "above", "below")) else f"lie in {interval}"


# ---------------------------------------------------------------- configurations


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all configurations: frozen, refusing unknown keys and numbers out of bounds.

    Raises:
        BadInput: a number outside the bounds that its field states.
    """

    def __post_init__(self) -> None:
        for one in options_of(type(self)):
            if one.bounds:
                one.check(getattr(self, one.name))

    def refuse_unused(self, names: Iterable[str], when: str) -> None:
        """Refuse options that have no effect.

        Args:
            names: those that have none `when`, such as "in virtual time".

        Raises:
            BadInput: one of them has another value than its default.
        """
        idle = set(names)
        for one in options_of(type(self)):
            if one.name in idle and getattr(self, one.name) != one.default:
                raise BadInput(f"{one.flag} has no effect {when}; leave it out")


def load(kind: type[C], path: Path, pipes: bool = False) -> C:
    """Read a configuration from YAML. Numbers may be written as text, since YAML 1.1 takes 2.0e7 for one.

    Args:
        pipes: see `yaml_file`.

    Raises:
        ConfigError: unreadable, unknown keys, or values of a wrong type or out of bounds.
    """
    try:
        return msgspec.convert(yaml_file(path, pipes), kind, strict=False, builtin_types=DATES)
    except OSError as exc:
        raise ConfigError(f"cannot read {path}: {exc.strerror or exc}") from exc
    except (msgspec.DecodeError, BadInput, RecursionError) as exc:
        raise ConfigError(f"{path}: {_complaint(exc, kind)}") from exc


def _complaint(exc: Exception, kind: type[msgspec.Struct]) -> str:
    """A complaint of msgspec in one line, with what was probably meant."""
    said = str(exc)
    short = said if len(said) <= LONGEST else f"{said[: LONGEST // 2]} … {said[-LONGEST // 2 :]}"
    return short + _nearest(said, kind)


def _nearest(complaint: str, kind: type[msgspec.Struct]) -> str:
    """The known key or value nearest to the one that a complaint of msgspec is about, or all if none is near, for its
    end.
    """
    if unknown := re.search(r"unknown field `(.*?)`(?: - at `\$(.*)`)?", complaint):
        known = {key for one in _at(kind, unknown[2] or "") for key in _fields(one)} - {unknown[1]}
    elif unknown := re.search(r"Invalid (?:enum )?value '(.*)' - at `\$(.*)\.(\w+)`", complaint):
        known = {value for one in _at(kind, unknown[2]) for value in _values(one, unknown[3])}
    else:
        return ""
    near = difflib.get_close_matches(unknown[1], sorted(known), 1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(sorted(known))}" if known else ""


def _values(kind: type[msgspec.Struct], key: str) -> set[str]:
    """Texts that a configuration takes for a key that allows few: a choice, or its own kind."""
    config, chosen = kind.__struct_config__, [_fields(kind).get(key)]
    found = {str(config.tag)} if config.tag_field == key else set[str]()
    while chosen:
        one = chosen.pop()
        if get_origin(one) is Literal:
            found |= {value for value in get_args(one) if isinstance(value, str)}
        else:
            chosen += get_args(one)
    return found


def _at(kind: type[msgspec.Struct], path: str) -> list[type[msgspec.Struct]]:
    """Configurations that can stand at a path of msgspec's within another, such as `.ues[1].power`."""
    kinds = [kind]
    for name in re.sub(r"\[.*?\]", "", path).split(".")[1:]:
        kinds = [inner for one in kinds for inner in _structs(_fields(one).get(name))]
    return kinds


def _fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Types of a configuration's fields by key."""
    return {one.encode_name: one.type for one in msgspec.structs.fields(kind)}


def _structs(kind: Any) -> list[type[msgspec.Struct]]:
    """Configurations in a type: itself, or those of a union, a tuple or a mapping."""
    if isinstance(kind, type) and get_origin(kind) is None and issubclass(kind, msgspec.Struct):
        return [kind]
    return [inner for one in get_args(kind) for inner in _structs(one)]


def resolved(config: Config) -> dict[str, Any]:
    """The configuration as plain values, to be written beside results."""
    document: dict[str, Any] = msgspec.to_builtins(config)
    return document


def replaced(config: S, values: Mapping[str, Any], strict: bool = True) -> S:
    """A configuration with other values, checked as if it had been read from a file.

    Args:
        strict: False: numbers may be text.

    Raises:
        BadInput: an unknown field, or a value that cannot be used.
    """
    try:
        return msgspec.convert({**msgspec.to_builtins(config), **values}, type(config), strict=strict)
    except msgspec.ValidationError as exc:
        raise BadInput(_complaint(exc, type(config))) from exc


def save(config: Config, path: Path) -> None:
    """Write a configuration as YAML that `load` reads back, in one step.

    Raises:
        TestbedError: it cannot be written.
    """
    with whole_file(path) as part:
        part.write_bytes(msgspec.yaml.encode(config))
