"""The operator who moves the UE between places: prompted on the terminal, or absent in emulated and unattended runs."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from testbed.errors import BadInput
from testbed.experiments.field.plan import Place

SKIP, STOP = "s", "q"


class OperatorAnswer(NamedTuple):
    """An operator's answer at a place."""

    word: str
    """`SKIP`, `STOP`, or empty to continue."""
    note: str = ""


class Operator(Protocol):
    """Consulted before a place is measured, when its link looks wrong, and when the place is done."""

    def arrive(self, place: Place, runs: int, before: Mapping[str, Any] | None) -> OperatorAnswer:
        """Move to a place with `runs` runs left; `before` is the last visit to it."""

    def accept(self, place: Place, reasons: Sequence[str]) -> OperatorAnswer:
        """Continue although the link differs from the last visit, or `SKIP` this place.

        Raises:
            BadInput: there is no operator to decide.
        """

    def leave(self, place: Place) -> OperatorAnswer:
        """Confirm that all runs of a place are done."""


class Terminal:
    """Implements `Operator`: questions on stderr, answers from stdin; end of input stops the run."""

    def __init__(self) -> None:
        if isinstance(sys.stdin, io.TextIOWrapper):  # a note of bytes that are no text could not be read from the log
            with contextlib.suppress(io.UnsupportedOperation):  # something was read already
                sys.stdin.reconfigure(errors="replace")

    def arrive(self, place: Place, runs: int, before: Mapping[str, Any] | None) -> OperatorAnswer:
        """See `Operator.arrive`."""
        about = f" ({place.about})" if place.about else ""
        again = f", last visited {before['time']}" if before else ""
        self._say(f"\nPlace {place.name}: {place.distance_m:g} m from the access point{about}{again}; {runs} runs.")
        return self._ask("Ready? Enter continues, s skips this place, q stops; any other text is saved as a note: ")

    def accept(self, place: Place, reasons: Sequence[str]) -> OperatorAnswer:
        """See `Operator.accept`."""
        self._say(f"This does not look like {place.name}: {'; '.join(reasons)}.")
        while True:
            answer = self._ask("Continue anyway? y continues, s skips this place, q stops: ", words=("y", SKIP, STOP))
            if answer.word:
                return OperatorAnswer("" if answer.word == "y" else answer.word)

    def leave(self, place: Place) -> OperatorAnswer:
        """See `Operator.leave`."""
        return self._ask(f"{place.name} is done. Notes? ", words=())

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


class Unattended:
    """Implements `Operator` without a person.

    Args:
        trusting: continue if a link differs from the last visit; otherwise raise.
    """

    def __init__(self, trusting: bool) -> None:
        self._trusting = trusting

    def arrive(self, place: Place, runs: int, before: Mapping[str, Any] | None) -> OperatorAnswer:
        """Continue at once."""
        return OperatorAnswer("")

    def accept(self, place: Place, reasons: Sequence[str]) -> OperatorAnswer:
        """See `Operator.accept`."""
        if self._trusting:
            return OperatorAnswer("")
        raise BadInput(
            f"this does not look like {place.name}: {'; '.join(reasons)}; run without --yes to decide, or rename the "
            "place"
        )

    def leave(self, place: Place) -> OperatorAnswer:
        """Continue at once."""
        return OperatorAnswer("")
