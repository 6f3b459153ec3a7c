"""Which lab machine (key) each uploaded file of an agent came from, and what one lab machine may keep of a bound."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from pathlib import Path

from testbed.errors import BadInput
from testbed.files import whole_file


def owner_name(key: bytes) -> str:
    """A short name of a lab machine for files on disk; empty without keys."""
    return hashlib.blake2b(key, digest_size=8).hexdigest() if key else ""


def check_room(held: Counter[str], owner: str, most: int, things: str) -> None:
    """Refuse one more of `most` things: each lab machine may keep half of what the others leave, so that none can take
    what is left for the next one. Without keys nobody can be told apart, and all is for everybody.

    Args:
        held: number that each one keeps, by `owner_name`.
        things: what is kept, and how it is deleted.

    Raises:
        BadInput: it has no room.
    """
    others = held.total() - held[owner]
    if owner and 2 * held[owner] >= most - others:
        raise BadInput(
            f"the agent keeps {held[owner]} {things} of this lab machine and {others} of others: each may keep half of "
            f"what the others leave of {most}"
        )
    if held.total() >= most:
        raise BadInput(f"the agent already keeps {most} {things}")


class FileOwners:
    """Owners of the files below `root`, kept in a file beside it: a line `OWNER NAME` for each; the last one holds.

    Files without a line, such as those of an agent without keys, belong to no lab machine.

    Raises:
        TestbedError: the list cannot be written.
    """

    def __init__(self, root: Path) -> None:
        self._path = root.with_name(f"{root.name}.owners")
        found = {path.relative_to(root).as_posix(): "" for path in root.rglob("*") if path.is_file()}
        with contextlib.suppress(FileNotFoundError):
            for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
                owner, _, name = line.partition(" ")
                if name in found:
                    found[name] = owner
        self._owners = found
        self.held = Counter(found.values())
        """Number of files of each owner."""
        with whole_file(self._path) as part:
            part.write_text("".join(f"{owner} {name}\n" for name, owner in found.items()), encoding="utf-8")

    def set(self, name: str, owner: str) -> None:
        """Record the owner of a file, new or replaced.

        Raises:
            OSError: it cannot be written.
        """
        before = self._owners.get(name)
        if before == owner:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{owner} {name}\n")
        self._owners[name] = owner
        self.held[owner] += 1
        if before is not None:
            self.held[before] -= 1
