"""llama.cpp contexts: files, options, threads, signals, refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.errors import ConfigError, ModelError
from testbed.llama import library
from testbed.llama.context import LlamaContext, LlamaOptions
from testbed.ue.llama.drafter import LlamaDrafter
from tests.support.ggufs import write_gemma3, write_mamba
from tests.support.models import TOKENS
from tests.support.refusals import refuse


def test_files_that_are_no_model(tmp_path: Path, random_ggufs: dict[str, Path]) -> None:
    path = tmp_path / "drafter.gguf"
    refuse(lambda: LlamaDrafter(path), ModelError, "no such file", str(path))
    refuse(lambda: LlamaDrafter(tmp_path), ModelError, "no such file")
    good = random_ggufs["llama"].read_bytes()
    unknown_architecture = good.replace(b"llama", b"lxyma", 1)
    for content, words in [
        (b"", "not a GGUF"),
        (b"GGU", "not a GGUF"),
        (b"\x80\x02}q\x00." * 100, "not a GGUF"),
        (b"GGUF" + b"\x09\0\0\0" + good[8:], "version 9"),
        (b"GGUF" + b"\0\0\0\x03" + good[8:], "version"),
        (good[:10], "ends within its header"),
        (good[:24], "ends within its header"),
        (good[:400], "ends within its header"),
        (good[:16] + b"\xff" * 8 + good[24:], "ends within its header"),
        (good[: len(good) // 2], "not within the file bounds"),
        (good[:-1], "not within the file bounds"),
        (unknown_architecture, "unknown model architecture"),
    ]:
        path.write_bytes(content)
        refuse(lambda: LlamaDrafter(path), ModelError, words, str(path))


def test_every_cut_of_a_header_is_refused(tmp_path: Path, random_ggufs: dict[str, Path]) -> None:
    good = random_ggufs["llama"].read_bytes()
    path = tmp_path / "cut.gguf"
    for end in range(4, 600):
        path.write_bytes(good[:end])
        refuse(lambda: LlamaDrafter(path), ModelError, "ends within its header")


@pytest.mark.parametrize(("write", "words"), [(write_mamba, "recurrent"), (write_gemma3, "sliding-window")])
def test_models_whose_cache_cannot_be_rolled_back(write: Callable[[Path], Path], words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf")
    refuse(lambda: LlamaDrafter(path), ModelError, words, "rolled back")


def test_options_that_do_not_fit(random_ggufs: dict[str, Path]) -> None:
    path = random_ggufs["qwen2-padded"]
    refuse(lambda: LlamaDrafter(path, TOKENS + 21), ModelError, "320 rows", "321 ids")
    refuse(lambda: LlamaDrafter(path, 0), ModelError, "0 ids")
    refuse(lambda: LlamaDrafter(path, context=513), ModelError, "513", "512")
    for bad in ({"context": 0}, {"sequences": 0}, {"sequences": 257}, {"threads": 0}, {"kv_type": "q4"}):
        refuse(lambda bad=bad: LlamaDrafter(path, **bad), ConfigError, next(iter(bad)))


@pytest.mark.parametrize(("asked", "taken"), [("3", 3), ("", None), ("many", None), ("0", None)])
def test_threads_follow_the_environment(
    asked: str, taken: int | None, random_ggufs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    drafter = LlamaDrafter(random_ggufs["llama"])
    llama = drafter._llama
    threads = llama._lib.llama_n_threads(llama._context)
    drafter.close()
    assert threads == (taken or max(1, min(len(os.sched_getaffinity(0)) - 1, 8)))


def test_importing_is_quick_and_drafting_quiet_and_light(random_ggufs: dict[str, Path]) -> None:
    """No deep-learning framework is loaded, on import or later, and llama.cpp does not write to the terminal."""
    script = f"""
import sys, time
start = time.process_time()
import testbed.ue.llama.drafter
seconds = time.process_time() - start
heavy = {{"torch", "transformers", "vllm", "llama_cpp", "gguf"}}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert seconds < 1.0, seconds
from pathlib import Path
drafter = testbed.ue.llama.drafter.LlamaDrafter(Path({str(random_ggufs["llama"])!r}), threads=1)
drafter.open([1, 2, 3]).draft_one()
drafter.close()
assert not {{"torch", "transformers", "vllm"}} & set(sys.modules)
try:
    testbed.ue.llama.drafter.LlamaDrafter(Path({str(random_ggufs["llama"])!r}), context=100_000)
except testbed.errors.ModelError:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("refused\n", "", 0)


class Interrupting(int):
    """A log level that raises Ctrl-C when compared, in the middle of the log callback, and never matches."""

    presses = 0

    def __eq__(self, other: object) -> bool:
        if not self.presses:
            self.presses += 1
            signal.raise_signal(signal.SIGINT)
        return False

    __hash__ = int.__hash__


def test_ctrl_c_while_a_model_loads_is_not_lost(random_ggufs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "ERROR_LEVEL", level := Interrupting())
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        LlamaContext(random_ggufs["llama"], LlamaOptions())
    assert level.presses == 1
    assert signal.getsignal(signal.SIGINT) is before
