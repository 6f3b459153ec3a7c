"""Balanced order of the methods of a field run."""

from __future__ import annotations

from typing import NamedTuple

from testbed.experiments.field.plan import FieldPlan


class FieldCell(NamedTuple):
    """One method at one place in one repeat."""

    place: str
    repeat: int
    method: str
    together: bool = False
    """Whether the UEs of all places run it at the same time."""

    @property
    def key(self) -> str:
        """Directory below `cells/`."""
        return f"{self.place}/{'together-' * self.together}{self.repeat}-{self.method}"


def cells_of(plan: FieldPlan, place: str) -> list[FieldCell]:
    """All cells of a place, in order.

    Each repeat uses the next row of a Williams design, and each place starts with a different row. Over all rows, every
    method occurs equally often at every position and right after every other method, so that neither link drift nor
    carry-over effects favour any.
    """
    design = williams(len(plan.methods))
    first = [one.name for one in plan.places].index(place)
    names = [method.name for method in plan.methods]
    return [
        FieldCell(place, repeat, names[i])
        for repeat in range(plan.repeats)
        for i in design[(first + repeat) % len(design)]
    ]


def steps_together(plan: FieldPlan) -> list[list[FieldCell]]:
    """The cells that run at the same time, one of each place, in order; empty: the plan has none.

    All UEs run the same method. Each repeat uses the next row of the design.
    """
    design, names = williams(len(plan.methods)), [method.name for method in plan.methods]
    return [
        [FieldCell(place.name, repeat, names[i], together=True) for place in plan.places]
        for repeat in range(plan.repeats if plan.together else 0)
        for i in design[repeat % len(design)]
    ]


def williams(n: int) -> list[list[int]]:
    """Rows of a Williams design for n treatments: n rows if n is even, 2n if odd (Williams, "Experimental Designs
    Balanced for the Estimation of Residual Effects of Treatments", Australian J. Sci. Res. A 2, 1949).

    The first row zigzags (0, 1, n−1, 2, n−2, …); the others add 1, 2, … modulo n; for odd n, mirrored rows are added.
    """
    first = [0] + [(i + 1) // 2 if i % 2 else n - i // 2 for i in range(1, n)]
    rows = [[(at + step) % n for at in first] for step in range(n)]
    return rows if n % 2 == 0 or n == 1 else [*rows, *(row[::-1] for row in rows)]
