"""Configurations of a base station: every scheduler and judge of the registries, with and without window hints."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from testbed.bs.engines.target import vocabulary
from testbed.bs.judging.base import Judge
from testbed.bs.judging.registry import JUDGES, make_judge
from testbed.bs.scheduling.admission import Admission
from testbed.bs.scheduling.estimator_online import OnlineEstimator
from testbed.bs.scheduling.registry import SCHEDULERS, SchedulerSetting, scheduler
from testbed.bs.scheduling.window_hints import Windows, window_config
from testbed.models.bundle import bundled
from testbed.optim.pass_time import Coefficients
from testbed.synthetic import VOCAB
from tests.support.heads import head_files
from tests.support.hostile.direct import CHUNK_TOKENS

CONTROLLERS = (None, "on", "max_window=256,least_window=0,every=1,switching_s=0,memory=1,load_memory=1,prior_tokens=0")
"""Window controllers: none, the default, and one that follows every round at once."""
TIMES = Coefficients(1e-5, 1e-9, 1e-8, 1e-3)
BUDGET = 0.3
MAX_REQUESTS = 8
SCALARS = {"coefficients": "probe"}
"""Values of the options that schedulers take."""


class Case(NamedTuple):
    """One configuration."""

    scheduler: str
    judge: str
    controller: str | None

    @property
    def name(self) -> str:
        """Name of the test."""
        return f"{self.scheduler}-{self.judge}-{CONTROLLERS.index(self.controller)}"

    @property
    def vocab_size(self) -> int:
        """Number of ids that the target of `options` knows."""
        return vocabulary(bundled().require("target")) if JUDGES[self.judge].needs_tokenizer else VOCAB

    def judging(self, heads: Path) -> Judge:
        """Judge of the configuration, with a random head that is written to a directory."""
        entry = JUDGES[self.judge]
        target = bundled().require("target") if entry.needs_tokenizer else None
        return make_judge(self.judge, self._head(heads), BUDGET if entry.needs_budget else None, target)

    def station(self) -> dict[str, Any]:
        """Scheduler, estimator, admission and controller, as arguments of `BaseStation`."""
        setting = SchedulerSetting(MAX_REQUESTS, 256, TIMES, chunk_tokens=CHUNK_TOKENS, cuts=True)
        estimator = OnlineEstimator(TIMES)
        found: dict[str, Any] = {"scheduler": scheduler(self.scheduler, setting), "estimator": estimator}
        if SCHEDULERS[self.scheduler].admits:
            found["admission"] = Admission(coefficients=TIMES, max_requests=MAX_REQUESTS)
        if self.controller is not None:
            config = window_config(self.controller)
            found["windows"] = Windows(config, lambda: estimator.coefficients, MAX_REQUESTS, VOCAB)
        return found

    def options(self, heads: Path) -> tuple[str, ...]:
        """The same as options of `bs serve`; a judge that reads a tokenizer gets the bundled target."""
        entry = JUDGES[self.judge]
        engine = ("--engine", "synthetic")
        if entry.needs_tokenizer:
            engine = ("--engine", "transformers", "--threads", "1", "--model", str(bundled().require("target")))
        given: Mapping[str, str | None] = {
            "scheduler": self.scheduler,
            "judge": self.judge,
            "window-controller": self.controller,
            "head": str(self._head(heads)) if entry.needs_head else None,
            "quality-budget": str(BUDGET) if entry.needs_budget else None,
        } | {name.replace("_", "-"): SCALARS[name] for name in SCHEDULERS[self.scheduler].options}
        chosen = ((f"--{name}", value) for name, value in given.items() if value is not None)
        return (*engine, *itertools.chain.from_iterable(chosen))

    def _head(self, directory: Path) -> Path | None:
        if not JUDGES[self.judge].needs_head:
            return None
        return head_files(directory, thresholds=((0.0, 0.2), (1.0, 0.8)))


CASES = [Case(*chosen) for chosen in itertools.product(SCHEDULERS, JUDGES, CONTROLLERS)]


def covering() -> list[Case]:
    """The fewest configurations that contain every scheduler, judge and controller once."""
    count = max(len(SCHEDULERS), len(JUDGES), len(CONTROLLERS))
    columns = (itertools.islice(itertools.cycle(kinds), count) for kinds in (SCHEDULERS, JUDGES, CONTROLLERS))
    return [Case(*chosen) for chosen in zip(*columns, strict=True)]
