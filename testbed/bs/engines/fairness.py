"""Fair shares of an engine's sequences, so that no UE takes the keys and values of all others.

The owner of a session is the UE that its name begins with (`SessionTable.open`); names without a slash own themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

EMPTY: frozenset[str] = frozenset()
STALE_PASSES = 1000
"""Passes without a round after which a session counts no longer for its owner's share, and is the first to lose its
place: its UE may be gone. A number of passes, not a time, so that the same requests have the same passes."""


def owner(session: str) -> str:
    """The owner of a session."""
    return session.partition("/")[0]


def fair_share(sessions: Iterable[str], places: int) -> int:
    """Most places that one owner may take of `places`, while each owner of fewer sessions has one for all of its own:
    max-min fairness, at least 1.
    """
    wanted = sorted(Counter(map(owner, sessions)).values())
    left = places
    for i, count in enumerate(wanted):
        owners = len(wanted) - i
        if count * owners > left:
            return max(1, left // owners)
        left -= count
    return places


def to_evict(
    held: Collection[str],
    opening: str,
    busy: Collection[str] = EMPTY,
    stale: Collection[str] = EMPTY,
    waiting: Collection[str] = EMPTY,
) -> str:
    """The session to lose its place: the first stale one; if there is none, the first of the owner with most sessions,
    that which is opened counted, if possible one without a round that waits.

    Args:
        held: sessions with a place, the least recently used first.
        opening: session that needs one.
        busy: sessions that must keep theirs; not all of `held`.
        stale: sessions that were not used for `STALE_PASSES`.
        waiting: sessions with a round of a later pass, which would compute the prefix again.
    """
    counts = Counter(map(owner, held))
    counts[owner(opening)] += 1
    free = [session for session in held if session not in busy]
    found = next((session for session in free if session in stale), None)
    return found or max(free, key=lambda session: (counts[owner(session)], session not in waiting))
