"""Emulation by tc without root: missing prerequisites, claims, cleanup."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from testbed.channel.tc import commands, execute
from testbed.channel.tc import run as run_module
from testbed.channel.tc.offloads import single_frames
from testbed.channel.tc.run import Plan, clean, emulation
from testbed.channel.tc.shape import LinkShape
from testbed.channel.tc.state import Claim, Ledger, own_claim, process_start
from testbed.errors import BadInput, TestbedError
from tests.support.refusals import refuse

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


@pytest.mark.parametrize(
    ("command", "complaint", "words"),
    [
        ("tc qdisc add dev a root netem", "Error: Specified qdisc kind is unknown.\n", ("sch_netem", "tbf")),
        ("tc qdisc add dev a root netem", "RTNETLINK answers: No such file or directory\n", ("sch_netem",)),
        ("tc qdisc add dev a root htb", "Error: Specified qdisc kind is unknown.\n", ("sch_htb",)),
        ("tc filter add dev a u32 match", "Error: TC classifier not found.\nWe have an error\n", ("cls_u32",)),
        ("ip link add a type veth", "Error: Unknown device type.\n", ("module veth",)),
        ("ip link add a type veth", "RTNETLINK answers: Operation not permitted\n", ("root",)),
        ("tc qdisc add dev a root htb", 'Cannot find device "a"\n', ("Cannot find device",)),
    ],
)
def test_a_command_that_fails_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, command: str, complaint: str, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(execute, "attempt", lambda given: subprocess.CompletedProcess(given, 2, "", complaint))
    refuse(lambda: execute.run(command.split()), BadInput, *words)


def test_a_program_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("os.defpath", "")
    refuse(lambda: execute.run(["tc", "qdisc"]), BadInput, "'tc'", "iproute2")


@pytest.mark.parametrize(
    ("netem", "plain", "kind"), [(True, True, "netem"), (False, True, "tbf"), (True, False, "netem")]
)
def test_netem_is_taken_where_it_is(monkeypatch: pytest.MonkeyPatch, netem: bool, plain: bool, kind: str) -> None:
    monkeypatch.setattr(execute, "require_root", lambda: None)
    monkeypatch.setattr(execute, "has", lambda name: netem or name != "netem")
    assert execute.choose("auto", plain) == kind
    assert execute.choose("tbf", plain) == "tbf"
    if not netem:
        refuse(lambda: execute.choose("auto", False), BadInput, "sch_netem")
        refuse(lambda: execute.choose("netem", True), BadInput, "sch_netem")


# ---------------------------------------------------------------- the ledger


@pytest.fixture(scope="module")
def ended() -> int:
    """An unused pid."""
    return ended_child().pid


def ended_child() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(30)
    return process


@linux
def test_a_claim_lives_as_long_as_its_process_and_no_longer(ended: int) -> None:
    mine = own_claim({}, [3])
    assert mine.alive and mine.here and not mine.gone and mine.things == {"UE 3"}
    assert not msgspec.structs.replace(mine, started=mine.started - 1).alive  # another process got the pid
    assert not msgspec.structs.replace(mine, pid=ended).alive
    assert not msgspec.structs.replace(mine, boot="another").alive
    assert process_start(ended) is None


@linux
def test_a_zombie_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert process_start(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_start(process.pid) is None
    finally:
        process.kill()
        process.wait(10)


@linux
def test_leftovers_of_the_ended_are_cleaned_and_those_of_others_kept(tmp_path: Path, ended: int) -> None:
    mine = own_claim({}, [])
    claims = {
        "live": mine,
        "ended": msgspec.structs.replace(mine, pid=ended),
        "reused": msgspec.structs.replace(mine, started=mine.started + 1),
        "rebooted": msgspec.structs.replace(mine, boot="another", interfaces={"eth0": []}),
        "elsewhere": msgspec.structs.replace(mine, pid=ended, network=1),
    }
    ledger, said = Ledger(tmp_path / "state"), list[str]()
    with ledger.locked():
        paths = {name: ledger.write(claim) for name, claim in claims.items()}
        (ledger.folder / "1-x.part").write_text("half")
        assert sorted(map(repr, dict(ledger.claims()).values())) == sorted(map(repr, claims.values()))
        clean(ledger, said.append)
        assert {name for name, path in paths.items() if path.exists()} == {"live", "elsewhere"}
    assert len(said) == 2 and str(ended) in " ".join(said)
    assert not list(ledger.folder.glob("*.part"))


def test_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.channel.tc.state.LOCK_S", 0.1)

    def again() -> None:
        with Ledger(tmp_path).locked():
            pytest.fail("it was let in")

    with Ledger(tmp_path).locked():
        refuse(again, TestbedError, "another process", str(tmp_path))


def test_a_ledger_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "1-a.json").write_text("{")
    refuse(lambda: Ledger(tmp_path / "file").locked().__enter__(), BadInput, "file")
    refuse(lambda: Ledger(tmp_path).claims(), BadInput, "1-a.json", "remove it")


def test_another_users_link_to_a_folder_of_ones_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In /tmp, which all can write to, it would name the folder whose files are removed."""
    (tmp_path / "own").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "own")
    with Ledger(tmp_path / "link").locked():
        pass
    monkeypatch.setattr(Path, "lstat", lambda path: SimpleNamespace(st_uid=os.geteuid() + 1))
    refuse(lambda: Ledger(tmp_path / "link").locked().__enter__(), BadInput, "belongs to another user")


def test_a_claim_reads_back(tmp_path: Path) -> None:
    claim = Claim(pid=1, started=2, boot="b", network=3, interfaces={"eth0": ["tso"]}, pairs=[4])
    ledger = Ledger(tmp_path)
    assert ledger.claims() == []
    assert {ledger.write(claim): claim} == dict(ledger.claims())


# ---------------------------------------------------------------- emulations, with a machine that is made up


class Machine:
    """Interfaces `eth0` (default route), `eth1` and `eth2` (with a foreign qdisc); commands are recorded."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[str] = []
        self.claims: list[int] = []
        self.state = folder / "state"
        (folder / "namespaces").mkdir()
        for name in ("eth0", "eth1", "eth2"):
            (folder / "interfaces" / name).mkdir(parents=True)
        for module in (run_module, execute):
            monkeypatch.setattr(module, "INTERFACES", folder / "interfaces")
            monkeypatch.setattr(module, "attempt", self.attempt)
        monkeypatch.setattr(run_module, "NAMESPACES", folder / "namespaces")
        monkeypatch.setattr(run_module, "require_root", lambda: None)
        monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
        self.fails = "nothing"

    def attempt(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        text, answer = shlex.join(command), ""
        if text == "ip -4 -j route show table all":
            answer = '[{"dst": "default", "dev": "eth0"}]'
        elif text == "tc -j qdisc show dev eth2":
            answer = '[{"kind": "cake", "handle": "8001:", "root": true}]'
        elif text.startswith("ethtool -k"):
            answer = "tcp-segmentation-offload: on\n"
        elif text.startswith("ip -d -j link show"):
            answer = '[{"ifname": "eth1", "gso_max_segs": 64}]'
        elif "show" not in command and "route" not in command:
            self.ran.append(text)
            self.claims.append(len(list(self.state.glob("*.json"))))
        failed = self.fails in text
        return subprocess.CompletedProcess(command, int(failed), answer, "Error: no.\n" if failed else "")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def hold(machine: Machine, plan: Plan, force: int = 0, within: Callable[[], None] = lambda: None) -> None:
    with emulation(plan, force, machine.state):
        within()


PLAN = Plan((*single_frames("eth1"), *commands.tbf("eth1", LinkShape(5))), ("eth1",))
APPLIED = [shlex.join(command) for command in PLAN.apply]
UNDONE = ["tc qdisc del dev eth1 root", "ethtool -K eth1 tso on", "ip link set dev eth1 gso_max_segs 64"]


@linux
def test_a_claim_is_there_whenever_something_is_touched(machine: Machine) -> None:
    hold(machine, PLAN)
    assert machine.ran == APPLIED + UNDONE
    assert machine.claims == [1] * 6
    assert not list(machine.state.glob("*.json"))


@linux
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_it_is_restored_however_it_ends(machine: Machine, error: type[BaseException]) -> None:
    def end() -> None:
        raise error

    with pytest.raises(error):
        hold(machine, PLAN, within=end)
    assert machine.ran == APPLIED + UNDONE
    assert not list(machine.state.glob("*.json"))


@linux
def test_a_command_that_fails_ends_it(machine: Machine) -> None:
    machine.fails = "qdisc add"
    with pytest.raises(TestbedError, match=r"qdisc add.*no\."):
        hold(machine, PLAN, within=lambda: pytest.fail("it was let in"))
    assert machine.ran == APPLIED + UNDONE


@linux
@pytest.mark.parametrize("command", ["ethtool -K", "gso_max_segs"])
def test_without_single_frames_it_goes_on_and_says_so(machine: Machine, command: str) -> None:
    machine.fails, said = command, list[str]()
    with emulation(PLAN, state=machine.state, say=said.append):
        assert machine.ran == APPLIED
    assert len(said) == 1 and "64 kB" in said[0]


@linux
def test_what_cannot_be_restored_stays_claimed(machine: Machine, tmp_path: Path) -> None:
    plan = Plan((), pairs=(7,))
    with pytest.raises(TestbedError, match="tb7"):
        hold(machine, plan, within=(tmp_path / "namespaces" / "tb7").touch)
    assert len(list(machine.state.glob("*.json"))) == 1


@linux
@pytest.mark.parametrize("force", [0, 1])
def test_the_default_routes_interface_needs_force_twice(machine: Machine, force: int) -> None:
    plan = Plan((), ("eth0",))
    refuse(lambda: hold(machine, plan, force), BadInput, "eth0", "default route", "twice")
    assert machine.ran == []
    hold(machine, plan, 2)
    assert machine.ran == [command.replace("eth1", "eth0") for command in UNDONE]


@linux
def test_what_others_hold_is_refused(machine: Machine, tmp_path: Path) -> None:
    refuse(lambda: hold(machine, Plan((), ("eth2",))), BadInput, "eth2", "cake", "tc qdisc del dev eth2 root")
    refuse(lambda: hold(machine, Plan((), ("eth9",))), BadInput, "eth9")
    (tmp_path / "interfaces" / "tb4h").mkdir()
    refuse(lambda: hold(machine, Plan((), pairs=(3, 4))), BadInput, "tb4h")
    twice = Plan((), ("eth1",), (3,))
    refuse(lambda: hold(machine, twice, within=lambda: hold(machine, Plan((), pairs=(3,)))), BadInput, str(os.getpid()))
    hold(machine, twice, within=lambda: hold(machine, Plan((), pairs=(5,))))
