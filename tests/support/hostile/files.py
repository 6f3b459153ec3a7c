"""Commands on mutated input files, each in a process forked from one that has imported everything.

Run as `python -m tests.support.hostile.files CASE COUNT SEED FOLDER`; prints what went wrong, a line each.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from testbed.cli.main import main
from testbed.files import yaml_file
from tests.support.hostile.bodies import mutated

ROOT = Path(__file__).parents[3]
MODELS = ROOT / "testbed/models/data"
MOST_S, MOST_BYTES, MOST_RESIDENT_KB = 60, 8 * 2**30, 2_500_000
"""Limits of a command: time, address space, and memory that it may have taken."""
CELLS = ("", "x", "-1", "0", "1e308", "nan", "inf", "1e-310", "9" * 400, "\x00", '"', "1_0", "\u0663")
Change = Callable[[Path, random.Random], None]


def document(path: Path, rng: random.Random) -> None:
    """Change a JSON or YAML document."""
    known = yaml_file(path) if path.suffix == ".yaml" else json.loads(path.read_bytes())
    path.write_bytes(mutated(rng, known, ("x",), rng.choice([1, 1, 2])))


def table(path: Path, rng: random.Random) -> None:
    """Change cells of a CSV file."""
    lines = path.read_text().splitlines()
    for _ in range(rng.choice([1, 2, 5])):
        i = rng.choice([0, rng.randrange(len(lines))])
        cells = lines[i].split(",")
        cells[rng.randrange(len(cells))] = rng.choice(CELLS)
        lines[i] = ",".join(cells[: rng.choice([len(cells), len(cells), len(cells) - 1])])
    path.write_text("\n".join(lines) + "\n")


def arrays(path: Path, rng: random.Random) -> None:
    """Change an array of a .npz file: its type, shape or values."""
    with np.load(path, allow_pickle=False) as found:
        known = {name: found[name] for name in found.files}
    name = rng.choice(sorted(known))
    one = known[name]
    changed = [one.reshape(-1), one[None], one[:0] if one.ndim else one, np.zeros_like(one), one.astype("U3")]
    if one.dtype.kind == "f":
        changed += [np.full_like(one, value) for value in (np.nan, np.inf, -1e30)] + [one.astype(np.float16)]
    if one.dtype.kind in "iu":
        changed += [np.full_like(one, np.iinfo(one.dtype).max), one.astype(np.float64)]
    known[name] = rng.choice(changed)
    if rng.random() < 0.1:
        del known[name]
    np.savez(path, **known)


class FileCase(NamedTuple):
    """A command, and the files that it reads."""

    sources: dict[str, Path]
    """Files and directories by the name that they have for the command."""
    changed: str
    """Pattern of the files of which one is changed."""
    change: Change
    arguments: Sequence[str]


DEMO = ["demo", "--engine", "llama", "--prompts", "1", "--max-tokens", "2", "--out", "o"]
WISV, GREEDY = ["--channel", "kind=virtual,profile=wisv"], ["--methods", "greedy", "--window-rule", "predicted"]
CASES = {
    "trace": FileCase(
        {"t.csv": ROOT / "traces/drive.csv"}, "t.csv", table,
        ["channel", "convert", "--from", "canonical", "t.csv", "--out", "o.csv"],
    ),
    "sweep": FileCase({"s.yaml": ROOT / "sweeps/windows.yaml"}, "s.yaml", document, ["sweep", "s.yaml", "--check"]),
    "plan": FileCase(
        {"p.yaml": ROOT / "plans/rehearsal.yaml"}, "p.yaml", document,
        ["field", "run", "p.yaml", "--out", "o", "--check"],
    ),
    "tasks": FileCase(
        {"c.json": ROOT / "sweeps/edge/cell.json"}, "c.json", document, ["optim", "plan", "--tasks", "c.json", "--json"]
    ),
    "target": FileCase({"t": MODELS / "target"}, "t/*.json", document, ["models", "overlap", "t", "t"]),
    "drafter": FileCase(
        {"t": MODELS / "drafter"}, "t/*config.json", document, ["models", "export", "--model", "t", "--out", "o.gguf"]
    ),
    "profile": FileCase(
        {"p.yaml": ROOT / "hardware/profiles/wisv.yaml"}, "p.yaml", document,
        [*DEMO, "--channel", "kind=virtual,profile=p.yaml", "--methods", "greedy"],
    ),
    "predictor": FileCase(
        {"p": MODELS / "predictor/mlp"}, "p/predictor.json", document, [*DEMO, *WISV, *GREEDY, "--predictor", "p"]
    ),
    "trees": FileCase(
        {"p": MODELS / "predictor/lightgbm"}, "p/predictor.npz", arrays, [*DEMO, *WISV, *GREEDY, "--predictor", "p"]
    ),
    "head": FileCase(
        {"h": MODELS / "head"}, "h/head.json", document, [*DEMO, *WISV, "--head", "h", "--methods", "fh"]
    ),
}  # fmt: skip


def run(arguments: Sequence[str], folder: Path) -> str:
    """What is wrong with a command's end; empty: it did its work, or refused in one line."""
    said = folder / ".said"
    if (pid := os.fork()) == 0:
        os.chdir(folder)
        signal.alarm(MOST_S)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT, 0o600), 2)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        code = 99
        try:
            code = main(arguments)
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
    _, status, used = os.wait4(pid, 0)
    code, text = os.waitstatus_to_exitcode(status), said.read_text(errors="replace")
    last = (text.strip().splitlines() or [""])[-1][:300]
    if (
        code in (0, 1, 2)
        and "testbed: unexpected" not in last
        and (code == 0 or last)
        and used.ru_maxrss < MOST_RESIDENT_KB
    ):
        return ""
    return f"exit code {code}, {used.ru_maxrss >> 10} MiB: {last}"


def broken(name: str, count: int, seed: int, folder: Path) -> list[str]:
    """What went wrong with `count` mutations; the files of each are left in a folder."""
    case, found = CASES[name], []
    for number in range(count + 1):
        rng, here = random.Random(f"{seed} {name} {number}"), folder / f"{name}-{number}"
        here.mkdir()
        for target, source in case.sources.items():
            (shutil.copytree if source.is_dir() else shutil.copy)(source, here / target)
        if number:
            path = rng.choice(sorted(here.glob(case.changed)))
            path.chmod(0o644)
            case.change(path, rng)
        if wrong := run(case.arguments, here):
            found.append(f"{here}: {wrong}")
        else:
            shutil.rmtree(here)
    return found


if __name__ == "__main__":
    for line in broken(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])):
        print(line)
