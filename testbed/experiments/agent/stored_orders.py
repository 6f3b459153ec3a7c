"""An agent's orders on disk, with their results."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from testbed.errors import BadInput, TestbedError
from testbed.experiments.agent.owners import check_room
from testbed.files import whole_file
from testbed.protocols.codec import AnyArray, encode
from testbed.protocols.orders import (
    MAX_CHUNK_BYTES,
    MAX_ORDERS,
    MAX_RESULT_FILES,
    File,
    Get,
    Order,
    Probing,
    Running,
    State,
    decode_order,
    digest_of,
)

ORDERS = "orders"
ORDER, OWNER, CLOCK, STATE, CRASHES, RESULT = "order", "owner", "clock", "state.json", "crashes", "result"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class StoredOrder:
    """An order on disk with its outcome.

    Attributes:
        owner: the lab machine that gave it (`owner_name`); empty without keys.
        arrived_ns: date of its arrival.
        start_s: earliest start on this machine's monotonic clock; 0 if that has begun anew since.
        ended: the final state document, as of the last `end` or `reset`; None: not finished.
        saved: whether that is on disk.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.order: Order = decode_order([(folder / ORDER).read_bytes()]).message
        self.owner = ""
        with contextlib.suppress(OSError):  # given without keys
            self.owner = (folder / OWNER).read_text(encoding="ascii", errors="replace")
        self.arrived_ns = (folder / ORDER).stat().st_mtime_ns
        self.start_s = self.order.start_s if _same_clock(folder / CLOCK) else 0.0
        self.ended = _end_of(folder)
        self.saved, self._crashes = True, 0
        with contextlib.suppress(OSError, ValueError):
            self._crashes = int((folder / CRASHES).read_text())

    @property
    def result(self) -> Path:
        """Directory of the results."""
        return self.folder / RESULT

    def end(self, document: Mapping[str, Any]) -> None:
        """Set the final state document, and write it.

        Raises:
            TestbedError: it cannot be written now; `save` tries again.
        """
        self.ended, self.saved = dict(document), False
        self.save()

    def save(self) -> None:
        """Write the final state document atomically, unless it is on disk.

        Raises:
            TestbedError: it cannot be written.
        """
        if not self.saved:
            with whole_file(self.folder / STATE) as part:
                part.write_text(json.dumps(self.ended), encoding="utf-8")
            self.saved = True

    def begin_at(self, start_s: float) -> None:
        """Take the start that the order has when it is given again; 0 leaves the one that was given before.

        Raises:
            TestbedError: it cannot be written.
        """
        if start_s and start_s != self.start_s:
            _write_order(msgspec.structs.replace(self.order, start_s=start_s), self.folder)
            self.start_s = start_s

    def count_crash(self) -> int:
        """Count a crash of the order's process; returns the number of crashes so far, which a restart of the agent
        forgets if it cannot be written.
        """
        self._crashes += 1
        with contextlib.suppress(TestbedError), whole_file(self.folder / CRASHES) as part:
            part.write_text(str(self._crashes))
        return self._crashes

    def reset(self) -> None:
        """Make a failed order pending again; partial results are kept.

        Raises:
            OSError: its end on disk cannot be deleted; it stays failed.
        """
        for name in (CRASHES, STATE):
            (self.folder / name).unlink(missing_ok=True)
        self.ended, self.saved, self._crashes = None, True, 0


class _Ended(msgspec.Struct, forbid_unknown_fields=True):
    """What a final state document holds, with the order's id."""

    id: str
    state: Literal["done", "failed"]
    note: str
    began_s: float
    ended_s: float
    files: tuple[File, ...]


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

    def add(self, order: Order, owner: str = "") -> StoredOrder:
        """Store an order; storing the same one again changes nothing but its start, unless it is done or another lab
        machine's.

        Args:
            owner: the lab machine that gives it.

        Raises:
            BadInput: a different order has this id, or too many orders are stored (`check_room`).
            TestbedError, OSError: it cannot be encoded, written, or read again.
        """
        if (there := self._kept.get(order.id)) is not None:
            if _identity(there.order) != _identity(order):
                raise BadInput(f"order {order.id} exists with different content")
            if there.owner == owner and (there.ended is None or there.ended["state"] == "failed"):
                there.begin_at(order.start_s)
            return there
        check_room(Counter(kept.owner for kept in self._kept.values()), owner, MAX_ORDERS, "orders")
        folder = self._root / order.id
        try:
            shutil.rmtree(folder, ignore_errors=True)  # of an order that could not be read
            folder.mkdir()
            if owner:
                with whole_file(folder / OWNER) as part:
                    part.write_text(owner, encoding="ascii")
            _write_order(order, folder)
            self._kept[order.id] = StoredOrder(folder)
        except BaseException:  # refused: the agent must not find it when it starts again
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return self._kept[order.id]

    def drop(self, name: str) -> None:
        """Delete a finished order."""
        kept = self._kept.get(name)
        if kept is not None and kept.ended is not None:
            del self._kept[name]
            shutil.rmtree(kept.folder, ignore_errors=True)

    def save(self) -> None:
        """Write the ends of orders that could not be written before.

        Raises:
            TestbedError: one still cannot be written.
        """
        for kept in self._kept.values():
            kept.save()

    def named(self, prefix: str, owner: str) -> list[StoredOrder]:
        """Orders of a lab machine whose ids begin with `prefix`."""
        return [kept for name, kept in self._kept.items() if name.startswith(prefix) and kept.owner == owner]

    def waiting(self) -> list[StoredOrder]:
        """Unfinished orders, oldest first."""
        return [kept for kept in self._kept.values() if kept.ended is None]


def _end_of(folder: Path) -> dict[str, Any] | None:
    """The final state document on disk; None: the order has not finished, or its document is damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError):  # ValidationError is a ValueError
        document: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
        msgspec.convert({"id": folder.name, **msgspec.convert(document, dict[str, Any])}, _Ended)
        return document
    return None


def _write_order(order: Order, folder: Path) -> None:
    """Write an order, and by which clock it has its start: monotonic clocks begin anew when the machine does.

    Raises:
        TestbedError: it cannot be written.
    """
    with whole_file(folder / CLOCK) as part:
        part.write_text(f"{_boot()} {time.perf_counter()!r}", encoding="ascii")
    with whole_file(folder / ORDER) as part:
        part.write_bytes(bytes(encode(msgspec.structs.replace(order, arrays=()))[0]))


def _same_clock(path: Path) -> bool:
    """Whether this machine's monotonic clock has gone on since a file of `_write_order` was written."""
    try:
        boot, then_s = path.read_text(encoding="ascii").split(" ")
        return boot == _boot() and float(then_s) <= time.perf_counter()
    except (OSError, ValueError):
        return False


def _boot() -> str:
    """Identity of this machine's start; empty where it has none."""
    with contextlib.suppress(OSError):
        return BOOT_ID.read_text(encoding="ascii").strip()
    return ""


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
