"""`ue run` behind its command line, with a base station in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.assets.fingerprints import SYNTHETIC
from testbed.config import RunConfig, ServeConfig
from testbed.errors import BadInput
from testbed.experiments.inputs.formats import Example
from testbed.experiments.runs import journal as journals
from testbed.experiments.runs.journal import Journal
from testbed.experiments.runs.prepare import Prompt, Workload
from testbed.experiments.runs.processes import base_station
from testbed.experiments.runs.uerun import _journalled

WORK = Workload([Prompt([1, 2, 3], Example("")), Prompt([4, 5], Example(""))], [], None, SYNTHETIC)


@pytest.fixture(scope="module")
def config() -> Iterator[RunConfig]:
    """A run with a base station that serves it."""
    with base_station(ServeConfig(bind="tcp://127.0.0.1:*", engine="synthetic")) as ready:
        yield RunConfig(bs=ready["bind"], methods=("greedy",), max_tokens=6, drafter=SYNTHETIC, gate=False, warmup=0)


def test_a_resumed_run_is_refused_by_another_target_before_anything_is_decoded(
    config: RunConfig, tmp_path: Path
) -> None:
    """The journal compares what the base station serves; its answer to the greeting must reach the journal."""
    journal = Journal.begin(tmp_path, config, WORK)
    first = _journalled(config, WORK, journal)
    journal.close()
    assert [(len(o.record.token_ids), o.request) for o in first] == [(6, 0), (6, 1)]
    again = Journal.resume(tmp_path, config, WORK)
    assert again._shared is not None and len(again.done) == 2
    again._shared = {**again._shared, "weights": "another"}
    before = (tmp_path / journals.NAME).read_bytes()
    with pytest.raises(BadInput, match=r"the BS serves another model than the run .* began with"):
        _journalled(config, WORK, again)
    again.close()
    assert (tmp_path / journals.NAME).read_bytes() == before
    third = Journal.resume(tmp_path, config, WORK)
    assert [o.record.token_ids for o in _journalled(config, WORK, third)] == [o.record.token_ids for o in first]
    third.finish()
