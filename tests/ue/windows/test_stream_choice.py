"""The setting of streams, chosen from times that a base station reports."""

from __future__ import annotations

import pytest

from testbed.ue.windows.stream_choice import StreamChoice


def after(*passes_s: float) -> StreamChoice:
    """The choice after 30 tokens of a base station, and passes with these times."""
    choice = StreamChoice(8, alone=True)
    for _ in range(30):
        choice.drafted(0.005)
        choice.compared(1, 0)
        choice.linked(0.05)
        choice.passed(0, 0.02, 1)
    for pass_s in passes_s:
        choice.passed(0, pass_s, 1)
    return choice


@pytest.mark.parametrize("lie_s", [-86_400.0, -1e-3, 0.0, 1e-300])
def test_a_pass_that_took_no_time_ends_nothing_and_is_forgotten(lie_s: float) -> None:
    lied = after(lie_s, *[0.02] * 200)
    assert lied.times.pass_s == pytest.approx(0.02, rel=1e-3)
    assert lied.setting == after(*[0.02] * 201).setting
    lied = after(*[lie_s] * 100)
    assert lied.times.pass_s > 0
