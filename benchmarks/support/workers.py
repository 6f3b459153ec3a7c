"""Child processes that answer questions, one JSON line each, so that one run measures systems in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
RESAMPLES = 2000


class Worker:
    """A child process, which loads its system first; ask one at a time.

    Args:
        file: script of the child; it calls `answer`.
        what: first question, which says what to load.
        path: checkout that the child imports from; default: this one.

    Raises:
        RuntimeError: the child could not load it.
    """

    def __init__(self, file: str, what: Mapping[str, Any], path: Path = ROOT) -> None:
        environment = {**os.environ, "PYTHONPATH": str(path), "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            [sys.executable, file, "--worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment,
        )  # fmt: skip
        try:
            self.about = self.ask(**what)
        except BaseException:
            self.close()
            raise

    def ask(self, **question: Any) -> Any:
        """The answer to a question.

        Raises:
            RuntimeError: the child failed; the message is its error.
        """
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended with code {self._process.wait()}")
        found = json.loads(line)
        if "error" in found:
            raise RuntimeError(found["error"])
        return found["answer"]

    def close(self) -> None:
        """End the child."""
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def answer(load: Callable[..., tuple[Any, Callable[..., Any]]]) -> None:
    """Serve a parent: `load` takes the first question, and returns what to answer and the function for the others."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)  # libraries print
        function: Callable[..., Any] | None = None
        for line in sys.stdin:
            try:
                if function is None:
                    found, function = load(**json.loads(line))
                else:
                    found = function(**json.loads(line))
                said = {"answer": found}
            except Exception as exc:
                said = {"error": f"{type(exc).__name__}: {' '.join(str(exc).split())[:300]}"}
            out.write(json.dumps(said) + "\n")
            out.flush()


def median(values: Any) -> tuple[float, float, float]:
    """Median, and its 95 % bootstrap interval."""
    array = np.asarray(values, float)
    rng = np.random.default_rng(0)
    resampled = np.median(rng.choice(array, (RESAMPLES, len(array))), axis=1)
    low, high = np.quantile(resampled, (0.025, 0.975))
    return float(np.median(array)), float(low), float(high)
