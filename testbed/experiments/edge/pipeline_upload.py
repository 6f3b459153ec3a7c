"""Prompt uploads through the relay, each user at the rate of its share (edge SD batching, eqs. 15, 16).

A user uploads D_k = λ·I_k bits: a header, the prompt's ids, and zeros for the embeddings that the paper uploads. An
upload has arrived with its last byte.
"""

from __future__ import annotations

import asyncio
import json
import struct
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from testbed.channel.spec import ChannelSpec
from testbed.errors import BadInput, LinkTimeout
from testbed.experiments.runs.processes import proxy

HEADER = struct.Struct("<II")
"""Task and number of ids."""
ID_BYTES = 4
SLACK_S = 30.0
"""Timeout of an upload, in addition to four times the expected time."""


class Uploaded(NamedTuple):
    """Received prompts, and their arrival times."""

    prompts: dict[int, list[int]]
    arrivals_s: list[float]
    """[K] seconds after the common start."""
    last_s: float
    """Arrival of the last one, on the host's monotonic clock."""
    begin_s: float
    """Common start, on the same clock."""


Then = Callable[[dict[int, list[int]]], None]


def upload(
    prompts: Mapping[int, Sequence[int]],
    bits: Sequence[float],
    shares: Mapping[str, Any],
    then: Then = lambda received: None,
) -> Uploaded:
    """Upload all prompts concurrently through one relay.

    Args:
        prompts: ids of tasks 0 to K − 1.
        bits: [K] size of each upload.
        shares: document of `testbed.optim.tasks.allocation`.
        then: called with the received prompts as soon as the last one has arrived (eq. 16), in a thread.

    Raises:
        BadInput: an upload is too small for its ids.
        LinkTimeout: not all uploads arrived.
    """
    payloads = [payload(task, prompts[task], int(np.ceil(bits[task] / 8))) for task in range(len(prompts))]
    limit_s = SLACK_S + 4 * shares["communication_s"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shares.json"
        path.write_text(json.dumps(shares), encoding="utf-8")
        return asyncio.run(_upload(payloads, ChannelSpec(kind="proxy", shares=str(path)), limit_s, then))


def payload(task: int, ids: Sequence[int], size_bytes: int) -> bytes:
    """A user's upload.

    Raises:
        BadInput: the ids do not fit.
    """
    content = HEADER.pack(task, len(ids)) + np.array(ids, "<u4").tobytes()
    if len(content) > size_bytes:
        raise BadInput(
            f"the upload of task {task} has {size_bytes} bytes, but its {len(ids)} ids alone take {len(content)}; "
            "raise the bits per token"
        )
    return content + bytes(size_bytes - len(content))


class _Arrivals:
    """Receives uploads."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self.prompts: dict[int, list[int]] = {}
        self.times_s: dict[int, float] = {}
        self.done = asyncio.Event()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Receive one upload."""
        try:
            task, count = HEADER.unpack(await reader.readexactly(HEADER.size))
            ids = np.frombuffer(await reader.readexactly(ID_BYTES * count), "<u4").tolist()
            await reader.readexactly(self._sizes[task] - HEADER.size - ID_BYTES * count)
            self.prompts[task], self.times_s[task] = ids, time.monotonic()
            if len(self.times_s) == len(self._sizes):
                self.done.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # reported by the timeout of all arrivals
        finally:
            writer.close()


async def _upload(payloads: Sequence[bytes], spec: ChannelSpec, limit_s: float, then: Then) -> Uploaded:
    arrivals = _Arrivals([len(data) for data in payloads])
    server = await asyncio.start_server(arrivals.take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        with proxy(spec, f"tcp://127.0.0.1:{port}") as ready:
            writers = [await _connect(address) for address in ready["listens"]]
            start_s = time.monotonic()
            for writer, data in zip(writers, payloads, strict=True):
                writer.write(data)
            try:
                await asyncio.wait_for(arrivals.done.wait(), limit_s)
            except asyncio.TimeoutError as exc:
                missing = len(payloads) - len(arrivals.times_s)
                raise LinkTimeout(
                    f"{missing} of {len(payloads)} uploads did not arrive within {limit_s:.0f} s"
                ) from exc
            await asyncio.to_thread(then, arrivals.prompts)
            for writer in writers:
                writer.close()
    finally:
        server.close()
        await server.wait_closed()
    times_s = [arrivals.times_s[task] for task in range(len(payloads))]
    return Uploaded(arrivals.prompts, [each - start_s for each in times_s], max(times_s), start_s)


async def _connect(address: str) -> asyncio.StreamWriter:
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    _, writer = await asyncio.open_connection(host, int(port))
    return writer
