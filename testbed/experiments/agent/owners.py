"""Names of lab machines (keys) on an agent's disk, and what one of them may keep."""

from __future__ import annotations

import hashlib
from collections import Counter

from testbed.errors import BadInput


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
