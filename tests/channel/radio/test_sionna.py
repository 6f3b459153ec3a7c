"""The table of block error rates and the reference values of the tests are what Sionna computes."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="Sionna needs Python 3.11")


def test_the_files_that_tests_and_cells_read_are_what_sionna_computes() -> None:
    from scripts.radio_tables import REFERENCE, TABLE, computed

    arrays, found = computed()
    with np.load(TABLE) as table:
        assert set(table) == set(arrays)
        for name, values in arrays.items():
            np.testing.assert_allclose(table[name], values, rtol=1e-5, atol=1e-6)
    known = json.loads(REFERENCE.read_text())
    assert known["proportional_fair"] == found["proportional_fair"]
    for way in ("uplink", "downlink"):
        assert len(known[way]) == len(found[way]) > 40
        for ours, theirs in zip(known[way], found[way], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
