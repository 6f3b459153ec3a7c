"""Registries: what can be chosen by name, built in or from an installed package.

Each kind of part (protocol, scheduler, engine, judge, drafter, window rule) has one registry. An entry carries all that
the rest of the program asks about the part, so that adding one needs no second list. A package outside the testbed adds
an entry by an entry point in the registry's group:

    [project.entry-points."testbed.protocols"]
    mine = "my_package.protocol:ENTRY"
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from testbed.errors import BadInput

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

LOG = logging.getLogger(__name__)


class Entry(Protocol):
    """Fields common to all entries of registries."""

    @property
    def kind(self) -> str:
        """The name by which it is chosen."""

    @property
    def about(self) -> str:
        """One line for help screens and reference pages."""


E = TypeVar("E", bound=Entry)


class Registry(Mapping[str, E], Generic[E]):
    """Entries by name, in the order in which they were added; those of installed packages come last.

    Args:
        what: what the entries are, for messages: `protocol`.
        group: entry-point group that installed packages add to: `testbed.protocols`.
        entries: the built-in ones.
        of: class of all entries, checked for those of packages.
    """

    def __init__(self, what: str, group: str, *entries: E, of: type[Any] = object) -> None:
        self._what, self._group, self._of = what, group, of
        self._entries: dict[str, E] = {}
        self._broken: dict[str, str] = {}
        self._loaded = False
        for entry in entries:
            self.add(entry)

    def add(self, entry: E) -> E:
        """Add an entry, and return it.

        Raises:
            BadInput: the name is taken.
        """
        if entry.kind in self._entries:
            raise BadInput(f"there is a {self._what} {entry.kind!r} already")
        self._entries[entry.kind] = entry
        return entry

    def choose(self, name: str) -> E:
        """The entry of that name.

        Raises:
            BadInput: unknown name (the message lists the known ones), or one of a package that cannot be loaded.
        """
        if name not in self:
            if name in self._broken:
                raise BadInput(self._broken[name])
            raise BadInput(f"unknown {self._what} {name!r}; known: {', '.join(self)}")
        return self[name]

    def __getitem__(self, name: str) -> E:
        if name not in self._entries:
            self._load()
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(dict(self._entries))

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def _load(self) -> None:
        """Add the entries of installed packages, once; one that cannot be loaded is left out, with a warning."""
        if self._loaded:
            return
        self._loaded = True
        from importlib.metadata import entry_points  # not needed at start-up

        for point in entry_points(group=self._group):
            self._add_point(point)

    def _add_point(self, point: EntryPoint) -> None:
        try:
            entry = point.load()
            if not isinstance(entry, self._of):
                raise BadInput(f"it names {entry!r}, not an instance of {self._of.__name__}")
            self.add(entry)
        except (Exception, SystemExit) as exc:  # whatever a foreign module raises
            self._broken[point.name] = f"cannot load the {self._what} {point.name!r} from {point.value}: {exc}"
            LOG.warning(self._broken[point.name])
