"""The journal of a run under way: what is decoded already, so that a run that was killed can go on.

`DIR/journal` holds blocks of msgpack, each after its length in 4 bytes: what the run is, then one outcome each, on disk
before the next prompt begins. It is there while the run is unfinished and goes once `summary.json` is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from testbed.channel.link import new_identity
from testbed.config import RunConfig, resolved
from testbed.errors import BadInput, TestbedError
from testbed.experiments.runs.prepare import Workload
from testbed.ue.run import Outcome

NAME = "journal"
SCHEMA = 1
ELSEWHERE = frozenset({"bs", "local_bs", "keys", "insecure", "timeout_s", "failover_s"})
"""Of the configuration: may be another when the run goes on."""


class Heading(msgspec.Struct, frozen=True):
    """The first block."""

    schema: int
    config: dict[str, Any]
    prompts: str
    """Digest of what is decoded."""
    identity: bytes
    """Of the UE: under it the BS frees the sessions of a run that died when it goes on."""


class Journal:
    """A journal that outcomes are added to.

    Attributes:
        identity: of the UE.
        done: outcomes that were there.
    """

    def __init__(self, file: BinaryIO, identity: bytes, done: list[Outcome]) -> None:
        self._file, self.identity, self.done = file, identity, done

    @classmethod
    def begin(cls, out: Path, config: RunConfig, work: Workload) -> Journal:
        """Begin a run.

        Raises:
            BadInput: there is an unfinished one, or the directory cannot be written.
            TestbedError: its disk is full.
        """
        path = out / NAME
        try:
            out.mkdir(parents=True, exist_ok=True)
            journal = cls(path.open("xb"), new_identity(), [])
        except FileExistsError as exc:
            raise BadInput(f"{out} holds an unfinished run: give --resume to go on with it, or remove {path}") from exc
        except OSError as exc:
            raise BadInput(f"cannot write {path}: {exc.strerror or exc}") from exc
        try:
            journal._write(Heading(SCHEMA, _settings(config), _digest(work), journal.identity))
        except TestbedError:
            journal.finish()
            raise
        return journal

    @classmethod
    def resume(cls, out: Path, config: RunConfig, work: Workload) -> Journal:
        """Go on with a run.

        Raises:
            BadInput: there is none that is unfinished, or it was another one.
        """
        path = out / NAME
        try:
            file = path.open("r+b")
        except FileNotFoundError as exc:
            raise BadInput(f"{out} holds no unfinished run to go on with") from exc
        except OSError as exc:
            raise BadInput(f"cannot read {path}: {exc.strerror or exc}") from exc
        try:
            heading, done, end = _read(file, path)
            _check(heading, config, work, out)
        except BaseException:
            file.close()
            raise
        file.truncate(end)  # a block that was cut off
        file.seek(end)
        return cls(file, heading.identity, done)

    def add(self, outcome: Outcome) -> None:
        """Write an outcome down.

        Raises:
            TestbedError: it cannot be written.
        """
        self._write(outcome)

    def close(self) -> None:
        """Leave the journal for a run that goes on."""
        with contextlib.suppress(OSError):  # what a full disk did not take was told when it was written
            self._file.close()

    def finish(self) -> None:
        """The run is whole: remove the journal."""
        self.close()
        Path(self._file.name).unlink(missing_ok=True)

    def _write(self, value: Any) -> None:
        block = msgspec.msgpack.encode(value)
        try:
            self._file.write(len(block).to_bytes(4, "big") + block)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as exc:
            raise TestbedError(f"cannot write {self._file.name}: {exc.strerror or exc}") from exc


def _settings(config: RunConfig) -> dict[str, Any]:
    return {key: value for key, value in resolved(config).items() if key not in ELSEWHERE}


def _digest(work: Workload) -> str:
    """Of the prompts' ids, in order."""
    ids = msgspec.msgpack.encode([prompt.ids for prompt in work.prompts])
    return hashlib.blake2b(ids, digest_size=8).hexdigest()


def _read(file: BinaryIO, path: Path) -> tuple[Heading, list[Outcome], int]:
    """Heading, outcomes, and where the last whole block ends."""
    try:
        blocks = _blocks(file)
        first = next(blocks, None)
        if first is None:
            raise BadInput(f"{path} was cut off before the run began: remove it, and run without --resume")
        heading, end = msgspec.msgpack.decode(first, type=Heading), file.tell()
        if heading.schema != SCHEMA:
            raise BadInput(f"{path} has schema {heading.schema}; this version reads {SCHEMA}")
        done = []
        for block in blocks:
            done.append(msgspec.msgpack.decode(block, type=Outcome))
            end = file.tell()
    except msgspec.DecodeError as exc:
        raise BadInput(f"{path} is no journal of this version: {exc}") from exc
    return heading, done, end


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """The whole blocks of a file."""
    while len(size := file.read(4)) == 4:
        block = file.read(length := int.from_bytes(size, "big"))
        if len(block) < length:
            return
        yield block


def _check(heading: Heading, config: RunConfig, work: Workload, out: Path) -> None:
    """Refuse to go on with something else."""
    now = msgspec.msgpack.decode(msgspec.msgpack.encode(_settings(config)))
    differing = sorted(key for key in now.keys() | heading.config.keys() if now.get(key) != heading.config.get(key))
    if differing:
        raise BadInput(f"the run in {out} had {_list(heading.config, differing)}; give it the same")
    if heading.prompts != _digest(work):
        raise BadInput(f"the run in {out} had other prompts; give it the same")


def _list(config: dict[str, Any], names: Iterable[str]) -> str:
    return ", ".join(f"{name.replace('_', '-')} {config.get(name)}" for name in names)
