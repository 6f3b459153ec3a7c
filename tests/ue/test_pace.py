"""Emulated drafting times include what the drafter itself computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from testbed.experiments.deployment.profiled import ProfilePace
from testbed.experiments.inputs.profile import load_profile
from testbed.ue.drafters.base import DraftToken
from testbed.ue.drafters.synthetic import SyntheticDrafter, SyntheticSequence
from testbed.ue.pace import ConstantPace, Pace
from testbed.ue.session_drafter import WindowDrafter
from testbed.ue.windows.fixed import FixedWindow

WINDOW = 4
COMMITTED = np.array([5, 6, 7], np.int32)


@dataclass
class _Clock:
    """Stands still unless somebody computes or sleeps."""

    now_s: float = 100.0
    slept_s: float = 0.0

    def time(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds


def _slow_drafter(clock: _Clock, token_s: float, patch: pytest.MonkeyPatch) -> SyntheticDrafter:
    """A drafter that computes for a while at each token."""
    at_once = SyntheticSequence.draft_one

    def slow(self: SyntheticSequence) -> DraftToken:
        clock.now_s += token_s
        return at_once(self)

    patch.setattr(SyntheticSequence, "draft_one", slow)
    return SyntheticDrafter(vocab_size=100, alpha=1.0)


async def _window_s(pace: Pace, clock: _Clock, token_s: float) -> float:
    """Time of a window after its prompt."""
    with pytest.MonkeyPatch.context() as patch:
        windows = WindowDrafter(_slow_drafter(clock, token_s, patch), FixedWindow(WINDOW), None, pace, 16)
        windows.begin(COMMITTED.tolist())
        await windows.catch_up(COMMITTED)
        begun_s = clock.now_s
        await windows.draft(0, 10, frozenset())
        return clock.now_s - begun_s


@pytest.mark.parametrize("own_s", [0.0, 0.004, 0.01])
async def test_a_window_lasts_as_long_as_the_emulated_device_needs(own_s: float) -> None:
    clock = _Clock()
    assert await _window_s(ConstantPace(clock, 0.01), clock, own_s) == pytest.approx(WINDOW * 0.01)


async def test_a_drafter_slower_than_the_emulated_device_is_not_delayed() -> None:
    clock = _Clock()
    assert await _window_s(ConstantPace(clock, 0.01), clock, 0.02) == pytest.approx(WINDOW * 0.02)
    assert clock.slept_s == 0


async def test_a_profiles_times_include_the_computation() -> None:
    profile = load_profile("wisv")
    times = []
    for own_s in (0.0, profile.draft.window_s(WINDOW, len(COMMITTED)) / WINDOW / 2):
        clock = _Clock()
        times.append(await _window_s(ProfilePace(profile, clock), clock, own_s))
    assert times[1] == pytest.approx(times[0])
