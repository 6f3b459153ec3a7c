"""An agent's uploaded files."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from testbed.errors import BadInput
from testbed.experiments.agent.owners import check_room, owner_name
from testbed.protocols.codec import AnyArray
from testbed.protocols.orders import MAX_CHUNK_BYTES, MAX_FILES, Put, Stored, check_name, digest_of, hash_of

FILES, PARTS = "files", "parts"
SPARE_BYTES = 2**28
"""Disk space that uploads must leave free."""
MOST_PARTS = 32
"""Most unfinished uploads. A further one replaces one of the lab machine (key) that has the most: of these, the one
that was continued least recently.
"""
PART_S, IDLE_PART_S = 86_400.0, 600.0
"""Time without a chunk after which an unfinished upload is deleted: usually, and where a new one lacks disk space."""


class _Part(NamedTuple):
    """Hash of the first `size` bytes of an upload."""

    hash: Any
    size: int


class Files:
    """Uploaded files by name; a file becomes visible when it is complete and its digest matches.

    Each lab machine (key) has files of its own, so that none can replace, hide or add to those of another one. Every
    byte is hashed once while it arrives. Files that are older than this process are hashed when they are first asked
    for, which takes as long as reading them: call `put` from a thread, one call at a time.
    """

    def __init__(self, workdir: Path) -> None:
        self._root, self._parts = workdir / FILES, workdir / PARTS
        self._hashes: dict[str, _Part] = {}
        """Running hashes of unfinished uploads, by `part_of`."""
        self._digests: dict[Path, tuple[tuple[int, int, int], str]] = {}
        """Identity (inode, size, time of change) and digest of complete files."""
        for folder in (self._root, self._parts):
            folder.mkdir(parents=True, exist_ok=True)

    def folder(self, owner: str) -> Path:
        """Directory of the files of a lab machine (`owner_name`), whose name no file can have."""
        return self._root / f".{owner}" if owner else self._root

    @cached_property
    def _held(self) -> Counter[str]:
        """Number of files of each lab machine."""
        found = (path.relative_to(self._root).parts[0] for path in self._root.rglob("*") if path.is_file())
        return Counter(first[1:] if first.startswith(".") else "" for first in found)

    def expire(self, coming: str | None = None, needed: int = 0) -> None:
        """Delete unfinished uploads that nobody continues, the least recently continued first.

        Args:
            coming: name of an upload that begins now (`part_of`).
            needed: free disk space that it needs, in bytes; where all idle uploads together do not make it, none is
                deleted for it.
        """
        now_s = time.time()
        parts = sorted((part.stat().st_mtime, part) for part in self._parts.iterdir())
        idle = [part for written_s, part in parts if now_s - written_s > IDLE_PART_S]
        suffices = free_bytes(self._parts) + sum(part.stat().st_size for part in idle) >= needed
        held = Counter(_owner_of(name) for name in [part.name for _, part in parts] + ([coming] if coming else []))
        for written_s, part in parts:
            owner = _owner_of(part.name)
            crowded = held.total() > MOST_PARTS and held[owner] == max(held.values())
            full = suffices and part in idle and free_bytes(self._parts) < needed
            if crowded or full or now_s - written_s > PART_S:
                part.unlink()
                self._hashes.pop(part.name, None)
                held[owner] -= 1

    def path(self, name: str, owner: str = "") -> Path:
        """Path of an uploaded file or folder of a lab machine.

        Raises:
            BadInput: no such file.
        """
        path = self.folder(owner) / check_name(name)
        if not path.exists() or path.is_symlink():
            raise BadInput(f"the agent has no file {name!r}; upload it with testbed field deploy")
        return path

    def put(self, message: Put, data: AnyArray, owner: bytes = b"") -> Stored:
        """Append a chunk; the answer gives the size stored so far, which is the offset of the next chunk.

        Args:
            owner: key of the lab machine; empty without keys.

        Raises:
            BadInput: too many files, no disk space, an oversized chunk, or a wrong digest: then the upload restarts.
        """
        if data.dtype != np.uint8 or data.ndim != 1 or len(data) > MAX_CHUNK_BYTES:
            raise BadInput(f"a chunk must be u1 [n] with n up to {MAX_CHUNK_BYTES}")
        name = owner_name(owner)
        path, part = self.folder(name) / message.name, self._parts / part_of(message, owner)
        if path.is_dir() or any(parent.is_file() for parent in path.parents):
            raise BadInput(f"{message.name} cannot be stored: a file and a folder would have the same name")
        if path.is_file() and path.stat().st_size == message.total and self._digest(path) == message.digest:
            return Stored(name=message.name, size=message.total)
        there = part.stat().st_size if part.exists() else 0
        if there and there == message.total:  # received, but not in its place when the agent ended
            self._finish(message, part, path, name)
            return Stored(name=message.name, size=there)
        if there != message.offset or (not len(data) and message.total):
            return Stored(name=message.name, size=min(there, message.total))
        if there + len(data) > message.total:
            raise BadInput(f"{message.name} is longer than the announced {message.total} bytes")
        if not path.exists():
            check_room(self._held, name, MAX_FILES, "files")
        needed = message.total - there + SPARE_BYTES
        if not there:
            self.expire(part.name, needed)
        if free_bytes(self._root) < needed:
            raise BadInput(f"not enough disk space for {message.name}: {message.total} bytes")
        self._append(message, part, data.tobytes(), there)
        if there + len(data) == message.total:
            self._finish(message, part, path, name)
        return Stored(name=message.name, size=there + len(data))

    def _append(self, message: Put, part: Path, data: bytes, there: int) -> None:
        """Append to an upload of `there` bytes, and to its hash."""
        known = self._hashes.pop(part.name, None)
        if known is None or known.size != there:  # begun by an earlier process, or a chunk was written in part
            known = _Part(hash_of(part) if there else hash_of(), there)
        with part.open("ab") as file:
            file.write(data)
        known.hash.update(data)
        self._hashes[part.name] = _Part(known.hash, there + len(data))

    def _finish(self, message: Put, part: Path, path: Path, owner: str) -> None:
        known = self._hashes.pop(part.name, None)
        if (digest_of(part) if known is None else known.hash.hexdigest()) != message.digest:
            part.unlink()
            raise BadInput(f"{message.name} was corrupted in transfer; upload it again")
        path.parent.mkdir(parents=True, exist_ok=True)
        held, new = self._held, not path.exists()
        part.replace(path)
        held[owner] += new
        self._digests[path] = (_identity_of(path), message.digest)

    def _digest(self, path: Path) -> str:
        """Digest of a complete file, read again only after a change."""
        identity = _identity_of(path)
        known = self._digests.get(path)
        if known is None or known[0] != identity:
            known = self._digests[path] = (identity, digest_of(path))
        return known[1]


def part_of(message: Put, owner: bytes = b"") -> str:
    """Name of an unfinished upload: one of another name or size, which would end with a wrong digest, is another, and
    so is one of another lab machine.
    """
    text = f"{message.name}\n{message.digest}\n{message.total}"
    found = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return f"{owner_name(owner)}.{found}" if owner else found


def _owner_of(part: str) -> str:
    """What names the lab machine in the name of an unfinished upload."""
    return part.rpartition(".")[0]


def _identity_of(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def free_bytes(path: Path) -> int:
    """Free disk space."""
    return shutil.disk_usage(path).free
