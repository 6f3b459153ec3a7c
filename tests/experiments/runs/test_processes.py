"""Child processes: ready lines, refusals and deaths; and nothing is left running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.channel.spec import ChannelSpec
from testbed.config import RunConfig, ServeConfig, load
from testbed.errors import BadInput, TestbedError
from testbed.experiments.runs import processes

Script = Callable[[str], Path]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Put a Python program in the place of `testbed`; it leaves its process id in the file returned."""

    def write(program: str) -> Path:
        path, pid = tmp_path / "program.py", tmp_path / "pid"
        head = f"import json, os, signal, sys, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\n"
        path.write_text(head + textwrap.dedent(program))
        monkeypatch.setattr(processes, "command", lambda *arguments: [sys.executable, str(path), *arguments])
        return pid

    return write


def alive(pid: Path) -> bool:
    try:
        os.kill(int(pid.read_text()), 0)
    except ProcessLookupError:
        return False
    return True


READY = """print(json.dumps({"ready": True, "bind": "tcp://x:1", "args": sys.argv[1:]}), flush=True)\n"""


def test_it_waits_for_the_ready_line_and_ends_the_process_afterwards(script: Script) -> None:
    pid = script("time.sleep(0.3)\n" + READY + "time.sleep(600)")
    with processes.base_station(ServeConfig(engine="x")) as ready:
        *words, file = ready.pop("args")
        assert ready == {"ready": True, "bind": "tcp://x:1"} and words == ["bs", "serve", "--json", "--config"]
        assert load(ServeConfig, Path(file)) == ServeConfig(engine="x")
        assert alive(pid)
    assert not alive(pid)


def test_a_base_station_that_was_stopped_is_told_of(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    """Measured rates and times included that, without a word."""
    pid = script(READY + "time.sleep(600)")
    for stopped_s, told in ((0.3, False), (1.5, True)):
        with processes.base_station(ServeConfig(engine="x")):
            os.kill(int(pid.read_text()), signal.SIGSTOP)
            time.sleep(stopped_s)
            os.kill(int(pid.read_text()), signal.SIGCONT)
        assert ("the base station stood still for 1." in caplog.text) is told


def test_a_line_of_counters_that_is_being_written_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"rounds": 1}\n{"rounds": 2}\n{"rou')
    assert processes.counted_in(tmp_path / "metrics.jsonl") == {"rounds": 2}
    (tmp_path / "metrics.jsonl").write_text('{"rou')
    with pytest.raises(TestbedError, match="no counters"):
        processes.counted_in(tmp_path / "metrics.jsonl")


def test_a_station_without_counters_yet(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(TestbedError, match="has written no counters"):
        processes.counted_in(tmp_path / "metrics.jsonl")


def test_other_words_on_stdout_before_the_ready_line_do_not_hide_it(script: Script) -> None:
    script("sys.stdout.write('loading\\n\\n')\n" + READY + "time.sleep(600)")
    with processes.base_station(ServeConfig(), ready_s=20) as ready:
        assert ready["ready"]


def test_much_talk_on_stderr_and_stdout_holds_nothing_up(script: Script) -> None:
    talk = "[print('x' * 99, file=f) for f in (sys.stderr, sys.stdout) for _ in range(3000)]\n"
    pid = script(talk + READY + talk + "open(os.path.dirname(__file__) + '/done', 'w').close()\ntime.sleep(600)")
    with processes.base_station(ServeConfig(), ready_s=20):
        deadline_s = time.monotonic() + 20
        while not (pid.parent / "done").exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.02)


def test_arguments_that_it_refuses_are_bad_input_in_its_own_words(script: Script) -> None:
    script("print('note', file=sys.stderr)\nprint('testbed: no such model; use another', file=sys.stderr)\nsys.exit(2)")
    with pytest.raises(BadInput, match=r"^no such model; use another$"), processes.base_station(ServeConfig()):
        pass


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print('out of memory', file=sys.stderr)\nsys.exit(1)", r"did not start \(exit code 1\): out of memory"),
        ("sys.exit(0)", r"did not start \(exit code 0\): it said nothing"),
        ("os.kill(os.getpid(), signal.SIGKILL)", r"did not start \(exit code -9\): it said nothing"),
    ],
)
def test_a_death_before_it_is_ready_says_why(program: str, reason: str, script: Script) -> None:
    script(program)
    with pytest.raises(TestbedError, match=reason) as caught, processes.base_station(ServeConfig()):
        pass
    assert not isinstance(caught.value, BadInput)


def test_one_that_is_stopped_while_it_loads_is_noticed(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LINE_S", 0.2)
    monkeypatch.setattr(processes, "STOPPED_S", 1.0)
    script("os.kill(os.getpid(), signal.SIGSTOP)")
    with pytest.raises(TestbedError, match="has been stopped for"), processes.base_station(ServeConfig(), ready_s=20):
        pass


@pytest.mark.parametrize("words", ["", "sys.stdout.write('{\"ready\": ')\nsys.stdout.flush()\n"])
def test_one_that_is_never_ready_is_given_up_and_ended(words: str, script: Script) -> None:
    pid = script(words + "time.sleep(600)")
    start_s = time.monotonic()
    with (
        pytest.raises(TestbedError, match=r"was not ready within 0\.5 s"),
        processes.base_station(ServeConfig(), ready_s=0.5),
    ):
        pass
    assert time.monotonic() - start_s < 10
    assert not pid.exists() or not alive(pid)


def test_a_line_tells_that_it_still_loads(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LINE_S", 0.1)
    script("time.sleep(1)\n" + READY + "time.sleep(600)")
    said: list[str] = []
    with processes.base_station(ServeConfig(), ready_s=60, say=said.append):
        pass
    assert len(said) >= 3 and all(re.fullmatch(r"the base station is loading, \d+ s", line) for line in said)


def test_an_error_in_the_run_ends_the_process_too(script: Script) -> None:
    pid = script(READY + "time.sleep(600)")
    with pytest.raises(RuntimeError, match="mid-run"), processes.base_station(ServeConfig()):
        raise RuntimeError("mid-run")
    assert not alive(pid)


def test_a_process_that_ignores_being_asked_is_made_to_end(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOP_S", 0.3)
    pid = script("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY + "time.sleep(600)")
    with processes.base_station(ServeConfig()):
        pass
    assert not alive(pid)


def test_stopping_what_has_ended_is_no_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], text=True)
    process.wait(30)
    processes.stop(process)
    assert process.returncode == 0


# ---------------------------------------------------------------- user equipment


@pytest.mark.parametrize("code", [0, 1])
def test_a_ues_document_and_process_id(code: int, script: Script) -> None:
    """Exit code 1 with a document is a run that ended and failed its gate: the document tells."""
    pid = script(
        "said = next(line for line in open(sys.argv[5]) if line.startswith('limit')).strip()\n"
        f"print(json.dumps({{'rows': [], 'args': sys.argv[1:], 'said': said}}))\nsys.exit({code})"
    )
    document, number = processes.user_equipment(RunConfig(limit=3), Path("out"))
    *words, file, out, path = document["args"]
    assert words == ["ue", "run", "--json", "--config"] and (out, path) == ("--out", "out")
    assert document["said"] == "limit: 3" and not Path(file).exists()
    assert number == int(pid.read_text())


def test_a_ue_that_refuses_or_fails(script: Script) -> None:
    script("sys.exit(2)")
    with pytest.raises(BadInput, match="refused"):
        processes.user_equipment(RunConfig(), Path("out"))
    script("print('half a docu')\nsys.exit(1)")
    with pytest.raises(TestbedError, match=r"failed \(exit code 1\)"):
        processes.user_equipment(RunConfig(), Path("out"))


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("sys.exit(3)", r"ended during the run \(exit code 3\): no route"),
        ("os.kill(os.getpid(), 9)", "was ended during the run by SIGKILL"),
    ],
)
def test_a_run_ends_when_a_process_that_serves_it_does(
    end: str, said: str, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that had ended was noticed only when the UE gave up, after its timeout."""
    monkeypatch.setattr(processes, "WATCH_S", 0.05)
    pid = script(
        "serving = 'emulate' in sys.argv\n"
        "if serving: print(json.dumps({'ready': True}), flush=True)\n"
        "time.sleep(0.5 if serving else 600)\n"
        f"print('testbed: no route', file=sys.stderr)\nimport os\n{end}"
    )
    with (
        pytest.raises(TestbedError, match=rf"^the proxy {said}$"),
        processes.proxy(ChannelSpec(kind="proxy", rtt_ms=5.0), "tcp://127.0.0.1:1"),
    ):
        processes.user_equipment(RunConfig(), Path("out"))
    assert not alive(pid)


# ---------------------------------------------------------------- the real thing


def test_a_base_station_in_a_process_of_its_own() -> None:
    with processes.base_station(ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*"), ready_s=120) as ready:
        assert ready["ready"] is True
        assert ready["bind"].startswith("tcp://127.0.0.1:")
        assert not ready["bind"].endswith("*")
        os.kill(ready["pid"], 0)
    with pytest.raises(ProcessLookupError):
        os.kill(ready["pid"], 0)


def test_a_real_refusal_is_one_line_of_bad_input() -> None:
    with pytest.raises(BadInput, match="bad address 'nowhere'") as caught:
        processes.base_station(ServeConfig(engine="synthetic", bind="nowhere"), ready_s=120).__enter__()
    assert "\n" not in str(caught.value)


def test_a_command_runs_under_this_interpreter() -> None:
    command = processes.command("doctor", "--json")
    assert command[0] == sys.executable and command[-3:] == ["testbed", "doctor", "--json"]
    done = subprocess.run([*processes.command("bs", "--help")], capture_output=True, text=True, timeout=120, check=True)
    assert "serve" in done.stdout


def test_children_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """A real base station and a real relay, whose starter gets no chance to stop them."""
    pids = tmp_path / "pids"
    starter = f"""
    from testbed.channel.spec import parse_channel
    from testbed.config import ServeConfig
    from testbed.experiments.runs.processes import base_station, proxy
    import os, signal
    with base_station(ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*")) as bs:
        with proxy(parse_channel("kind=proxy,rtt_ms=5"), bs["bind"]) as relay:
            open({str(pids)!r}, "w").write(f"{{bs['pid']}} {{relay['pid']}}")
            os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(starter)], timeout=60, check=False)
    children = [int(pid) for pid in pids.read_text().split()]
    deadline_s = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells who is stopped")
def test_a_run_ends_whose_ue_has_been_stopped(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid = script("os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(600)")
    monkeypatch.setattr(processes, "STOPPED_S", 1.0)
    monkeypatch.setattr(processes, "STOP_S", 1.0)
    with pytest.raises(TestbedError, match=r"the user equipment \(pid \d+\) has been stopped for 1 s"):
        processes.user_equipment(RunConfig(drafter="x"), tmp_path / "out")
    assert not alive(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells who is stopped")
def test_a_ue_that_was_stopped_for_a_moment_goes_on(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waker = "import os, sys, time, signal; time.sleep(2); os.kill(int(sys.argv[1]), signal.SIGCONT)"
    script(
        f"import subprocess; subprocess.Popen([sys.executable, '-c', {waker!r}, str(os.getpid())])\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\nprint(json.dumps({'went': 'on'}))"
    )
    monkeypatch.setattr(processes, "STOPPED_S", 30.0)
    document, _ = processes.user_equipment(RunConfig(drafter="x"), tmp_path / "out")
    assert document == {"went": "on"}
