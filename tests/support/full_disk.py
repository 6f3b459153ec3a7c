"""Runs `testbed ue run --out` on a disk that is too small, and then, with room, `--resume`; a line of JSON for each.

Needs namespaces of its own for a small tmpfs, which need no root: it runs itself anew under `unshare`. The first line
is a run with room enough.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from testbed.cli.main import main as testbed
from testbed.experiments.runs.journal import NAME, Journal

PAGE = 4096
ROOM = 2**24
INSIDE = "FULL_DISK_INSIDE"
SLACK = 2
"""Pages by which runs differ: measured times have more or fewer digits, a page in each of two files."""
REFUSED = re.compile(r"testbed: cannot write (\S+): No space left on device")


class Orders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The command, and how often it runs."""

    folder: str
    times: int
    seed: int
    options: list[str]


def full_disk_available() -> str | None:
    """Why a full disk cannot be simulated here; None: it can."""
    try:
        done = subprocess.run(["unshare", "-rm", "true"], capture_output=True, timeout=10, check=False)
    except OSError as exc:
        return f"no unshare: {exc}"
    return None if done.returncode == 0 else "namespaces are not allowed here"


def mount(folder: Path, size_bytes: int, *more: str) -> None:
    """Mount a tmpfs of a given size, or resize it."""
    command = ["mount", "-t", "tmpfs", "-o", ",".join([*more, f"size={size_bytes}"]), "tmpfs", str(folder)]
    subprocess.run(command, check=True, timeout=10)


def run(options: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command line."""
    said, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        code = testbed(options)
    return code, said.getvalue(), complained.getvalue()


def finished(options: list[str]) -> dict[str, Any]:
    """The document of a run that must succeed."""
    code, said, complained = run(options)
    assert code == 0, complained
    document: dict[str, Any] = json.loads(said)
    return document


def whole(folder: Path, options: list[str]) -> tuple[dict[str, Any], int]:
    """The document of a run with enough space, and the pages it uses just before its journal is deleted."""
    pages: list[int] = []
    finish = Journal.finish

    def counting(journal: Journal) -> None:
        disk = os.statvfs(folder)
        pages.append((disk.f_blocks - disk.f_bfree) * disk.f_frsize // PAGE)
        finish(journal)

    mount(folder, ROOM)
    Journal.finish = counting  # type: ignore[method-assign]
    try:
        return finished([*options, "--out", str(folder / "run")]), pages[0]
    finally:
        Journal.finish = finish  # type: ignore[method-assign]
        subprocess.run(["umount", str(folder)], check=True, timeout=10)


def attempt(folder: Path, pages: int, options: list[str]) -> dict[str, Any]:
    """A run that fails on a full disk, and is resumed once there is space."""
    mount(folder, pages * PAGE)
    try:
        out = folder / "run"
        code, said, complained = run([*options, "--out", str(out)])
        *progress, last = complained.splitlines() or [""]
        refused = REFUSED.fullmatch(last)
        assert code == 1 and not said and refused, (code, said, complained)
        assert not any(line.startswith("testbed: ") for line in progress), complained
        assert not (out / "summary.json").exists()
        assert not [path for path in out.glob(".*") if path.is_file()]
        mount(folder, ROOM, "remount")
        resume = ["--resume"] if (out / NAME).exists() else []
        start_s = time.monotonic()
        document = finished([*options, "--out", str(out), *resume])
        seconds = time.monotonic() - start_s
        assert (out / "summary.json").exists() and not (out / NAME).exists()
        return {"file": Path(refused[1]).name, "seconds": seconds, "document": document}
    finally:
        subprocess.run(["umount", str(folder)], check=True, timeout=10)


def main() -> None:
    """One run with enough space, then every attempt."""
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "-rm", sys.executable, "-m", "tests.support.full_disk", *sys.argv[1:]])
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    folder, dice = Path(orders.folder), random.Random(f"disk/{orders.seed}")
    document, pages = whole(folder, orders.options)
    print(json.dumps({"document": document}), flush=True)
    for _ in range(orders.times):
        print(json.dumps(attempt(folder, dice.randrange(1, pages - SLACK), orders.options)), flush=True)


if __name__ == "__main__":
    main()
