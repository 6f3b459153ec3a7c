"""The journal of an unfinished run: finished outcomes, so that a killed run can be resumed.

`DIR/journal` consists of msgpack blocks, each preceded by its length in 4 bytes: a heading, what the BS serves, then
the outcomes, each synced to disk before the next prompt begins. It exists until `summary.json` is written, locked by
its run.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Union

import msgspec
from msgspec.structs import astuple

from testbed.channel.link import new_identity
from testbed.config import DemoConfig, RunConfig, load, resolved
from testbed.errors import BadInput, ConfigError, TestbedError
from testbed.experiments.results.claims import CONFIG, changed, stamps
from testbed.experiments.results.directory import SUMMARY
from testbed.experiments.results.folders import refuse_links
from testbed.experiments.runs.prepare import Workload
from testbed.files import LOCK, make_folder, require_empty, whole_file
from testbed.protocols.messages import Welcome, difference
from testbed.ue.run import Outcome

NAME = "journal"
PROFILE = "profile.yaml"
"""Profile of a virtual demo: the given one, or what was measured."""
SCHEMA = 1
MOST_INT = 2**63 - 1
ELSEWHERE = frozenset({"bs", "local_bs", "keys", "insecure", "timeout_s", "failover_s"})
"""Configuration fields that may differ when the run is resumed."""

Shared = dict[str, Any]
"""`Welcome.shared`."""
BLOCK: Any = Union[Outcome, tuple[Shared]]  # noqa: UP007 (msgspec reads it at run time)
"""A block after the heading."""


class Heading(msgspec.Struct, frozen=True):
    """The first block."""

    schema: int
    config: dict[str, Any]
    prompts: str
    """Digest of the prompts."""
    identity: bytes
    """Identity of the UE, by which the BS frees the sessions of a killed run when it is resumed."""
    inputs: dict[str, str] = {}
    """Fingerprints of the files that the settings name."""


class Journal:
    """An open journal.

    Attributes:
        identity: identity of the UE.
        done: outcomes read from the journal.
    """

    def __init__(self, path: Path, file: BinaryIO, identity: bytes, done: list[Outcome], shared: Shared | None) -> None:
        self._path, self._file, self.identity, self.done, self._shared = path, file, identity, done, shared

    @classmethod
    def begin(cls, out: Path, config: RunConfig, work: Workload) -> Journal:
        """Start a run. The journal appears with its heading: one that is interrupted before leaves none.

        Raises:
            BadInput: `out` has a run, finished or not, or is not writable.
            TestbedError: the disk is full.
        """
        check_new(out)
        make_folder(out)
        with whole_file(out / NAME) as part:
            journal = cls(out / NAME, part.open("xb"), new_identity(), [], None)
            try:
                _lock(journal._file, out)
                journal._write(Heading(SCHEMA, _settings(config), _digest(work), journal.identity, _inputs(config)))
                _link(part, out / NAME)
            except BaseException:
                journal.close()
                raise
        return journal

    @classmethod
    def resume(cls, out: Path, config: RunConfig, work: Workload) -> Journal:
        """Resume a run.

        Raises:
            BadInput: `out` has no unfinished run, one that still runs, one with other settings, prompts or files,
                or links in it.
        """
        path = out / NAME
        refuse_links(out)
        try:
            file = path.open("r+b")
        except FileNotFoundError as exc:
            ended = "a finished run: nothing is left" if (out / SUMMARY).exists() else "no unfinished run"
            raise BadInput(f"{out} holds {ended} to resume") from exc
        except OSError as exc:
            raise BadInput(f"cannot read {path}: {exc.strerror or exc}") from exc
        try:
            _lock(file, out)
            heading, shared, done, end = _read(file, path)
            _check(heading, config, work, out)
        except BaseException:
            file.close()
            raise
        file.truncate(end)  # an incomplete block
        file.seek(end)
        return cls(path, file, heading.identity, done, shared)

    def greet(self, welcome: Welcome) -> None:
        """Write down what the BS serves; a resumed run must be decoded by the same.

        Raises:
            BadInput: it serves another target, judge or head than when the run began.
            TestbedError: writing failed.
        """
        if self._shared is None:
            self._shared = welcome.shared
            self._write((self._shared,))  # an array, unlike an outcome
            return
        whose = f"the run in {self._path.parent} began with"
        if found := difference(welcome.shared, self._shared, whose):
            raise BadInput(f"the BS serves {found}")

    def add(self, outcome: Outcome) -> None:
        """Write an outcome, synced to disk.

        Raises:
            TestbedError: writing failed.
        """
        self._write(outcome)

    def close(self) -> None:
        """Close the journal and keep it for --resume."""
        with contextlib.suppress(OSError):  # a full disk was reported when it was written to
            self._file.close()

    def finish(self) -> None:
        """Remove the journal of a complete run."""
        self._path.unlink(missing_ok=True)
        self.close()

    def _write(self, value: Any) -> None:
        block = msgspec.msgpack.encode(value)
        try:
            self._file.write(len(block).to_bytes(4, "big") + block)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as exc:
            raise TestbedError(f"cannot write {self._path}: {exc.strerror or exc}") from exc


def check_new(out: Path) -> None:
    """Refuse to write a run into a directory that has one already.

    Raises:
        BadInput: it has a finished or an unfinished run.
    """
    if (path := out / NAME).exists():
        raise BadInput(f"{out} holds an unfinished run: give --resume to resume it, or remove {path}")
    if (out / SUMMARY).exists():
        raise BadInput(f"{out} holds a finished run; choose another --out, or remove the directory")


def check_folder(out: Path) -> None:
    """Refuse to begin a run in a directory that has one already, or files of others; the UE of a demo writes into the
    directory that the demo has reserved.

    Raises:
        BadInput: it has.
    """
    check_new(out)
    if not _reserved(out):
        require_empty(out)


def _reserved(out: Path) -> bool:
    """Whether a directory holds only what a demo has written before its UE begins."""
    if not (out / LOCK).exists() or {path.name for path in out.glob("[!.]*")} - {CONFIG, PROFILE}:
        return False
    with contextlib.suppress(ConfigError):
        load(DemoConfig, out / CONFIG)
        return True
    return False


def kept(out: Path | None) -> str:
    """A sentence about what is kept of a run that ended early, and the command that resumes it."""
    if out is None:
        return "nothing is kept; with --out DIR, a run can be resumed (--resume)"
    try:
        with (out / NAME).open("rb") as file:
            done = len(_read(file, out / NAME)[2])
    except (OSError, BadInput):
        return f"nothing is kept in {out}"
    return f"finished requests kept in {out}: {done}; resume with the same command and --resume"


def _link(part: Path, path: Path) -> None:
    with contextlib.suppress(OSError):  # a file system without hard links
        try:
            os.link(part, path)
        except FileExistsError as exc:
            raise BadInput(f"another run has begun in {path.parent}: it has written {path}") from exc


def _lock(file: BinaryIO, out: Path) -> None:
    """Lock a journal until it is closed, or its process ends.

    Raises:
        BadInput: its run is still going on.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        raise BadInput(f"the run in {out} is still going on in another process; wait for it, or stop it") from exc


def _settings(config: RunConfig) -> dict[str, Any]:
    """The settings that a resumed run must share; a replayed trace begins anew."""
    found = {key: value for key, value in resolved(config).items() if key not in ELSEWHERE}
    return found | {"csi": re.sub(r",origin_s=[^,]*", "", config.csi)}


def _inputs(config: RunConfig) -> dict[str, str]:
    """Fingerprints of the files that a resumed run must share; its channel state may be measured again."""
    return stamps({key: value for key, value in _settings(config).items() if key != "csi"})


def _digest(work: Workload) -> str:
    """Digest of the prompts' ids, in order."""
    ids = msgspec.msgpack.encode([prompt.ids for prompt in work.prompts])
    return hashlib.blake2b(ids, digest_size=8).hexdigest()


def _read(file: BinaryIO, path: Path) -> tuple[Heading, Shared | None, list[Outcome], int]:
    """Heading, what the BS serves, outcomes that results can hold, and the end of the last complete block."""
    try:
        blocks = _blocks(file)
        first = next(blocks, None)
        if first is None:
            raise BadInput(f"{path} has no complete heading: remove it, and run without --resume")
        heading, end = msgspec.msgpack.decode(first, type=Heading), file.tell()
        if heading.schema != SCHEMA:
            raise BadInput(f"{path} has schema {heading.schema}; this version reads {SCHEMA}")
        shared: Shared | None = None
        done: list[Outcome] = []
        for block in blocks:
            found: Outcome | tuple[Shared] = msgspec.msgpack.decode(block, type=BLOCK)
            if isinstance(found, tuple):
                (shared,) = found
            elif _writable(found):
                done.append(found)
            end = file.tell()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadInput(f"{path} is not a journal of this version: {exc}") from exc
    return heading, shared, done, end


def _writable(outcome: Outcome) -> bool:
    """Whether the columns of results can hold an outcome's integers, and its tokens are such: a BS may have lied."""
    record = outcome.record
    parts = (astuple(outcome), astuple(record), record.token_ids, *map(astuple, record.rounds))
    fits = all(value <= MOST_INT for part in parts for value in part if isinstance(value, int))
    return fits and min(record.token_ids, default=0) >= 0


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """The complete blocks of a file."""
    while len(size := file.read(4)) == 4:
        block = file.read(length := int.from_bytes(size, "big"))
        if len(block) < length:
            return
        yield block


def _check(heading: Heading, config: RunConfig, work: Workload, out: Path) -> None:
    """Check that settings, prompts and files are those of the journal."""
    now = msgspec.msgpack.decode(msgspec.msgpack.encode(_settings(config)))
    differing = sorted(key for key in now.keys() | heading.config.keys() if now.get(key) != heading.config.get(key))
    if differing:
        raise BadInput(f"the run in {out} had {_list(heading.config, differing)}; give it the same")
    if heading.prompts != _digest(work):
        raise BadInput(f"the run in {out} had other prompts; give it the same")
    if name := changed(heading.inputs, _inputs(config)):
        raise BadInput(f"{name} has changed since the run in {out} was begun; choose another --out")


def _list(config: dict[str, Any], names: Iterable[str]) -> str:
    return ", ".join(f"{name.replace('_', '-')} {config.get(name)}" for name in names)
