"""Programs that a model wrote, run with limits: HumanEval's check of a completion (arXiv 2107.03374, Section 2.1)."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from testbed.experiments.inputs.formats import Example

TIMEOUT_S = 30.0
"""Longest run of a program, also one that waits; on a busy machine the CPU time bounds the others."""
LIMITS = {"CPU": 5, "AS": 2**30, "FSIZE": 2**20, "NOFILE": 32, "NPROC": 16, "CORE": 0}
"""Resource limits: seconds of CPU time, bytes of address space, bytes of a file, open files, processes of the user."""
PASSED = 77
"""Exit code of a program that ran to its end, which `sys.exit` within it does not give."""
LAUNCHER = f"""
import os, resource, sys, types
source = compile(open("program.py", encoding="utf-8").read(), "program.py", "exec")
for name, most in {LIMITS!r}.items():
    kind = getattr(resource, "RLIMIT_" + name)
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))
program = sys.modules["program"] = types.ModuleType("program")  # where dataclasses look up their annotations
try:
    exec(source, program.__dict__)
except SystemExit:
    os._exit(1)
os._exit({PASSED})
"""
STOPS = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(", "\n@", "\n```")
"""Where a completion ends that is no block of code: HumanEval's stop sequences."""
FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>```|~~~)[ \t]*(?P<language>[^\s`]*)[^\n`]*\n(?P<block>.*?)(?:^[ \t]*(?P=fence)|\Z)",
    re.DOTALL | re.MULTILINE,
)
"""A block of code in Markdown."""
LANGUAGES = ("", "python", "py", "python3", "py3")
ISOLATED = ("unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")
"""Runs a command without network and in a process namespace of its own, all of which ends with it."""


def program_of(example: Example, text: str) -> str | None:
    """The function in an output, with what stands before it in the prompt; None: it is not valid Python.

    An output is a block of code, or the whole function, or what continues the prompt.
    """
    assert example.program is not None
    defined = re.compile(rf"^(async )?def {example.program.entry_point}\(", re.MULTILINE)
    text = text.replace("\r\n", "\n")
    blocks = [block for block in map(_block, FENCE.finditer(text)) if block.strip()]
    whole = next((block for block in blocks if defined.search(block)), None)
    if whole is None and not blocks and defined.search(text):
        whole = text[: text.find("\n```")] if "\n```" in text else text
    if whole is not None:
        source = example.question[: _begin(defined, example.question)] + whole
    else:
        source = example.question + _cut(blocks[0] if blocks else text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd literals
            compile(source, "program.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return source


def _block(found: re.Match[str]) -> str:
    """The Python in a block, without the indent of its fence; empty: it is in another language."""
    if found["language"].lower() not in LANGUAGES:
        return ""
    return re.sub(rf"^{found['indent']}", "", found["block"], flags=re.MULTILINE)


def _begin(defined: re.Pattern[str], prompt: str) -> int:
    """Index of the function in a prompt, which begins with its imports and helpers."""
    found = defined.search(prompt)
    return found.start() if found else 0


def _cut(completion: str) -> str:
    ends = [i for i in (completion.find(stop) for stop in STOPS) if i >= 0]
    return completion[: min(ends)] if ends else completion


def passes(example: Example, source: str) -> bool:
    """Whether a program passes its example's test."""
    assert example.program is not None
    return _passes(f"{source}\n\n{example.program.test}\n\ncheck({example.program.entry_point})\n")


@functools.lru_cache(maxsize=4096)
def _passes(source: str) -> bool:
    """Whether a program runs to its end; cached, since lossless methods write the same programs."""
    scratch = tempfile.TemporaryDirectory(prefix="testbed-code-", ignore_cleanup_errors=True)
    try:
        (Path(scratch.name) / "program.py").write_text(source, encoding="utf-8")
        return _exit_code(scratch.name) == PASSED
    finally:
        # Python before 3.13 removes folders by recursion, which programs can nest too deeply for it.
        subprocess.run(["rm", "-rf", scratch.name], stderr=subprocess.DEVNULL, check=False)
        with contextlib.suppress(RecursionError):
            scratch.cleanup()  # what `rm` was not allowed to


def _exit_code(folder: str) -> int | None:
    """Exit code of the program in a folder; None: it was stopped."""
    process = subprocess.Popen(
        [*(ISOLATED if isolates() else ()), sys.executable, "-I", "-S", "-B", "-c", LAUNCHER],
        cwd=folder,
        env={"HOME": folder, "TMPDIR": folder, "PATH": os.defpath, "LANG": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@functools.cache
def isolates() -> bool:
    """Whether this machine lets an unprivileged process have namespaces of its own."""
    if shutil.which(ISOLATED[0]) is None:
        return False
    tried = subprocess.run([*ISOLATED, "true"], capture_output=True, check=False, timeout=10)
    return tried.returncode == 0
