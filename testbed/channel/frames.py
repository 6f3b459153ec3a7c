"""Frames of messages: from UEs, large ones travel in parts; a message has bounds.

libzmq has one limit for all frames of a connection, those of the handshake included. It reads their metadata in the
thread that serves all connections, whoever sends them: a frame of 8 MB with a million properties takes seconds. A frame
is therefore sent in parts of `PART_BYTES`, the limit of every frame; one of exactly this size is continued by the next.
"""

from __future__ import annotations

from collections.abc import Sequence

import zmq

Frames = Sequence["bytes | memoryview"]
PART_BYTES = 2**14
"""Size of a part. A handshake of this size takes libzmq 1 ms. Parts of 64 KiB would save 1 ms of CPU time per MB."""
OTHER_BYTES = 2**20
"""Limit for all frames of a message except the largest: header, ids, scales, padding."""
MOST_FRAMES = 64
"""Largest number of frames in a message."""
MAX_IDENTITY_BYTES = 255
"""Largest identity. libzmq's own sockets have no longer ones, but it takes them from others."""


def parts(frames: Frames) -> list[bytes | memoryview]:
    """Frames as a UE sends them."""
    found: list[bytes | memoryview] = []
    for frame in frames:
        if len(frame) < PART_BYTES:
            found.append(frame)
        else:
            view = memoryview(frame)
            found += [view[at : at + PART_BYTES] for at in range(0, len(view) + 1, PART_BYTES)]
    return found


def following(first: zmq.Frame, socket: zmq.Socket[bytes], frame_bytes: int) -> tuple[list[bytes], str]:
    """Whole frames of a message after the first one, which is its sender's identity.

    Args:
        frame_bytes: largest frame.

    Returns:
        The frames, and which bound the message exceeds (empty: none); then there are no frames, and the socket may have
        further parts of the message (RCVMORE). libzmq has already received all of them.
    """
    most_bytes = frame_bytes + OTHER_BYTES
    most_parts = MOST_FRAMES + most_bytes // PART_BYTES
    kept = _further(first, socket, most_parts)
    size = sum(map(len, kept))
    if len(first) > MAX_IDENTITY_BYTES:
        return [], f"an identity of more than {MAX_IDENTITY_BYTES} bytes"
    if size > most_bytes:
        return [], f"a message of more than {most_bytes} bytes"
    frames = whole(kept)
    if len(frames) > MOST_FRAMES or len(kept) > most_parts:
        return [], f"a message of more than {MOST_FRAMES} frames"
    if any(len(frame) > frame_bytes for frame in frames):
        return [], f"a frame of more than {frame_bytes} bytes"
    return frames, ""


def _further(first: zmq.Frame, socket: zmq.Socket[bytes], most: int) -> list[zmq.Frame]:
    """Parts of a message after the first one, up to `most` and another one."""
    kept, part = list[zmq.Frame](), first
    while part.more and len(kept) <= most:
        part = socket.recv(zmq.NOBLOCK, copy=False)
        kept.append(part)
    return kept


def answer(socket: zmq.Socket[bytes], most_bytes: int) -> tuple[list[bytes], str]:
    """The next message to a UE, whose frames come whole.

    Args:
        most_bytes: size of the largest message.

    Returns:
        As `following`.

    Raises:
        zmq.Again: no message has come.
    """
    first = socket.recv(zmq.NOBLOCK, copy=False)
    frames = [first, *_further(first, socket, MOST_FRAMES - 1)]
    if len(frames) > MOST_FRAMES:
        return [], f"a message of more than {MOST_FRAMES} frames"
    if sum(map(len, frames)) > most_bytes:
        return [], f"a message of more than {most_bytes} bytes"
    return [frame.bytes for frame in frames], ""


def skipped(socket: zmq.Socket[bytes], most: int) -> bool:
    """Drop up to `most` further parts of a message; returns whether the message has ended."""
    return any(not socket.recv(zmq.NOBLOCK, copy=False).more for _ in range(most))


def whole(received: Sequence[zmq.Frame]) -> list[bytes]:
    """Inverse of `parts`."""
    frames: list[bytes] = []
    begun: list[zmq.Frame] = []
    for part in received:
        begun.append(part)
        if len(part) < PART_BYTES or part is received[-1]:
            frames.append(part.bytes if len(begun) == 1 else b"".join([one.buffer for one in begun]))
            begun = []
    return frames
