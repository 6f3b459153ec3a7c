"""Fixed windows."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.errors import BadInput
from testbed.ue.drafters.base import DraftToken
from testbed.ue.windows.fixed import FixedWindow

TOKEN = DraftToken(1, 1.0, 0.0, 1.0, 0.0, np.zeros(1, np.float16))


@pytest.mark.parametrize("window", [1, 2, 8, 256])
def test_it_drafts_until_the_window_is_full(window: int) -> None:
    policy = FixedWindow(window)
    drafted = [TOKEN]
    while policy.keep_drafting(drafted):
        drafted.append(TOKEN)
    assert len(drafted) == window == policy.max_window


@pytest.mark.parametrize("window", [0, -1, 257])
def test_windows_out_of_bounds_are_refused(window: int) -> None:
    with pytest.raises(BadInput, match=rf"window must lie in 1\.\.256, not {window}"):
        FixedWindow(window)
