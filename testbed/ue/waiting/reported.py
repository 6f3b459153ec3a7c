"""Times that a BS reports of its work, cut to what the UE has measured."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from testbed.protocols.messages import Verdict

LOG = logging.getLogger(__name__)
TOLERANCE, TOLERANCE_S = 1e-6, 1e-3
"""Relative excess, and excess in seconds, of reported over measured times that is left to the clocks."""


class ReportedTimes:
    """Cuts the times that a BS reports of one session.

    Args:
        start_s: start of the session on the UE's clock.
    """

    def __init__(self, start_s: float) -> None:
        self._start_s, self._alone_s = start_s, 0.0
        self._told = False

    def of_window(self, verdict: Verdict, seconds: float) -> Verdict:
        """A verdict whose queue, verification and judging, and whose whole time at the BS, were no longer than its
        exchange, and none less than 0.
        """
        told_s = (verdict.queue_s, verdict.verify_s, verdict.judge_s)
        parts_s = [max(0.0, part) for part in told_s]
        sum_s, bs_s = sum(parts_s), max(0.0, verdict.bs_s)
        if (longest_s := max(sum_s, bs_s)) <= seconds * (1 + TOLERANCE) + TOLERANCE_S:
            if min(*told_s, verdict.bs_s) >= 0:
                return verdict
        else:
            if not self._told:
                LOG.warning("the BS reports work of %.3g s in %.3g s: its times are cut", longest_s, seconds)
            self._told, seconds = True, max(0.0, seconds)
            bs_s = min(bs_s, seconds)
            if sum_s > seconds:
                parts_s = [part * seconds / sum_s for part in parts_s]
        queue_s, verify_s, judge_s = parts_s
        return replace(verdict, queue_s=queue_s, verify_s=verify_s, judge_s=judge_s, bs_s=bs_s)

    def alone(self, verdict: Verdict, now_s: float) -> Verdict:
        """The same of a BS that decodes alone: its verdicts may come together, so that their times are compared with
        that since the start.
        """
        found = self.of_window(verdict, max(0.0, now_s - self._start_s - self._alone_s))
        self._alone_s += max(found.bs_s, found.queue_s + found.verify_s + found.judge_s)
        return found
