"""Who carries the UE from place to place: asked on the terminal, or nobody, where the link is emulated."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from testbed.errors import BadInput
from testbed.experiments.field.plan import Place

SKIP, STOP = "s", "q"


class OperatorAnswer(NamedTuple):
    """What an operator says at a place."""

    word: str
    """`SKIP`, `STOP`, or nothing: go on."""
    note: str = ""


class Operator(Protocol):
    """Asked before anything is measured at a place, where a link looks wrong, and when a place is done."""

    def arrive(self, place: Place, runs: int, before: Mapping[str, Any] | None) -> OperatorAnswer:
        """Go to a place where so many runs are to do; `before` is the last visit to it."""

    def accept(self, place: Place, reasons: Sequence[str]) -> OperatorAnswer:
        """Go on although the link is not what it was here before; `SKIP`: leave this place alone.

        Raises:
            BadInput: nobody is there to ask.
        """

    def leave(self, place: Place) -> OperatorAnswer:
        """All runs of a place are done."""


class Terminal:
    """Implements `Operator`: questions on stderr, answers from stdin; the end of stdin stops."""

    def arrive(self, place: Place, runs: int, before: Mapping[str, Any] | None) -> OperatorAnswer:
        """See `Operator.arrive`."""
        about = f" ({place.about})" if place.about else ""
        again = f", again after {before['time']}" if before else ""
        self._say(f"\nPlace {place.name}: {place.distance_m:g} m from the access point{about}{again}; {runs} runs.")
        return self._ask("There? Enter goes on, a note is kept, s skips this place, q stops for now: ")

    def accept(self, place: Place, reasons: Sequence[str]) -> OperatorAnswer:
        """See `Operator.accept`."""
        self._say(f"This does not look like {place.name}: {'; '.join(reasons)}.")
        while True:
            answer = self._ask("Really here? y goes on, s skips this place, q stops for now: ", words=("y", SKIP, STOP))
            if answer.word:
                return OperatorAnswer("" if answer.word == "y" else answer.word)

    def leave(self, place: Place) -> OperatorAnswer:
        """See `Operator.leave`."""
        return self._ask(f"{place.name} is done. Anything to note? ", words=())

    def _ask(self, question: str, words: Sequence[str] = (SKIP, STOP)) -> OperatorAnswer:
        print(question, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            self._say("")
            return OperatorAnswer(STOP)
        text = line.strip()
        return OperatorAnswer(text) if text in words else OperatorAnswer("", text)

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Nobody:
    """Implements `Operator`: goes on by itself.

    Args:
        trusting: whether to go on where a link is not what it was; else that is refused.
    """

    def __init__(self, trusting: bool) -> None:
        self._trusting = trusting

    def arrive(self, place: Place, runs: int, before: Mapping[str, Any] | None) -> OperatorAnswer:
        """At once."""
        return OperatorAnswer("")

    def accept(self, place: Place, reasons: Sequence[str]) -> OperatorAnswer:
        """See `Operator.accept`."""
        if self._trusting:
            return OperatorAnswer("")
        raise BadInput(
            f"this does not look like {place.name}: {'; '.join(reasons)}; run without --yes to decide, or give the "
            "place another name"
        )

    def leave(self, place: Place) -> OperatorAnswer:
        """Without a word."""
        return OperatorAnswer("")
