"""Numbers in the cells of tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from testbed.bs.scheduling.estimator_csv import read_samples
from testbed.channel.trace import COLUMNS, read_trace
from testbed.errors import BadInput
from testbed.table_text import cell_number
from tests.support.refusals import refuse


@pytest.mark.parametrize("text", ["1", " -2.5e3 ", "+.5", "1e999"])
def test_numbers_are_those_of_python(text: str) -> None:
    assert cell_number(text) == float(text)
    assert np.isnan(cell_number("nan"))


@pytest.mark.parametrize("text", ["1_000", "1_0.5", "\uff11\uff12", "\u0661", "0x10", "", "1,5", "one"])
def test_what_python_alone_reads_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="could not convert"):
        cell_number(text)


@pytest.mark.parametrize(
    ("reader", "text", "said"),
    [
        (read_trace, f"{','.join(COLUMNS)}\n0,1_0,2,3,0,0,\n", "'1_0' is not a number"),
        (read_samples, "batch,new_tokens,cached_tokens,latency_s\na,5,1_0,0.1\n", "cached_tokens must be a number"),
    ],
)
def test_every_reader_refuses_them(reader: Callable[[Path], object], text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    refuse(lambda: reader(path), BadInput, said)
