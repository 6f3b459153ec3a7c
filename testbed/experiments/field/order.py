"""In which order the methods of a field run take their turns."""

from __future__ import annotations

from typing import NamedTuple

from testbed.experiments.field.plan import FieldPlan


class FieldCell(NamedTuple):
    """One method at one place, once."""

    place: str
    repeat: int
    method: str

    @property
    def key(self) -> str:
        """Its directory, below `cells/`."""
        return f"{self.place}/{self.repeat}-{self.method}"


def cells_of(plan: FieldPlan, place: str) -> list[FieldCell]:
    """All that is to be done at a place, in order.

    Each repeat takes the next row of a Williams design, and each place begins with another one: over as many repeats
    as there are rows, every method comes as often at every position, and as often right after every other one, so that
    neither a link that drifts nor what a method leaves behind favours any.
    """
    design = williams(len(plan.methods))
    first = [one.name for one in plan.places].index(place)
    names = [method.name for method in plan.methods]
    return [
        FieldCell(place, repeat, names[i])
        for repeat in range(plan.repeats)
        for i in design[(first + repeat) % len(design)]
    ]


def williams(n: int) -> list[list[int]]:
    """Rows of a Williams design for n treatments: n rows where n is even, 2n where it is odd (Williams, "Experimental
    Designs Balanced for the Estimation of Residual Effects of Treatments", Australian J. Sci. Res. A 2, 1949).

    The first row zigzags (0, 1, n−1, 2, n−2, …); the others count up from it, and for odd n are mirrored too.
    """
    first = [0] + [(i + 1) // 2 if i % 2 else n - i // 2 for i in range(1, n)]
    rows = [[(at + step) % n for at in first] for step in range(n)]
    return rows if n % 2 == 0 or n == 1 else [*rows, *(row[::-1] for row in rows)]
