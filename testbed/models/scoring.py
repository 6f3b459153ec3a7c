"""Extraction of the final answer from an output."""

from __future__ import annotations

import re
from fractions import Fraction

MARKER = "####"
"""What GSM8K writes before a result."""
MOST_CHARACTERS = 200
"""Characters after a marker that are looked at, and the longest number."""
_BEFORE = r"(?:[\s*_$£€(\[{]|\\[(\[$]|\\boxed\{)*"
"""Marks of Markdown, LaTeX and money."""
_NUMBER = re.compile(
    rf"{_BEFORE}(?P<sign>[-−+]?){_BEFORE}(?P<inner>[-−+]?)"
    r"(?P<whole>[0-9]{1,3}(?:[ \u00a0\u202f][0-9]{3})+(?![0-9])|[0-9]+(?:,[0-9]+)*)?(?P<part>\.[0-9]+)?"
    r"(?:[eE](?P<exponent>[-+]?[0-9]{1,3})(?![0-9]))?(?:\s*/\s*(?P<divisor>[0-9]+))?"
)
_MORE = re.compile(r"[.,:eE]?[0-9]|\s+[0-9]|\s*[-+*/×÷^=:–−]\s*[-−$(]?[0-9]")
"""What follows a number that is only a part of something else: of an equation, a time of day, a range."""


def final_number(text: str) -> str | None:
    """Number after the last ``####`` (GSM8K's marker) that a number follows, in one spelling for each value: ``-3``,
    ``0.75`` (also for 3/4 and 7.5e-1), ``1/3``. None without such a number, or where it is a part of an equation, a
    time of day or a range.
    """
    for after in reversed(text.split(MARKER)[1:]):
        line = after.lstrip()[:MOST_CHARACTERS].partition("\n")[0]
        found = _NUMBER.match(line)
        assert found is not None  # all of it is optional
        if found["whole"] or found["part"]:
            return None if _MORE.match(line, found.end()) else _value(found)
    return None


def _value(found: re.Match[str]) -> str | None:
    """A number in its one spelling; None: it is divided by zero."""
    whole = re.sub(r"[^0-9]", "", found["whole"] or "0")
    value = Fraction(f"{whole}{found['part'] or ''}e{found['exponent'] or 0}")
    if found["divisor"]:
        if not int(found["divisor"]):
            return None
        value /= int(found["divisor"])
    if (found["sign"] + found["inner"]).strip("+"):
        value = -value
    return _spelled(value)


def _spelled(value: Fraction) -> str:
    """An integer, a finite decimal fraction, or a quotient in lowest terms."""
    rest, digits = value.denominator, 0
    for prime in (2, 5):
        count = 0
        while rest % prime == 0:
            rest, count = rest // prime, count + 1
        digits = max(digits, count)
    if rest != 1:
        return f"{value.numerator}/{value.denominator}"
    if not digits:
        return str(value.numerator)
    scaled = str(abs(value.numerator) * 10**digits // value.denominator).rjust(digits + 1, "0")
    return f"{'-' if value < 0 else ''}{scaled[:-digits]}.{scaled[-digits:]}"
