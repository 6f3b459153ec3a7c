"""An independent solver of the bundled word problems, which reads the question only.

It knows how sentences look (from the templates' texts), but what each kind of event does to the number is written
down here anew, by reading the sentence; the package's own arithmetic is not used.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from testbed.models import stories

Number = Fraction
Event = Callable[[Number, int], Number]


def _more(now: Number, n: int) -> Number:
    return now + n


def _less(now: Number, n: int) -> Number:
    assert n < now, "more is taken away than there is"
    return now - n


def _each(now: Number, n: int) -> Number:
    return now * n


def _parts(now: Number, n: int) -> Number:
    return now / n


def _left_over(now: Number, n: int) -> Number:
    while now >= n:
        now -= n
    return now


def _filled(now: Number, n: int) -> Number:
    count = 0
    while now >= n:
        now, count = now - n, count + 1
    return Fraction(count)


def _apart(now: Number, n: int) -> Number:
    return now - n if now > n else n - now


def _larger(now: Number, n: int) -> Number:
    return now if now > n else Fraction(n)


def _smaller(now: Number, n: int) -> Number:
    return now if now < n else Fraction(n)


MEANING: dict[str, Event] = {
    **dict.fromkeys(
        ("buy", "gift", "drawer", "delivery", "fair", "market", "parcel", "swap", "collect", "return"), _more
    ),
    **dict.fromkeys(
        ("give", "lose", "sell", "broken", "throw", "borrow", "project", "river", "school", "donate"), _less
    ),
    **dict.fromkeys(("times", "price", "pieces", "beads", "teams", "points", "copies"), _each),
    **dict.fromkeys(("share", "boxes", "piles", "bundle", "rooms", "exchange", "weeks"), _parts),
    **dict.fromkeys(("bags", "shelves", "rows"), _left_over),
    **dict.fromkeys(("crates", "trays", "sets"), _filled),
    "rival": _apart,
    "bet": _apart,
    "larger": _larger,
    "smaller": _smaller,
}


def _pattern(text: str) -> re.Pattern[str]:
    regex = re.escape(text)
    for field, form in (("n", r"(\d+)"), ("name", "[A-Z][a-z]+"), ("other", "[A-Z][a-z]+"), ("items", "[a-z]+")):
        regex = regex.replace(re.escape(f"{{{field}}}"), form)
    return re.compile(regex)


EVENTS = {template.key: _pattern(template.text) for template in stories.TEMPLATES}
OPENINGS = [_pattern(text) for text in stories.OPENINGS]
NOISE = [_pattern(text) for text in stories.DISTRACTORS]


def solve(question: str) -> list[Fraction]:
    """The number after every event of a question; the last one is the answer."""
    first, *middle, last = re.findall(r"[^.?]+[.?]", question)
    openings = [found for pattern in OPENINGS if (found := pattern.fullmatch(first))]
    assert len(openings) == 1, first
    assert last.endswith("?"), last
    numbers = [Fraction(int(openings[0][1]))]
    for sentence in map(str.strip, middle):
        if any(pattern.fullmatch(sentence) for pattern in NOISE):
            continue
        readings = [(key, found) for key, pattern in EVENTS.items() if (found := pattern.fullmatch(sentence))]
        assert len(readings) == 1, (sentence, [key for key, _ in readings])
        key, found = readings[0]
        numbers.append(MEANING[key](numbers[-1], int(found[1])))
    return numbers[1:]
