"""Run the commands of README and docs: `python -m scripts.doc_commands [--list] [WORDS]`.

Each line of a code block that begins with `testbed` is run in a scratch folder for at most `LIMIT_S`: it must end with
exit code 0, or still work then, as servers and long studies do. Lines that cannot run here are set aside with a reason.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.locked import ROOT
from testbed.errors import TestbedError

PAGES = ("README.md", "docs/start", "docs/guides", "docs/reference", "docs/explanation", "hardware")
LIMIT_S = 40.0
GRACE_S = 60.0
"""Time that an interrupted command has to end."""
INTERRUPTED = 130
BS = "tcp://127.0.0.1:5555"
"""Base station that commands expect; the script starts one."""
ASIDE = {
    r"192\.0\.2\.|198\.51\.100\.|example\.|ADDRESS": "names a machine that is not here",
    r"Qwen|Llama|\./large|small\.gguf|hf:|smollm2": "needs a model that is not here",
    r"--keys |keys (new|list|revoke)": "needs keys made for the reader's machines",
    r"channel radio": "needs Sionna",
    r"\btc\b|kind=tc|--via tc|namespaces": "changes network settings",
    r"jetson|tegrastats|--power|power (read|account)": "needs a power sensor",
    r"agent|deploy|collect|field report": "needs agents or an earlier run",
    r"\b(DIR|FILE|NAME|PLAN|RUN|HOST|PROFILE)\b|…|\.\.\.|<": "has a placeholder",
    r"iperf3|record|--real|ray\b|wheels": "needs a service or a cluster",
    r"install-completion": "changes the shell",
    r" > | \| ": "needs a shell",
    r"EDGE": "names a machine that is not here",
}
"""Reasons to set a line aside, by pattern."""

ELSEWHERE = {"docs/guides/extending.md": "run by tests/doors with the files of the page"}
"""Pages whose commands run elsewhere."""
OUTPUTS = ("--out", "--plots", "--plot", "--metrics")
"""Options that name what is written."""
INPUTS = (".csv", ".json", ".yaml", ".safetensors", ".gguf")


class DocCommand(NamedTuple):
    """A command line of a page."""

    page: str
    line: int
    text: str


class Ran(NamedTuple):
    """Result of a command."""

    ok: bool
    text: str
    interrupted: bool = False
    """Whether it reached its limit, so that what it writes is not finished."""


def commands(root: Path = ROOT) -> Iterator[DocCommand]:
    """Command lines of all pages, in order, each text once."""
    seen: set[str] = set()
    for place in PAGES:
        path = root / place
        for page in [path] if path.is_file() else sorted(path.rglob("*.md")):
            if "reference/commands" in page.as_posix():
                continue  # examples of help screens, which tests parse
            for line, text in _lines(page.read_text(encoding="utf-8")):
                if text not in seen:
                    seen.add(text)
                    yield DocCommand(page.relative_to(root).as_posix(), line, text)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines of code blocks that begin with `testbed`, joined where they end in a backslash, without comments."""
    inside, begun = False, None
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
            continue
        if begun is not None:
            begun = begun[0], begun[1][:-1] + line.strip()
        elif inside and line.strip().startswith("testbed "):
            begun = number, line.strip()
        if begun is not None and not begun[1].endswith("\\"):
            yield begun[0], re.sub(r"\s{2,}#.*$", "", begun[1]).strip()
            begun = None


def aside(command: DocCommand, folder: Path = ROOT, unfinished: Collection[str] = ()) -> str | None:
    """Why a command is not run in this folder; None: it is.

    Args:
        unfinished: outputs of commands that were interrupted.
    """
    if command.page in ELSEWHERE:
        return ELSEWHERE[command.page]
    why = next((why for pattern, why in ASIDE.items() if re.search(pattern, command.text)), None)
    return why or _missing(shlex.split(command.text), folder, unfinished)


def outputs(words: Sequence[str]) -> set[str]:
    """Where a command writes."""
    given = {word for before, word in itertools.pairwise(words) if before in OUTPUTS}
    return given or {f"runs/{name}" for name in words[2:3] if words[1] == "sweep"}


def _missing(words: Sequence[str], folder: Path, unfinished: Collection[str]) -> str | None:
    """The first input of a command that is not there, or not finished; None: all are."""
    for before, word in itertools.pairwise(words):
        path = word.partition("=")[2] if word[:1].isdigit() or "=runs/" in word else word
        is_input = path.startswith("runs/") or Path(path).suffix in INPUTS
        if is_input and before not in OUTPUTS and (path in unfinished or not (folder / path).exists()):
            return f"needs {path}, which an earlier command leaves"
    return None


def run(command: DocCommand, folder: Path, limit_s: float = LIMIT_S) -> Ran:
    """Run a command in a folder until it ends or the limit is reached."""
    arguments = [sys.executable, "-m", *shlex.split(command.text)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            arguments, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, text=True,
            env=environment, start_new_session=True,
        )  # fmt: skip
        code = _ended(process, limit_s)
        said.seek(0)
        last = (said.read().strip().splitlines() or [""])[-1]
    if code is None:
        return Ran(True, "still worked", interrupted=True)
    ok = code in (0, INTERRUPTED)
    return Ran(ok, f"exit code {code}" if ok else f"exit code {code}: {last}")


def _ended(process: subprocess.Popen[str], limit_s: float) -> int | None:
    """Exit code; None: it was interrupted at the limit, and ended."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(GRACE_S)
        return None
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return -signal.SIGKILL


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or list the commands whose text contains the words; returns 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print commands and reasons; run nothing")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="longest time of a command")
    parser.add_argument("words", nargs="*", help="run commands that contain all of these")
    options = parser.parse_args(arguments)
    chosen = [one for one in commands() if all(word in one.text for word in options.words)]
    failed, unfinished = 0, set[str]()
    with tempfile.TemporaryDirectory(prefix="testbed-docs-") as scratch:
        folder = Path(scratch)
        for name in ("plans", "sweeps", "traces", "hardware", "docs"):
            (folder / name).symlink_to(ROOT / name)
        for one in chosen:
            begun_s, why = time.monotonic(), aside(one, folder, unfinished)
            if why is not None or options.list:
                print(f"{one.page}:{one.line}: {one.text}\n    {'aside: ' + why if why else 'runs'}")
                continue
            found = _with_station(one, folder, options.limit_s)
            failed += not found.ok
            unfinished |= outputs(shlex.split(one.text)) if found.interrupted else set()
            state = "ok" if found.ok else "FAILED"
            print(
                f"{one.page}:{one.line}: {one.text}\n    {state}, {found.text}, {time.monotonic() - begun_s:.0f} s",
                flush=True,
            )
    return 1 if failed else 0


def _with_station(command: DocCommand, folder: Path, limit_s: float) -> Ran:
    """Run a command beside a base station if it is a UE's."""
    needs = command.text.startswith(("testbed ue ", "testbed chat", "testbed latency")) or BS in command.text
    if not needs or command.text.startswith("testbed bs "):
        return run(command, folder, limit_s)
    from testbed.config import ServeConfig
    from testbed.experiments.runs.processes import base_station
    from testbed.models.bundle import bundled

    model = str(bundled().require("target"))
    try:
        with base_station(ServeConfig(bind=BS, engine="transformers", model=model, threads=1)):
            return run(command, folder, limit_s)
    except TestbedError as exc:
        return Ran(False, str(exc))


if __name__ == "__main__":
    sys.exit(main())
