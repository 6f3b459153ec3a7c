"""Verification interference: the passes that are timed, and the results."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli.estimator import app
from testbed.errors import BadInput
from testbed.experiments.estimator.interference import Interference, interference, plot
from testbed.optim.pass_time import Coefficients, RequestWork
from tests.experiments.estimator.test_profile import Recorder

TIMES = Coefficients(2e-4, 3e-8, 5e-6, 0.02)


def test_each_kind_of_pass_is_timed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Recorder()

    def now_s() -> float:
        """A clock advanced by passes only; the first passes of a length are slower."""
        total = 0.0
        for count, batch in enumerate(engine.passes):
            total += TIMES.batch_s(batch) * (50 if count < 5 else 1)
        return total

    monkeypatch.setattr(time, "perf_counter", now_s)
    rows = interference(engine, (64, 700), RequestWork(5, 500), repeats=2, seed=1)
    for row, length in zip(rows, (64, 700), strict=True):
        assert row.new_tokens == length
        assert row.alone_a_s == pytest.approx(TIMES.batch_s([RequestWork(length, 0)]))
        assert row.alone_b_s == pytest.approx(TIMES.batch_s([RequestWork(5, 500)]))
        assert row.together_s == pytest.approx(TIMES.batch_s([RequestWork(length, 0), RequestWork(5, 500)]))
        assert row.inherited == row.together_s / row.alone_b_s > 1
    assert (
        len(engine.passes) == 2 * 3 * 5 and engine.kept == {}
    )  # two lengths, three rounds of A, B's prompt, B, their prompt, both


@pytest.mark.parametrize(
    ("lengths", "short", "repeats", "said"),
    [((), RequestWork(5, 5), 1, "lengths"), ((8,), RequestWork(5, 5), 0, "repeats"),
     ((8, 0), RequestWork(5, 5), 1, "at least 1"),
     ((2500,), RequestWork(5, 5), 1, "sequences of 2500"), ((8,), RequestWork(5, 2495), 1, "sequences of 2500")],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused(
    lengths: tuple[int, ...], short: RequestWork, repeats: int, said: str
) -> None:
    engine = Recorder()
    with pytest.raises(BadInput, match=said):
        interference(engine, lengths, short, repeats=repeats)
    assert engine.passes == []


def test_the_command_prints_one_document_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "fig4.svg"
    line = ["interference", "--engine", "synthetic", "--lengths", "8,32", "--prefix", "20", "--repeats", "1"]
    found = CliRunner().invoke(app, [*line, "--out", str(picture)])
    assert found.exit_code == 0 and "together ms" in found.stdout and "new tokens" in found.stdout
    assert picture.stat().st_size > 5_000
    with pytest.raises(BadInput, match="--lengths takes whole numbers separated by commas, not 'x'"):
        CliRunner().invoke(app, ["interference", "--lengths", "x"], catch_exceptions=False)


def test_a_plot_that_cannot_be_written(tmp_path: Path) -> None:
    rows = [Interference(8, 0.1, 0.1, 0.2)]
    with pytest.raises(BadInput, match="cannot write"):
        plot(rows, tmp_path / "none" / "fig4.png")
    plot(rows, tmp_path / "fig4.png")
    assert (tmp_path / "fig4.png").stat().st_size > 5_000
