"""`ue run` behind its command line, with a base station in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from testbed.assets.fingerprints import SYNTHETIC
from testbed.config import RunConfig, ServeConfig
from testbed.errors import BadInput
from testbed.experiments.inputs.formats import Example
from testbed.experiments.runs import journal as journals
from testbed.experiments.runs.execute import drafter_of
from testbed.experiments.runs.journal import Journal
from testbed.experiments.runs.prepare import Prompt, Workload
from testbed.experiments.runs.processes import base_station, command
from testbed.experiments.runs.uerun import TIMES, _journalled, _on_this_clock

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


def test_times_before_a_reboot_are_put_on_the_clock_of_the_resumption(config: RunConfig, tmp_path: Path) -> None:
    """Rounds of a resumed run had times of two clocks, and one was refused whose device had been up for days."""
    journal = Journal.begin(tmp_path, config, WORK)
    outcome, same = _journalled(config, WORK, journal)
    journal.finish()
    assert _on_this_clock(same) is same
    zero_s = outcome.record.clock_unix_s
    assert zero_s is not None
    rounds = [
        msgspec.structs.replace(one, **{name: getattr(one, name) + 500_000 for name in TIMES})
        for one in outcome.record.rounds
    ]
    before = msgspec.structs.replace(outcome.record, clock_unix_s=zero_s - 500_300.25, rounds=rounds)
    found = _on_this_clock(msgspec.structs.replace(outcome, record=before)).record
    for name in TIMES:
        apart_s = [
            getattr(a, name) - getattr(b, name) for a, b in zip(found.rounds, outcome.record.rounds, strict=True)
        ]
        assert apart_s == pytest.approx([-300.0] * len(apart_s))
    assert found.clock_unix_s == pytest.approx(zero_s - 0.25)


def test_rounds_before_a_resumption_are_told_from_those_after_it(config: RunConfig, tmp_path: Path) -> None:
    """Two processes measure the same zero of the clock, to the last bit, more often than once in ten times."""
    journal = Journal.begin(tmp_path, config, WORK)
    first = _journalled(config, WORK, journal)
    journal.close()
    again = Journal.resume(tmp_path, config, WORK)
    again.done = again.done[:1]  # as if killed before the last request
    before, after = (one.record.clock_unix_s for one in _journalled(config, WORK, again))
    again.finish()
    assert before == first[0].record.clock_unix_s != after
    assert after == pytest.approx(before, abs=1e-6)


@pytest.mark.parametrize(("methods", "said"), [(("greedy", "coupled"), True), (("greedy", "target-only"), False)])
def test_methods_that_share_a_memory_are_warned_of(
    config: RunConfig, methods: tuple[str, ...], said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The second one found the outputs of the first, and had the better figures."""
    drafter_of(msgspec.structs.replace(config, methods=methods, drafter_memory=100), WORK).close()
    assert ("methods find each other's outputs" in caplog.text) == said


def test_a_ue_that_was_stopped_says_so(tmp_path: Path) -> None:
    """As by Ctrl-Z: its rounds took as long, without a word."""
    options = [
        "--drafter",
        "synthetic",
        "--prompt-ids",
        "5,6,7",
        "--max-tokens",
        "8",
        "--no-gate",
        "--out",
        str(tmp_path / "run"),
    ]
    with base_station(ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*")) as ready:
        os.kill(ready["pid"], signal.SIGSTOP)
        with subprocess.Popen(
            command("ue", "run", "--bs", ready["bind"], "--out", str(tmp_path / "run"), *options),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        ) as ue:  # fmt: skip
            assert ue.stderr is not None
            assert "the BS has not answered" in ue.stderr.readline()
            ue.send_signal(signal.SIGSTOP)
            time.sleep(1.5)
            ue.send_signal(signal.SIGCONT)
            os.kill(ready["pid"], signal.SIGCONT)
            assert "this command stood still for 1." in ue.stderr.read()
        assert ue.returncode == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["still_s"] > 1.0
