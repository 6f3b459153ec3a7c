"""Frames of the messages that a BS receives, and the bounds of one message."""

from __future__ import annotations

import zmq

MOST_FRAMES = 64
"""Largest number of frames in a message."""
MAX_IDENTITY_BYTES = 255
"""Largest identity. libzmq's own sockets have no longer ones, but it takes them from others."""


def following(first: zmq.Frame, socket: zmq.Socket[bytes]) -> tuple[list[bytes], str]:
    """Frames of a message after the first one, which is its sender's identity.

    Returns:
        The frames, and which bound the message exceeds (empty: none). libzmq has already received all of them; those
        beyond the bound are dropped.
    """
    frames: list[bytes] = []
    count, frame = 0, first
    while frame.more:
        frame = socket.recv(zmq.NOBLOCK, copy=False)
        count += 1
        if count <= MOST_FRAMES:
            frames.append(frame.bytes)
    if len(first) > MAX_IDENTITY_BYTES:
        return frames, f"an identity of more than {MAX_IDENTITY_BYTES} bytes"
    return frames, f"a message of more than {MOST_FRAMES} frames" if count > MOST_FRAMES else ""
