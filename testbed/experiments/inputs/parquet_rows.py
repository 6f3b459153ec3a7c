"""Rows of a Parquet file, read by a process of its own with bounds on memory and time.

A kilobyte of Parquet may unpack to any size, in more ways than its headers tell, and a damaged file may end the process
that reads it. Results have few types of columns, and are read in the process (`testbed.unpacked`); data sets may have
any.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from testbed.errors import BadInput
from testbed.files import MOST_BYTES, regular_bytes
from testbed.process.children import end_first, module_command, signal_name

MOST_MEMORY_BYTES = 2**32
"""Address space of the process."""
MOST_ROW_BYTES = MOST_BYTES
"""Largest row, as it is handed over."""
WAIT_S = 120.0
"""Longest time for the next row."""
AT_ONCE = 256
"""Rows that are decoded together."""
FEW = 16
"""Rows of them that are made at a time: values that rows share are copied."""
MEMORY = f"its rows need too much memory, {AT_ONCE} at a time"
MOST_REASON_BYTES = 1000
HEAD = 4
"""Bytes before each row: its length; 0: a message about what is wrong follows, or nothing at the end."""


def parquet_rows(path: Path) -> Generator[dict[str, Any], None, None]:
    """The rows of a Parquet file, whatever its size, as JSON would have them, but for bytes. Times and durations,
    which may have no Python values, are left out, also of structs and lists of them.

    Raises:
        BadInput: not a Parquet file, a damaged one, values that Python has not, or rows that need too much memory or
            time.
        OSError: it cannot be read, or is no regular file.
    """
    regular_bytes(path)
    with subprocess.Popen(
        module_command(__name__, str(path), str(MOST_MEMORY_BYTES)),
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    ) as process:
        assert process.stdout is not None
        try:
            yield from _rows(path, process, process.stdout)
        finally:
            process.kill()


def _rows(path: Path, process: subprocess.Popen[bytes], pipe: IO[bytes]) -> Iterator[dict[str, Any]]:
    decode = msgspec.msgpack.Decoder().decode
    while True:
        head = _taken(path, pipe, HEAD)
        size = int.from_bytes(head, "little")
        if len(head) < HEAD:
            code = process.wait()
            why = signal_name(-code) if code < 0 else f"exit code {code}"
            raise BadInput(f"cannot read {path}: the process that reads it ended by {why}")
        if size == 0:
            if reason := _taken(path, pipe, MOST_REASON_BYTES).decode(errors="replace"):
                raise BadInput(f"cannot read {path}: {reason}")
            return
        if size > MOST_ROW_BYTES:
            raise BadInput(f"cannot read {path}: a row has more than {MOST_ROW_BYTES} bytes")
        row = _taken(path, pipe, size)
        if len(row) == size:
            yield decode(row)


def _taken(path: Path, pipe: IO[bytes], size: int) -> bytes:
    """The next bytes; fewer where they end.

    Raises:
        BadInput: they take too long.
    """
    taken, ready = bytearray(), select.poll()
    ready.register(pipe, select.POLLIN)
    while len(taken) < size:
        if not ready.poll(1e3 * WAIT_S):
            raise BadInput(f"cannot read {path}: its rows take more than {WAIT_S:g} s to read")
        more = pipe.read(min(size - len(taken), 2**20))
        if not more:
            break
        taken += more
    return bytes(taken)


# ---------------------------------------------------------------- the process that reads


def read(path: Path, out: IO[bytes]) -> None:
    """Write the rows of a file, then what is wrong with it, if anything is."""
    reason = ""
    try:
        _write_rows(path, out)
    except MemoryError:  # of Python or Arrow
        reason = MEMORY
    except Exception as exc:  # of pyarrow, and of values that Python has not
        reason = str(exc) or type(exc).__name__
    out.write(bytes(HEAD) + " ".join(reason.split()).encode(errors="replace")[:MOST_REASON_BYTES])
    out.flush()


def _write_rows(path: Path, out: IO[bytes]) -> None:
    import pyarrow.parquet as pq

    encode = msgspec.msgpack.Encoder(enc_hook=str).encode
    with pq.ParquetFile(path) as file:
        if len(set(file.schema_arrow.names)) < len(file.schema_arrow):
            raise ValueError("a column is there more than once")
        leaves = [file.schema.column(number) for number in range(len(file.schema.names))]
        times = [time for field in file.schema_arrow for time in _times(field.type)]
        if len(times) != len(leaves):
            raise ValueError("it has nested columns that Arrow reads as others")
        kept = [leaf.path for leaf, time in zip(leaves, times, strict=True) if not time]
        # Arrow has no dictionaries within lists
        text = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and "." not in leaf.path]
    with pq.ParquetFile(path, read_dictionary=text) as file:  # text that many rows share is kept once
        for batch in file.iter_batches(columns=kept, batch_size=AT_ONCE, use_threads=False):
            for begin in range(0, len(batch), FEW):
                for row in batch.slice(begin, FEW).to_pylist():
                    packed = encode(row)
                    if len(packed) > MOST_ROW_BYTES:
                        raise ValueError(f"a row has more than {MOST_ROW_BYTES} bytes")
                    out.write(len(packed).to_bytes(HEAD, "little"))
                    out.write(packed)
                out.flush()


def _times(kind: Any) -> list[bool]:
    """Whether each leaf of a type is one of times or durations; of a map, which needs its keys, whether any is."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return _times(kind.storage_type)
    if pa.types.is_struct(kind):
        return [time for field in kind for time in _times(field.type)]
    if pa.types.is_map(kind):
        within = [*_times(kind.key_type), *_times(kind.item_type)]
        return [any(within)] * len(within)
    if pa.types.is_nested(kind) or pa.types.is_dictionary(kind):
        return _times(kind.value_type)
    return [pa.types.is_temporal(kind)]


def _bound(memory_bytes: int) -> None:
    """Limit this process, and leave Ctrl-C to its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_first(os.getpid())
    for name, most in (("RLIMIT_AS", memory_bytes), ("RLIMIT_CORE", 0)):
        hard = resource.getrlimit(kind := getattr(resource, name))[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, hard))


if __name__ == "__main__":
    _bound(int(sys.argv[2]))
    with contextlib.suppress(BrokenPipeError):
        read(Path(sys.argv[1]), sys.stdout.buffer)
    os._exit(0)
