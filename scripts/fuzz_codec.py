"""Coverage-guided fuzzing of the wire codec with libFuzzer (`make fuzz`).

    .venv/bin/python -m scripts.fuzz_codec [-runs=1000000] [-seed=1] [CORPUS_DIR]

Options are those of libFuzzer. Input is split into frames, each with a length of two bytes. For any input, the codec
must return arrays that match their header or raise ProtocolError; anything else ends the run.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

RUNS = 1_000_000
MOST_FRAMES = 8


def main(argv: Sequence[str]) -> int:
    """Run the fuzzer; return the exit code."""
    try:
        import atheris
    except ImportError:
        print("fuzz_codec: needs atheris, of the extra `fuzz`: pip install 'atheris>=3.0'", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["testbed.protocols", "testbed.channel.csi"]):
        from testbed.protocols import codec

    with tempfile.TemporaryDirectory(prefix="fuzz-") as corpus:
        for i, frames in enumerate(seeds(codec)):
            (Path(corpus) / str(i)).write_bytes(join(frames))
        runs = [] if any(a.startswith(("-runs", "-max_total_time")) for a in argv) else [f"-runs={RUNS}"]
        atheris.Setup(["fuzz_codec", "-max_len=2048", *runs, *argv, corpus], lambda data: check(codec, split(data)))
        atheris.Fuzz()
    return 0


def check(codec: ModuleType, frames: list[bytes]) -> None:
    """Decode frames in both directions and compare the arrays with the header."""
    from testbed.errors import ProtocolError

    for decode in (codec.decode_uplink, codec.decode_downlink):
        with contextlib.suppress(ProtocolError):
            packet = decode(frames)
            specs = packet.message.arrays
            assert len(packet.arrays) == len(specs) == len(frames) - 1
            for spec, frame in zip(specs, frames[1:], strict=True):
                array = packet.arrays[spec.name]
                assert (array.shape, array.tobytes()) == (tuple(spec.shape), frame)
                assert array.dtype == codec.DTYPES[spec.dtype]


def split(data: bytes) -> list[bytes]:
    """Split fuzzed bytes into frames."""
    return list(_split(data))


def _split(data: bytes) -> Iterator[bytes]:
    for _ in range(MOST_FRAMES):
        if len(data) < 2:
            return
        length = int.from_bytes(data[:2], "big")
        yield data[2 : 2 + length]
        data = data[2 + length :]


def join(frames: Sequence[bytes]) -> bytes:
    """Inverse of `split`."""
    return b"".join(len(frame).to_bytes(2, "big") + frame for frame in frames)


def seeds(codec: ModuleType) -> list[list[bytes]]:
    """Initial corpus: one message of each kind."""
    import numpy as np

    from testbed.channel.csi import Csi
    from testbed.protocols import messages

    csi = Csi(uplink_mbps=1.0, downlink_mbps=2.0, rtt_ms=3.0)
    ids = {"ids": np.arange(4, dtype=np.int32)}
    both: dict[str, Any] = {**ids, "hidden": np.ones((4, 3), np.float16)}
    examples: list[tuple[messages.Message, dict[str, Any]]] = [
        (messages.Hello(version=messages.VERSION, tokenizer="t", vocab_size=9), {}),
        (messages.Open(session=1, protocol="sh", threshold=0.5, hidden_size=3), ids),
        (messages.Draft(session=1, round=2, base_len=4, csi=csi), both),
        (messages.Hidden(session=1, round=2), {"hidden": both["hidden"], "scale": np.ones(4, np.float16)}),
        (messages.Close(session=1), {}),
        (messages.Ping(token=1), {}),
        (messages.Pong(token=1), {}),
        (messages.Opened(session=1, length=4), {}),
        (messages.NeedHidden(session=1, round=2, count=3), {"positions": np.arange(2, dtype=np.uint8)}),
        (messages.Resync(session=1), {}),
        (messages.Busy(session=1, reason="r", retry_s=1.0), {}),
        (messages.Fault(session=1, reason="r"), {}),
    ]
    return [[bytes(frame) for frame in codec.encode(message, arrays)] for message, arrays in examples]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
