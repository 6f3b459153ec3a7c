"""An agent's persistent state: uploaded files, and orders with their results."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from testbed.errors import BadInput, TestbedError
from testbed.files import whole_file
from testbed.protocols.codec import AnyArray, encode
from testbed.protocols.orders import (
    MAX_CHUNK_BYTES,
    MAX_FILES,
    MAX_ORDERS,
    MAX_RESULT_FILES,
    File,
    Get,
    Order,
    Probing,
    Put,
    Running,
    State,
    Stored,
    check_name,
    decode_order,
    digest_of,
    hash_of,
)

FILES, ORDERS, PARTS = "files", "orders", "parts"
ORDER, STATE, CRASHES, RESULT = "order", "state.json", "crashes", "result"
SPARE_BYTES = 2**28
"""Disk space that uploads must leave free."""
MOST_PARTS = 32
"""Most unfinished uploads; a further one replaces the one that was continued least recently."""
PART_S, IDLE_PART_S = 86_400.0, 600.0
"""Time without a chunk after which an unfinished upload is deleted: usually, and where a new one lacks disk space."""


class _Part(NamedTuple):
    """Hash of the first `size` bytes of an upload."""

    hash: Any
    size: int


class Files:
    """Uploaded files by name; a file becomes visible when it is complete and its digest matches.

    Every byte is hashed once while it arrives. Files that are older than this process are hashed when they are first
    asked for, which takes as long as reading them: call `put` from a thread, one call at a time.
    """

    def __init__(self, workdir: Path) -> None:
        self._root, self._parts = workdir / FILES, workdir / PARTS
        self._hashes: dict[str, _Part] = {}
        """Running hashes of unfinished uploads, by the digest of the whole file."""
        self._digests: dict[Path, tuple[tuple[int, int, int], str]] = {}
        """Identity (inode, size, time of change) and digest of complete files."""
        for folder in (self._root, self._parts):
            folder.mkdir(parents=True, exist_ok=True)
        self._count = sum(path.is_file() for path in self._root.rglob("*"))

    def expire(self, coming: int = 0, needed: int = 0) -> None:
        """Delete unfinished uploads that nobody continues, the least recently continued first.

        Args:
            coming: number of uploads that begin now.
            needed: free disk space that these need, in bytes.
        """
        now_s = time.time()
        parts = sorted((part.stat().st_mtime, part) for part in self._parts.iterdir())
        for number, (written_s, part) in enumerate(parts):
            crowded = len(parts) - number + coming > MOST_PARTS
            full = now_s - written_s > IDLE_PART_S and free_bytes(self._parts) < needed
            if crowded or full or now_s - written_s > PART_S:
                part.unlink()
                self._hashes.pop(part.name, None)

    def path(self, name: str) -> Path:
        """Path of an uploaded file or folder.

        Raises:
            BadInput: no such file.
        """
        path = self._root / check_name(name)
        if not path.exists() or path.is_symlink():
            raise BadInput(f"the agent has no file {name!r}; upload it with testbed field deploy")
        return path

    def put(self, message: Put, data: AnyArray) -> Stored:
        """Append a chunk; the answer gives the size stored so far, which is the offset of the next chunk.

        Raises:
            BadInput: too many files, no disk space, an oversized chunk, or a wrong digest: then the upload restarts.
        """
        if data.dtype != np.uint8 or data.ndim != 1 or len(data) > MAX_CHUNK_BYTES:
            raise BadInput(f"a chunk must be u1 [n] with n up to {MAX_CHUNK_BYTES}")
        path, part = self._root / message.name, self._parts / message.digest
        if path.is_file() and path.stat().st_size == message.total and self._digest(path) == message.digest:
            return Stored(name=message.name, size=message.total)
        there = part.stat().st_size if part.exists() else 0
        if there != message.offset or (not len(data) and message.total):
            return Stored(name=message.name, size=min(there, message.total))
        if there + len(data) > message.total:
            raise BadInput(f"{message.name} is longer than the announced {message.total} bytes")
        if self._count >= MAX_FILES and not path.exists():
            raise BadInput(f"the agent already stores {MAX_FILES} files; delete some from {self._root}")
        needed = message.total - there + SPARE_BYTES
        if not there:
            self.expire(coming=1, needed=needed)
        if free_bytes(self._root) < needed:
            raise BadInput(f"not enough disk space for {message.name}: {message.total} bytes")
        self._append(message, part, data.tobytes(), there)
        if there + len(data) == message.total:
            self._finish(message, part, path)
        return Stored(name=message.name, size=there + len(data))

    def _append(self, message: Put, part: Path, data: bytes, there: int) -> None:
        """Append to an upload of `there` bytes, and to its hash."""
        known = self._hashes.pop(message.digest, None)
        if known is None or known.size != there:  # begun by an earlier process, or a chunk was written in part
            known = _Part(hash_of(part) if there else hash_of(), there)
        with part.open("ab") as file:
            file.write(data)
        known.hash.update(data)
        self._hashes[message.digest] = _Part(known.hash, there + len(data))

    def _finish(self, message: Put, part: Path, path: Path) -> None:
        if self._hashes.pop(message.digest).hash.hexdigest() != message.digest:
            part.unlink()
            raise BadInput(f"{message.name} was corrupted in transfer; upload it again")
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._count += not path.exists()
        part.replace(path)
        self._digests[path] = (_identity_of(path), message.digest)

    def _digest(self, path: Path) -> str:
        """Digest of a complete file, read again only after a change."""
        identity = _identity_of(path)
        known = self._digests.get(path)
        if known is None or known[0] != identity:
            known = self._digests[path] = (identity, digest_of(path))
        return known[1]


def _identity_of(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


class StoredOrder:
    """An order on disk with its outcome.

    Attributes:
        arrived_ns: date of its arrival.
        ended: the final state document, as of the last `end` or `reset`; None: not finished.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.order: Order = decode_order([(folder / ORDER).read_bytes()]).message
        self.arrived_ns = (folder / ORDER).stat().st_mtime_ns
        self.ended: dict[str, Any] | None = None
        with contextlib.suppress(OSError, ValueError):
            self.ended = json.loads((folder / STATE).read_text(encoding="utf-8"))

    @property
    def result(self) -> Path:
        """Directory of the results."""
        return self.folder / RESULT

    def end(self, document: Mapping[str, Any]) -> None:
        """Write the final state document atomically."""
        with whole_file(self.folder / STATE) as part:
            part.write_text(json.dumps(document), encoding="utf-8")
        self.ended = dict(document)

    def count_crash(self) -> int:
        """Count a crash of the order's process; returns the number of crashes so far."""
        path = self.folder / CRASHES
        count = 1 + (int(path.read_text()) if path.exists() else 0)
        path.write_text(str(count))
        return count

    def reset(self) -> None:
        """Make a failed order pending again; partial results are kept."""
        self.ended = None
        for name in (STATE, CRASHES):
            (self.folder / name).unlink(missing_ok=True)


class OrderStore:
    """All orders of an agent, by id."""

    def __init__(self, workdir: Path) -> None:
        self._root = workdir / ORDERS
        self._root.mkdir(parents=True, exist_ok=True)
        found = []
        for folder in sorted(self._root.iterdir()):
            with contextlib.suppress(OSError, TestbedError):  # incomplete, or written by another version
                found.append(StoredOrder(folder))
        self._kept = {kept.folder.name: kept for kept in sorted(found, key=lambda kept: kept.arrived_ns)}
        """Orders in the sequence of their arrival."""

    def get(self, name: str) -> StoredOrder | None:
        """The order with this id; None: unknown."""
        return self._kept.get(name)

    def add(self, order: Order) -> StoredOrder:
        """Store an order; storing the same one again changes nothing.

        Raises:
            BadInput: a different order has this id, or too many orders are stored.
        """
        if (there := self._kept.get(order.id)) is not None:
            if _identity(there.order) != _identity(order):
                raise BadInput(f"order {order.id} exists with different content")
            return there
        if len(self._kept) >= MAX_ORDERS:
            raise BadInput(f"the agent already stores {MAX_ORDERS} orders; collect and drop some")
        folder = self._root / order.id
        folder.mkdir(exist_ok=True)
        with whole_file(folder / ORDER) as part:
            part.write_bytes(bytes(encode(msgspec.structs.replace(order, arrays=()))[0]))
        self._kept[order.id] = StoredOrder(folder)
        return self._kept[order.id]

    def drop(self, name: str) -> None:
        """Delete a finished order."""
        kept = self._kept.get(name)
        if kept is not None and kept.ended is not None:
            del self._kept[name]
            shutil.rmtree(kept.folder, ignore_errors=True)

    def named(self, prefix: str) -> list[StoredOrder]:
        """Orders whose ids begin with `prefix`."""
        return [kept for name, kept in self._kept.items() if name.startswith(prefix)]

    def waiting(self) -> list[StoredOrder]:
        """Unfinished orders, oldest first."""
        return [kept for kept in self._kept.values() if kept.ended is None]


def _identity(order: Order) -> Probing | Running:
    """An order's content, except for the measurement that its channel state starts from."""
    what = order.what
    return msgspec.structs.replace(what, link=None) if isinstance(what, Running) else what


def state_of(kept: StoredOrder, running: bool) -> State:
    """State message of an order."""
    ended = kept.ended
    if ended is None:
        return State(id=kept.order.id, state="running" if running else "waiting")
    files = tuple(File(*entry) for entry in ended["files"])
    return State(
        id=kept.order.id, state=ended["state"], note=ended["note"], began_s=ended["began_s"],
        ended_s=ended["ended_s"], files=files,
    )  # fmt: skip


def result_files(result: Path) -> list[tuple[str, int, str]]:
    """Name, size in bytes and digest of each result file.

    Raises:
        TestbedError: more files than can be collected.
    """
    found = sorted(path for path in result.rglob("*") if path.is_file() and not path.name.startswith("."))
    if len(found) > MAX_RESULT_FILES:
        raise TestbedError(f"the result has {len(found)} files; at most {MAX_RESULT_FILES} can be collected")
    return [(path.relative_to(result).as_posix(), path.stat().st_size, digest_of(path)) for path in found]


def chunk_of(kept: StoredOrder, message: Get) -> AnyArray:
    """A chunk of a result file: u1 [n], empty at the end of the file.

    Raises:
        BadInput: the order is not finished, or has no such file.
    """
    ended = kept.ended
    if ended is None or message.name not in [entry[0] for entry in ended["files"]]:
        raise BadInput(f"order {message.id} has no file {message.name!r}")
    with (kept.result / message.name).open("rb") as file:
        file.seek(message.offset)
        return np.frombuffer(file.read(MAX_CHUNK_BYTES), np.uint8)


def free_bytes(path: Path) -> int:
    """Free disk space."""
    return shutil.disk_usage(path).free
