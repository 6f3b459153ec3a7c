"""Claims: records of what each emulation uses of the machine's network, so that it can be undone after a crash."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from testbed.errors import BadInput, TestbedError

LOCK_S = 30.0


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Resources of one emulation, and the process that runs it."""

    pid: int
    started: int
    """Start time of the process in clock ticks since boot, since pids are reused."""
    boot: str
    network: int
    """Inode of the network namespace of the interfaces."""
    interfaces: dict[str, list[str]]
    """Existing interfaces, with the offloads to switch on again."""
    pairs: list[int]
    """Indices of the UE namespaces."""
    segments: dict[str, int] = {}
    """Segments per packet that existing interfaces had."""

    @property
    def things(self) -> set[str]:
        """Names of the interfaces and UEs in use."""
        return {*self.interfaces, *(f"UE {index}" for index in self.pairs)}

    @property
    def alive(self) -> bool:
        """Whether its process still runs."""
        return self.boot == _boot() and process_start(self.pid) == self.started

    @property
    def gone(self) -> bool:
        """Whether the machine was rebooted since, so that nothing is left to undo."""
        return self.boot != _boot()

    @property
    def here(self) -> bool:
        """Whether it refers to the network namespace of this process."""
        return self.network == _network()


def own_claim(interfaces: dict[str, list[str]], pairs: list[int], segments: dict[str, int] | None = None) -> Claim:
    """A claim of this process."""
    started = process_start(os.getpid())
    if started is None:
        raise TestbedError("cannot read /proc: link emulation with tc needs Linux with /proc mounted")
    return Claim(
        pid=os.getpid(), started=started, boot=_boot(), network=_network(), interfaces=interfaces, pairs=pairs,
        segments=segments or {},
    )  # fmt: skip


def process_start(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    state, *rest = stat.rpartition(")")[2].split()  # the process name before it may contain anything
    return None if state in "ZX" else int(rest[18])


class Ledger:
    """Directory of all claims; one process at a time reads and changes it."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = _default_folder() if folder is None else folder

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the exclusive lock of the directory.

        Raises:
            BadInput: the directory cannot be used, or belongs to another user.
            TestbedError: another process held the lock for `LOCK_S`.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if {self.folder.stat().st_uid, self.folder.lstat().st_uid} != {os.geteuid()}:  # the link, too, if it is one
                raise BadInput(f"{self.folder} belongs to another user; remove it, or name another folder")
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise BadInput(f"cannot use {self.folder}: {exc.strerror or exc}") from exc
        try:
            _wait_for(lock, self.folder)
            yield
        finally:
            os.close(lock)

    def claims(self) -> list[tuple[Path, Claim]]:
        """All claims with their files, in any order.

        Raises:
            BadInput: a file that cannot be read.
        """
        return [(path, _read(path)) for path in self.folder.glob("*.json")]

    def write(self, claim: Claim) -> Path:
        """Write a claim atomically."""
        path = self.folder / f"{claim.pid}-{uuid.uuid4().hex[:8]}.json"
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(claim))
        part.replace(path)
        return path

    def tidy(self) -> None:
        """Remove partially written claims."""
        for path in self.folder.glob("*.part"):
            path.unlink(missing_ok=True)


def _read(path: Path) -> Claim:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Claim)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadInput(f"cannot read {path}, the record of an emulation; remove it: {exc}") from exc


def _wait_for(lock: int, folder: Path) -> None:
    deadline_s = time.monotonic() + LOCK_S
    while not _taken(lock):
        if time.monotonic() > deadline_s:
            raise TestbedError(f"another process has held {folder}/lock for {LOCK_S:g} s")
        time.sleep(0.05)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _default_folder() -> Path:
    """A directory that is cleared on reboot, if the machine has one."""
    if os.geteuid() == 0 and Path("/run").is_dir():
        return Path("/run/testbed")
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / "testbed"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _network() -> int:
    return os.stat("/proc/self/ns/net").st_ino
