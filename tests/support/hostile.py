"""Hostile peer: random messages close enough to the protocol to get past its first checks."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from testbed.channel.csi import Csi
from testbed.protocols import PROTOCOLS, TARGET_ONLY
from testbed.protocols.codec import encode
from testbed.protocols.messages import (
    VERSION,
    Close,
    Draft,
    Hello,
    Hidden,
    Message,
    NeedHidden,
    Open,
    Ping,
    Verdict,
)
from testbed.protocols.ranges import RANGES

Frames = list[bytes]
INTS = (0, 1, 2, 5, 255, 256, 4095, 2**31 - 1, 2**31, 2**62, 2**63 - 1, 2**64 - 1, -1, -2, -(2**31), -(2**63))
REALS = (0.0, -0.0, 1.0, 0.5, -1.0, 1e-300, 1e308, math.inf, -math.inf, math.nan)
TEXTS = ("", "greedy", "sh", "ü" * 20, "\0", "__reduce__", "x" * 3000)
ARRAYS = ("ids", "hidden", "q", "scale", "token", "positions", "probs", "", "ids ", "__class__")
DTYPES = ("i4", "f2", "f4", "u1", "u2", "i8", "O", "<i4", "f8", "", "object")
KINDS = (*PROTOCOLS, TARGET_ONLY)
PICKLE = b"cposix\n_exit\n(I1\ntR."
"""A pickle that ends the process if it is loaded."""


class Liar:
    """Generates random messages, reproducible by seed.

    Args:
        sessions: numbers that other UEs use.
        vocab_size: of the BS.
    """

    def __init__(self, seed: int, sessions: Sequence[int] = (), vocab_size: int = 512) -> None:
        self._rng = random.Random(f"liar/{seed}")
        self._sessions, self._vocab = sessions, vocab_size
        self._said: list[Frames] = []
        self._open: dict[int, tuple[str, int, int]] = {}
        """Sessions that may be open: protocol, possible prefix length, and possible next round."""
        self._wanted: list[tuple[int, int, int]] = []
        """Queries for hidden states: session, round and their number."""

    def frames(self) -> Frames:
        """The next message."""
        ways = (
            (self._honest, 8), (self._twisted, 6), (self._patched, 4), (self._lying, 3), (self._again, 2),
            (self._noise, 1), (self._stray, 1),
        )  # fmt: skip
        way = self._rng.choices([w for w, _ in ways], [n for _, n in ways])[0]
        frames = way()
        self._said = [*self._said[-50:], frames]
        return frames

    def hear(self, message: Message) -> None:
        """Learn from an answer of the BS."""
        if isinstance(message, Verdict) and message.session in self._open:
            kind, length, _ = self._open[message.session]
            self._open[message.session] = (kind, length + message.accepted + 1, message.round + 1)
        elif isinstance(message, NeedHidden):
            self._wanted = [*self._wanted[-5:], (message.session, message.round, message.count)]

    # ------------------------------------------------------------ ways to lie

    def _honest(self) -> Frames:
        """A valid message, as far as known, which brings sessions into states where invalid ones matter."""
        rng = self._rng
        if not self._open or rng.random() < 0.1:
            return self._opening()
        if self._wanted and rng.random() < 0.7:
            number, round_, count = self._wanted.pop()
            return _plain(Hidden(session=number, round=round_), self._states(count))
        number, (kind, length, next_round) = rng.choice(list(self._open.items()))
        if rng.random() < 0.03:
            return _plain(Close(session=number), {})
        window = rng.randint(1, 6)
        arrays = {"ids": self._ids(window)}
        if kind == "fh" or rng.random() < 0.05:
            arrays |= self._states(window)
        if kind == "rejection" or rng.random() < 0.05:
            arrays["q"] = np.zeros((window, self._vocab), np.uint16)
            arrays["q"][np.arange(window), arrays["ids"] % self._vocab] = 65535
        if kind == "split":
            arrays["q"] = np.full(window, 65535, np.uint16)
        if rng.random() < 0.1:
            next_round = rng.randrange(4)
        more = {name: self._extreme(Draft, name) for name in ("draft_s", "network_s") if rng.random() < 0.6}
        if rng.random() < 0.1:
            more[rng.choice(["draft_s", "network_s"])] = rng.choice([1.7e308, 1e300, 86_401.0])
        if rng.random() < 0.5:
            names = [name for name in RANGES[Csi] if name not in ("per_up", "per_down")]
            state = {name: self._extreme(Csi, name) for name in names}
            more["csi"] = Csi(**state, per_up=rng.choice([0.0, 5e-324, 1 - 2**-53]), per_down=0.0)  # type: ignore[arg-type]
            if rng.random() < 0.1:
                more["csi"] = msgspec.structs.replace(more["csi"], uplink_mbps=rng.choice([5e-324, 1e308]))
        return _plain(Draft(session=number, round=next_round, base_len=length, **more), arrays)  # type: ignore[arg-type]

    def _opening(self) -> Frames:
        rng = self._rng
        number, ids, kind = rng.randrange(8), self._ids(rng.randint(1, 20)), rng.choice(KINDS)
        self._open[number] = (kind, len(ids), 0)
        more: dict[str, Any] = {"max_tokens": rng.randint(1, 20)} if kind == TARGET_ONLY else {}
        if kind != TARGET_ONLY and rng.random() < 0.5:
            more = {"max_tokens": rng.choice([1, 20, 60]), "window": rng.choice([1, 5, 2**31 - 1])}
        if rng.random() < 0.5:
            more["speed_tps"] = self._extreme(Open, "speed_tps")
        if rng.random() < 0.3:
            more |= {name: self._extreme(Open, name) for name in ("temperature", "top_k", "seed")}
            more["top_p"] = rng.choice([5e-324, 1e-9, 0.5, 1.0])
        theta, bits = rng.choice([0.0, 0.5, 1.0]), rng.choice([16, 16, 16, 8, 4])
        message = Open(session=number, protocol=kind, threshold=theta, hidden_size=4, hidden_bits=bits, **more)
        return _plain(message, {"ids": ids})

    def _twisted(self) -> Frames:
        """Random fields in a random message, with well-formed arrays."""
        rng = self._rng
        kind = rng.choices([Hello, Open, Draft, Hidden, Close, Ping], [1, 8, 8, 8, 2, 2])[0]  # Hello ends its sessions
        message = kind(**{name: self._field(name) for name in kind.__struct_fields__ if name != "arrays"})
        arrays = {name: self._array() for name in rng.sample(ARRAYS, rng.randrange(4))}
        try:
            return _plain(message, arrays)
        except OverflowError:
            return _plain(Ping(token=0), {})

    def _patched(self) -> Frames:
        """A valid message with bytes changed, removed or inserted."""
        rng = self._rng
        frames = [bytearray(f) for f in self._honest()]
        for _ in range(rng.randint(1, 4)):
            frame = rng.choice(frames)
            at = rng.randrange(len(frame) + 1)
            frame[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        return [bytes(f) for f in frames]

    def _lying(self) -> Frames:
        """A message whose header does not match its arrays."""
        rng = self._rng
        fields = msgspec.msgpack.decode(self._honest()[0])
        count = rng.randrange(5)
        fields[-1 if fields[0] in ("Ping", "Close", "Hello") else self._arrays_at(fields)] = [
            [rng.choice(ARRAYS), rng.choice(DTYPES), [rng.choice(INTS) for _ in range(rng.randrange(4))]]
            for _ in range(count)
        ]
        payload = [rng.choice([b"", PICKLE, rng.randbytes(rng.randrange(64)), bytes(4096)]) for _ in range(count)]
        return [msgspec.msgpack.encode(fields), *payload]

    def _again(self) -> Frames:
        """A replayed message."""
        return self._rng.choice(self._said) if self._said else self._noise()

    def _noise(self) -> Frames:
        rng = self._rng
        return [rng.randbytes(rng.choice([0, 1, 8, 100, 5000])) for _ in range(rng.randint(1, 7))]

    def _stray(self) -> Frames:
        """A message for another UE's session."""
        number = self._rng.choice(list(self._sessions) or [1])
        round_ = self._rng.choice([0, 1, 2, 3, 10**6])
        kind = self._rng.randrange(3)
        if kind == 0:
            return _plain(Close(session=number), {})
        if kind == 1:
            return _plain(Hidden(session=number, round=round_), self._states(3))
        return _plain(Draft(session=number, round=round_, base_len=self._rng.randint(1, 60)), {"ids": self._ids(4)})

    # ------------------------------------------------------------ what it lies with

    def _arrays_at(self, fields: list[Any]) -> int:
        """Index of a header's list of arrays: its last list of lists."""
        return max(i for i, value in enumerate(fields) if isinstance(value, list))

    def _field(self, name: str) -> Any:
        rng = self._rng
        if name in ("threshold", "temperature", "top_p", "draft_s", "network_s"):
            return rng.choice(REALS)
        if name == "speed_tps":
            return rng.choice([None, *REALS])
        if name in ("protocol", "tokenizer", "drafter"):
            return rng.choice([*TEXTS, *KINDS])
        if name == "csi":
            return rng.choice([None, Csi(uplink_mbps=1.0, downlink_mbps=1.0, rtt_ms=1.0)])
        if name == "alone":
            return rng.random() < 0.5
        if name == "version":
            return rng.choice([VERSION, *INTS])
        if name == "session":
            return rng.choice([*INTS, *range(8), *self._sessions])
        return rng.choice([*INTS, 3, 4, 8, 16, 64])

    def _extreme(self, kind: type[msgspec.Struct], name: str) -> float:
        """A value within the range of a field: its bounds, their neighbours, the smallest numbers, an ordinary one."""
        least, most, _ = RANGES[kind][name]
        if isinstance(most, int) and kind is not Csi and not name.endswith("_s") and name != "temperature":
            return self._rng.choice([least, least + 1, most - 1, most])
        values = (least, math.nextafter(least, math.inf), most, math.nextafter(most, -math.inf), 0.0, 5e-324, 0.05, 1.0)
        value = float(self._rng.choice([value for value in values if least <= value <= most]))
        return max(value, math.ulp(0.0)) if name.endswith("mbps") else value

    def _ids(self, count: int) -> Any:
        high = self._vocab if self._rng.random() < 0.97 else 2**31 - 1
        low = 0 if self._rng.random() < 0.98 else -(2**31)
        return np.array([self._rng.randrange(low, high) for _ in range(count)], np.int32)

    def _states(self, rows: int) -> dict[str, Any]:
        rng = self._rng
        states = np.array([[rng.gauss(0, 1) for _ in range(4)] for _ in range(rows)], np.float16).reshape(rows, 4)
        if rows and rng.random() < 0.2:
            states[rng.randrange(rows), rng.randrange(4)] = rng.choice([math.nan, math.inf, -math.inf])
        if rng.random() < 0.8:
            return {"hidden": states}
        packed = np.frombuffer(rng.randbytes(rows * 4), np.uint8).reshape(rows, 4)
        return {"hidden": packed, "scale": np.frombuffer(rng.randbytes(rows * 2), np.float16)}

    def _array(self) -> Any:
        rng = self._rng
        dtype = rng.choice(["<i4", "<f2", "<f4", "|u1", "<u2"])
        shape = tuple(rng.choice([0, 1, 2, 7, 300]) for _ in range(rng.randrange(3)))
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer(rng.randbytes(size), dtype).reshape(shape)


def _plain(message: Message, arrays: dict[str, Any]) -> Frames:
    return [bytes(frame) for frame in encode(message, arrays)]
