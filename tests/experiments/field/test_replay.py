"""What a prediction of a field run is fitted to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from testbed.errors import BadInput
from testbed.experiments.field import replay
from testbed.experiments.field.order import FieldCell
from testbed.experiments.field.replay import VirtualPair
from testbed.experiments.field.samples import REPLAY
from tests.support.refusals import refuse


def test_a_prediction_is_fitted_to_other_runs_of_its_method_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Device times to other repeats at the place, software overhead to other places; a run alone has no prediction."""
    fitted: list[tuple[set[FieldCell], set[FieldCell]]] = []

    def fit(computed: Sequence[Any], elsewhere: Sequence[Any], *_: Any) -> None:
        fitted.append(({row["cell"] for row in computed}, {row["cell"] for row in elsewhere}))

    monkeypatch.setattr(replay, "field_profile", fit)
    pair = VirtualPair.__new__(VirtualPair)
    pair._padded, pair._emulated = None, False
    cells = list(itertools.starmap(FieldCell, itertools.product(("near", "far"), (0, 1), ("greedy", "fh"))))

    def predict(ran: Sequence[FieldCell], cell: FieldCell) -> tuple[set[FieldCell], set[FieldCell]]:
        pair._rounds = {one: [{"cell": one}] for one in ran}
        pair._profile(cell, REPLAY, 16)
        return fitted[-1]

    for cell in cells:
        others = {one for one in cells if one.method == cell.method and one != cell}
        here = {one for one in others if one.place == cell.place}
        assert predict(cells, cell) == (here, others - here)
    one, two, three = FieldCell("near", 0, "fh"), FieldCell("near", 1, "fh"), FieldCell("far", 0, "fh")
    assert predict([one, two], one) == ({two}, {two})
    assert predict([one, three], one) == ({three}, {three})
    refuse(lambda: predict([one, FieldCell("near", 1, "greedy")], one), BadInput, "another repeat or place")
