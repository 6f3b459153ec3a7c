"""Responses of a UE that are judged: those that begin within the time, and those that never end."""

from __future__ import annotations

from typing import Any

from testbed.experiments.cell.tally import UeTally
from testbed.virtual_time import VirtualClock, run_virtually


def test_a_response_that_never_ends_is_late_whenever_it_began() -> None:
    """Four responses begin in the warm-up: one ends late, one in time, and one is due after the end of the run."""
    record: Any = None

    async def main() -> UeTally:
        clock = VirtualClock()
        tally = UeTally(clock, 5.0, 20.0)
        tally.response(8, 1.0)
        tally.response(100, 1.0)
        late, punctual = tally.response(8, 1.0), tally.response(8, 1.0)
        await clock.sleep(4.0)
        punctual(record)
        await clock.sleep(11.0)
        late(record)
        assert (tally.judged, tally.violated) == (0, 0)
        await clock.sleep(5.0)
        return tally

    found = run_virtually(main())
    assert (found.judged, found.violated, found.latencies_s) == (1, 1, [])


def test_responses_that_begin_within_the_time_are_judged_if_they_are_due_by_its_end() -> None:
    async def main() -> UeTally:
        clock = VirtualClock()
        tally = UeTally(clock, 1.0, 20.0)
        await clock.sleep(2.0)
        tally.response(8, 1.0)
        tally.response(8, None)
        tally.response(18, 1.0)
        await clock.sleep(20.0)
        return tally

    found = run_virtually(main())
    assert (found.judged, found.violated) == (1, 1)
