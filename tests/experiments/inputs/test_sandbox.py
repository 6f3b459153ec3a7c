"""Generated programs: found in outputs, run with limits, and stopped."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from testbed.experiments.inputs import sandbox
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.inputs.formats import Example, Program
from testbed.experiments.inputs.sandbox import isolates, passes, program_of

DOUBLE, LONGEST = load_dataset(str(Path(__file__).parent / "tasks" / "human_eval.jsonl"))
BODY = "    return 2 * x\n"
WHOLE = f"def double(x: int) -> int:\n{BODY}"


@pytest.mark.parametrize(
    "text",
    [
        BODY,
        WHOLE,
        f"{BODY}\n\ndef another():\n    this is cut off",
        f"{BODY}\nprint(double(3))",
        f"Here you are:\n```python\n{WHOLE}```\nThat is all.",
        f"```\n{WHOLE}\n```",
        f"```python\n{WHOLE}\nif __name__ == '__main__':\n    raise SystemExit(3)\n```",
        f"```python\n{BODY}```",
        f"```python\nimport math\n```\n\n```python\n{WHOLE}```",
        f"```python\n{WHOLE}",
        f"Install it:\n```bash\npip install nothing\n```\nThen:\n```python\n{WHOLE}```",
        f"```python3\n{WHOLE}```",
        f"~~~\n{WHOLE}~~~",
        f"```python\n{WHOLE}```".replace("\n", "\r\n"),
        "1. Here:\n   ```python\n   def double(x: int) -> int:\n       return 2 * x\n   ```",
        f"```python\n{WHOLE}```\nRun it:\n```\npython program.py\n```",
        "```python\nfrom __future__ import annotations\nfrom dataclasses import dataclass\n\n@dataclass\n"
        f"class Twice:\n    x: int\n\n{WHOLE}```",
    ],
)
def test_the_function_is_found_however_it_is_written(text: str) -> None:
    source = program_of(DOUBLE, text)
    assert source is not None and passes(DOUBLE, source)


def test_a_whole_function_keeps_the_prompts_imports() -> None:
    text = "```python\ndef longest(words: List[str]) -> str:\n    return max(words, key=len)\n```"
    source = program_of(LONGEST, text)
    assert source is not None and source.startswith("from typing import List") and passes(LONGEST, source)


@pytest.mark.parametrize(
    "text",
    [
        "I cannot do that.",
        "```python\n    return (\n```",
        "    return 2 *\n",
        "\x00",
        "return 2 * x\n",
        "```bash\npython program.py\n```",
    ],
)
def test_what_is_no_python_is_no_program(text: str) -> None:
    assert program_of(DOUBLE, text) is None


def runs(body: str) -> bool:
    return passes(Example("", program=Program("f", "def check(f):\n    f()\n")), f"def f():\n    {body}\n")


@pytest.mark.parametrize(
    "body",
    [
        "raise ValueError",
        "import sys; sys.exit(0)",
        "import sys; sys.exit(77)",
        "import os; os._exit(0)",
        "x = bytearray(2**31)",
        "open('large', 'wb').write(b'x' * 2**21)",
        "files = [open(f'{i}', 'w') for i in range(40)]",
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2**30, 2**30))" if os.geteuid() else "1 / 0",
    ],
)
def test_failures_and_limits(body: str) -> None:
    assert not runs(body)


def test_it_runs_in_a_folder_of_its_own_without_this_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET_OF_MINE", "1")
    assert runs("import os; assert 'A_SECRET_OF_MINE' not in os.environ and os.listdir() == ['program.py']")
    assert runs("open('small', 'w').write('a')") and not (Path.cwd() / "small").exists()


def test_a_program_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "TIMEOUT_S", 0.5)
    began_s = time.monotonic()
    assert not runs("import time; time.sleep(60)")
    assert time.monotonic() - began_s < 30


@pytest.mark.skipif(not isolates(), reason="this machine gives an unprivileged process no namespaces")
def test_no_network_and_no_process_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not runs("import socket; socket.create_connection(('127.0.0.1', 9), 1)")
    assert runs("import socket; assert [name for _, name in socket.if_nameindex()] in (['lo'], [])")
    alive = tmp_path / "alive"
    escaped = (
        "import os, time; os.fork() or (os.setsid(), [(time.sleep(.05), open('" + str(alive) + "', 'a').write('.')) "
        "for _ in range(200)])"
    )
    monkeypatch.setattr(sandbox, "TIMEOUT_S", 1.0)
    runs(escaped)
    written = alive.stat().st_size if alive.exists() else 0
    time.sleep(0.5)
    assert (alive.stat().st_size if alive.exists() else 0) == written


def test_folders_nested_deeply_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Python 3.10 to 3.12 removes them by recursion; the run ended after all was decoded."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert runs("import os\n    for _ in range(3000):\n        os.mkdir('d'); os.chdir('d')")
    assert not list(tmp_path.iterdir())
