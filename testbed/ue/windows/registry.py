"""Window rules by name.

An installed package adds a rule by an entry point in the group `testbed.window_rules`, which names a `WindowRule`.
"""

from __future__ import annotations

from testbed.errors import BadInput
from testbed.registry import Registry
from testbed.ue.windows.base import WindowPolicy, WindowRule
from testbed.ue.windows.fixed import FIXED
from testbed.ue.windows.gain import GAIN
from testbed.ue.windows.hinted import hinted
from testbed.ue.windows.parallel import PARALLEL
from testbed.ue.windows.predicted import BEFORE, PREDICTED
from testbed.ue.windows.predictor import RejectionPredictor

HINTED = hinted(FIXED, "hinted")
WINDOW_RULES: Registry[WindowRule] = Registry(
    "window rule",
    "testbed.window_rules",
    FIXED,
    PREDICTED,
    BEFORE,
    GAIN,
    PARALLEL,
    HINTED,
    hinted(PREDICTED, "hinted-predicted"),
    hinted(GAIN, "hinted-gain"),
    of=WindowRule,
)


def window_policy(rule: str, max_window: int, predictor: RejectionPredictor | None = None) -> WindowPolicy:
    """A policy by the name of its rule; a predicted window takes the predictor's own threshold.

    Raises:
        BadInput: an unknown rule, a window out of bounds, or no predictor where one is needed.
    """
    entry = WINDOW_RULES.choose(rule)
    if entry.predictor and predictor is None:
        raise BadInput(f"window rule {rule} needs a predictor: give --predictor DIR")
    return entry.make(max_window, predictor)
