"""The two nodes of the edge pipeline as processes: one drafts whole batches, one verifies them.

A node carries out one order at a time, and answers with its start and end on the host's monotonic clock, which all
processes share. It ends on request, or when the connection closes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec
import numpy as np

from testbed.bs.engines.base import VerifyEngine, VerifyRequest
from testbed.bs.engines.registry import ENGINES, leave_a_core, load_engine
from testbed.errors import TestbedError
from testbed.experiments.runs.forked import stop_all
from testbed.process.interrupts import as_child
from testbed.ue.llama.batch_drafter import BatchDrafter

STOP_S = 10.0


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Models and engine of both nodes."""

    drafter: str
    target: str
    vocab_size: int
    engine: str
    dtype: str
    threads: int
    context: int
    """Positions of a sequence, draft window included."""
    sequences: int
    """Maximum number of concurrent tasks."""


class OpenTasks(NamedTuple):
    """Drop all tasks, and open new ones."""

    prompts: Mapping[int, Sequence[int]]


class DraftBatch(NamedTuple):
    """Commit verified tokens, then draft for a batch."""

    committed: Sequence[tuple[int, int, int]]
    """Task, number of accepted tokens, the target's own token."""
    batch: Sequence[int]
    window: int


class Verify(NamedTuple):
    """Verify a batch."""

    batch: Sequence[int]
    prefixes: Sequence[Sequence[int]]
    drafts: Sequence[Sequence[int]]


class Done(NamedTuple):
    """Answer to an order."""

    rows: Sequence[Sequence[int]]
    """Drafted tokens [b][l], or the argmax of a verification [b][l + 1]."""
    start_s: float
    end_s: float
    cpu_s: float = 0.0
    """CPU time of the process: the duration with one thread on an otherwise idle machine."""


class Failed(NamedTuple):
    """Failure of an order, or of loading a model."""

    reason: str


@runtime_checkable
class Forgetful(Protocol):
    """An engine that can clear its prefix cache."""

    def forget(self) -> None:
        """Clear the prefix cache."""


class DraftNode:
    """Node that drafts for the tasks of the last `OpenTasks`."""

    def __init__(self, orders: Orders) -> None:
        self._drafter = BatchDrafter(
            Path(orders.drafter), orders.vocab_size, context=orders.context, sequences=orders.sequences,
            threads=orders.threads,
        )  # fmt: skip
        self._tasks: list[int] = []

    def obey(self, order: OpenTasks | DraftBatch | Verify) -> Sequence[Sequence[int]]:
        """Carry an order out."""
        if isinstance(order, OpenTasks):
            for task in self._tasks:
                self._drafter.release(task)
            self._tasks = list(order.prompts)
            for task, prompt in order.prompts.items():
                self._drafter.open(task, prompt)
            return []
        assert isinstance(order, DraftBatch)
        for task, accepted, token in order.committed:
            self._drafter.commit(task, accepted, token)
        drafted: list[list[int]] = self._drafter.draft(order.batch, order.window).tolist()
        return drafted

    def close(self) -> None:
        """Free the model."""
        self._drafter.close()


class VerifyNode:
    """Node that verifies; every `OpenTasks` clears the prefix cache."""

    def __init__(self, orders: Orders) -> None:
        options = ENGINES.choose(orders.engine).keywords({"max_batch": orders.sequences})
        self._engine: VerifyEngine = load_engine(
            orders.engine, orders.target, dtype=orders.dtype, vocab_size=orders.vocab_size, **options
        )  # fmt: skip
        self._runs, self._tasks = 0, list[int]()

    def obey(self, order: OpenTasks | DraftBatch | Verify) -> Sequence[Sequence[int]]:
        """Carry an order out."""
        if isinstance(order, OpenTasks):
            for task in self._tasks:
                self._engine.release(self._session(task))
            self._runs, self._tasks = self._runs + 1, list(order.prompts)
            if isinstance(self._engine, Forgetful):
                self._engine.forget()
            return []
        assert isinstance(order, Verify)
        batch = [
            VerifyRequest(self._session(task), np.array(prefix, np.int32), np.array(draft, np.int32))
            for task, prefix, draft in zip(order.batch, order.prefixes, order.drafts, strict=True)
        ]
        return [result.argmax.tolist() for result in self._engine.verify(batch)]

    def _session(self, task: int) -> str:
        return f"{self._runs}/{task}"

    def close(self) -> None:
        """Free the model."""
        self._engine.close()


NODES: dict[str, type[DraftNode] | type[VerifyNode]] = {"drafter": DraftNode, "verifier": VerifyNode}


def serve(name: str, orders: Orders, connection: Connection) -> None:
    """Main function of a node's process: load, report readiness, and carry out orders until told to end."""
    as_child()
    sys.stdout = sys.stderr
    leave_a_core(orders.threads)
    with contextlib.suppress(EOFError, ConnectionError):  # the parent process waits no longer
        try:
            _obey(name, orders, connection)
        except TestbedError as exc:
            connection.send(Failed(str(exc)))


def _obey(name: str, orders: Orders, connection: Connection) -> None:
    with contextlib.closing(NODES[name](orders)) as node:
        connection.send(Done([], time.monotonic(), time.monotonic()))
        while (order := connection.recv()) is not None:
            start_s, cpu_s = time.monotonic(), time.process_time()
            rows = node.obey(order)
            connection.send(Done(rows, start_s, time.monotonic(), time.process_time() - cpu_s))


@dataclass
class NodeProcess:
    """Handle of a node's process."""

    name: str
    connection: Connection
    pid: int
    busy: bool = False

    def send(self, order: OpenTasks | DraftBatch | Verify) -> None:
        """Send an order; the node must be idle."""
        assert not self.busy
        try:
            self.connection.send(order)
        except OSError as exc:
            raise TestbedError(f"the {self.name} process is gone") from exc
        self.busy = True

    def take(self) -> Done:
        """Receive the answer, which must be available.

        Raises:
            TestbedError: the node failed or died.
        """
        try:
            answer = self.connection.recv()
        except (EOFError, OSError) as exc:
            raise TestbedError(f"the {self.name} process died") from exc
        if isinstance(answer, Failed):
            raise TestbedError(f"the {self.name} failed: {answer.reason}")
        self.busy = False
        found: Done = answer
        return found

    def ask(self, order: OpenTasks | DraftBatch | Verify, timeout_s: float) -> Done:
        """Send an order and wait for its answer."""
        self.send(order)
        return answers([self], timeout_s)[0].take()


def answers(nodes: Sequence[NodeProcess], timeout_s: float) -> list[NodeProcess]:
    """Wait for the first answers; returns the nodes that have answered.

    Raises:
        TestbedError: timeout.
    """
    ready = wait([node.connection for node in nodes], timeout_s)
    if not ready:
        raise TestbedError(f"the {' and the '.join(node.name for node in nodes)} did not answer within {timeout_s:g} s")
    return [node for node in nodes if node.connection in ready]


@contextlib.contextmanager
def started(orders: Orders, ready_s: float = 300.0) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """Start drafter and verifier, wait until both have loaded, and stop them afterwards.

    Raises:
        TestbedError: a node failed to load its model, or timed out.
    """
    context: Any = multiprocessing.get_context("spawn")
    nodes, processes = [], []
    try:
        for name in NODES:
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(name, orders, theirs), name=name, daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            nodes.append(NodeProcess(name, ours, process.pid, busy=True))
        for node in nodes:
            answers([node], ready_s)
            node.take()
        yield nodes[0], nodes[1]
    finally:
        for node in nodes:
            with contextlib.suppress(OSError):
                node.connection.send(None)
            node.connection.close()
        for process in processes:
            process.join(STOP_S)
        stop_all(processes)
