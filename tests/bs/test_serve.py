"""How a base station's process ends."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys

import pytest

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.scheduling.base import Fcfs
from testbed.bs.serve import serve
from testbed.bs.server import BaseStation
from testbed.config import ServeConfig
from testbed.errors import BadInput, TestbedError


def test_bad_input_while_it_serves_is_no_bad_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that cannot be used end with exit status 2, after which systemd does not restart it; this does not."""

    async def failing(self: BaseStation) -> None:
        raise BadInput("a round commits something")

    monkeypatch.setattr(BaseStation, "serve", failing)
    ready: list[object] = []
    with pytest.raises(TestbedError, match="the base station failed: a round commits something") as caught:
        serve(ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*"), lambda *said: ready.append(said))
    assert ready and not isinstance(caught.value, BadInput)


def test_the_loaded_heap_is_frozen_until_the_engine_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM collects garbage when it is closed, and a collection over all modules takes seconds on a busy machine."""

    async def at_once(self: BaseStation) -> None:
        raise asyncio.CancelledError

    frozen: list[int] = []
    monkeypatch.setattr(BaseStation, "serve", at_once)
    monkeypatch.setattr(SyntheticEngine, "close", lambda self: frozen.append(gc.get_freeze_count()))
    serve(ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*"), lambda *_: None)
    assert frozen[0] > 10_000 and gc.get_freeze_count() == 0


def test_what_one_ue_may_take_of_a_pass_reaches_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines cut prompts themselves, so that their bound is none of the scheduler's; that of a UE's rounds is."""

    async def at_once(self: BaseStation) -> None:
        seen.append(self._ledger.scheduler)
        raise asyncio.CancelledError

    seen: list[object] = []
    monkeypatch.setattr(BaseStation, "serve", at_once)
    serve(ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*", chunk_tokens=100), lambda *_: None)
    assert seen == [Fcfs(256, 8192, None, own_tokens=100)]


LOADING = """
import sys, time
from testbed.bs.engines.registry import ENGINES, EngineEntry
from testbed.cli.main import run

class Slow:
    def __init__(self, model):
        print("loading", flush=True)
        time.sleep(600)

ENGINES.add(EngineEntry(kind="slow", about="loads for ten minutes", load="__main__:Slow", needs_model=False))
sys.argv = ["testbed", "bs", "serve", "--engine", "slow", "--bind", "tcp://127.0.0.1:*", "--monitor", "0"]
run()
"""


def ended(script: str, *numbers: signal.Signals) -> tuple[int, str]:
    """Exit code and stderr of a process that loads, and is sent these signals."""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # which `nohup` has tests ignore
    ) as process:  # fmt: skip
        assert process.stdout
        try:
            assert process.stdout.readline() == "loading\n"
            for number in numbers:
                process.send_signal(number)
            _, complaints = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, complaints


@pytest.mark.parametrize(
    ("number", "code", "says"),
    [(signal.SIGINT, 130, "testbed: interrupted\n"), (signal.SIGTERM, 143, ""), (signal.SIGHUP, 129, "")],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_a_signal_ends_it_while_the_engine_loads(number: signal.Signals, code: int, says: str) -> None:
    """A thread that loads a model cannot be stopped; the process must not wait for it."""
    assert ended(LOADING, number) == (code, says)


def test_a_signal_that_the_loading_thread_receives_ends_it_as_well() -> None:
    """The kernel may choose that thread: the main thread was not woken, and went on waiting for the load."""
    own = "import signal, threading; signal.pthread_kill(threading.get_ident(), signal.SIGTERM)"
    assert ended(LOADING.replace("time.sleep(600)", f"{own}; time.sleep(600)")) == (143, "")
