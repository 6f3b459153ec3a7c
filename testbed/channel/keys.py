"""Key files for ZeroMQ CURVE: the clients that a BS allows and the keys of a UE, as certificates in pyzmq's format.

    DIR/server.key_secret     key pair of the BS; DIR/server.key is its public half
    DIR/clients/NAME.key      public key of an allowed UE
    DIR/revoked/NAME.key      revoked public key, refused under any name
    DIR/ues/NAME/             to be copied to that UE: client.key_secret and server.key

Directories have mode 0700 and files 0600; a directory or secret that others can read is refused.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import zmq
import zmq.auth
from zmq.utils import z85

from testbed.errors import BadInput, no_descriptor

SERVER, CLIENT = "server", "client"
CLIENTS, REVOKED, UES = "clients", "revoked", "ues"
KEY_LENGTH = 40
"""Length of a key in Z85 characters."""
MOST_BYTES = 2**16
"""Largest size of a key file."""


class ClientKeys(NamedTuple):
    """Keys of a UE, in Z85."""

    public: bytes
    secret: bytes
    server: bytes
    """Public key of the BS, which authenticates it to the UE."""


class ServerKeys(NamedTuple):
    """Keys of a BS, in Z85, and the directory with its list of allowed clients."""

    public: bytes
    secret: bytes
    directory: Path


class KeyEntry(NamedTuple):
    """A UE's key in the list of a BS."""

    name: str
    public_key: str
    revoked: bool


# ---------------------------------------------------------------- creating and revoking


def new_server(directory: Path) -> str:
    """Create a BS's key pair and an empty list of clients; returns the public key.

    Raises:
        BadInput: a key pair exists, or the directory cannot be written or is open to others.
    """
    with _as_bad_input(directory):
        _folder(directory)
        for name in (CLIENTS, REVOKED, UES):
            _folder(directory / name)
        public, secret = zmq.curve_keypair()
        _write((directory / f"{SERVER}.key_secret", public, secret), (directory / f"{SERVER}.key", public, None))
    return public.decode()


def new_client(directory: Path, name: str, out: Path | None = None) -> Path:
    """Create a UE's key pair and allow it; returns the directory to copy to the UE.

    Args:
        directory: key directory of the BS.
        name: letters, digits, `.`, `-` and `_`.
        out: directory for the UE's keys; None: below the BS's.

    Raises:
        BadInput: no BS keys in the directory, an invalid or used name, or a directory that cannot be written.
    """
    server = load_server(directory)
    if not re.fullmatch(r"[\w-][\w.-]{0,63}", name, re.ASCII):
        raise BadInput(f"bad name {name!r}; use letters, digits, '.', '-' and '_', 64 at most")
    if any((directory / place / f"{name}.key").exists() for place in (CLIENTS, REVOKED)):
        raise BadInput(f"{name!r} had a key already; take another name")
    carried = out or directory / UES / name
    public, secret = zmq.curve_keypair()
    with _as_bad_input(carried):
        _folder(carried)
        _write(
            (carried / f"{CLIENT}.key_secret", public, secret),
            (carried / f"{SERVER}.key", server.public, None),
            (directory / CLIENTS / f"{name}.key", public, None),
        )
    return carried


def revoke(directory: Path, name: str) -> KeyEntry:
    """Revoke a UE's key; a running BS notices within `access.RELOAD_S`.

    Raises:
        BadInput: no client of that name is allowed.
    """
    load_server(directory)
    before = directory / CLIENTS / f"{name}.key"
    if Path(name).name != name or not before.is_file():
        known = ", ".join(e.name for e in entries(directory) if not e.revoked) or "none"
        raise BadInput(f"no key of {name!r} in the list; known: {known}")
    with _as_bad_input(directory):
        (directory / REVOKED).mkdir(mode=0o700, exist_ok=True)
        before.replace(directory / REVOKED / before.name)
    return next(e for e in entries(directory) if e.revoked and e.name == name)


def entries(directory: Path) -> list[KeyEntry]:
    """All keys that are or were in the list, sorted by name; unreadable files in `clients/` are skipped.

    Raises:
        BadInput: an unreadable file in `revoked/`, whose key might be allowed under another name, or no file descriptor
            is free.
    """
    found = []
    for place in (CLIENTS, REVOKED):
        for path in sorted((directory / place).glob("*.key")):
            with contextlib.nullcontext() if place == REVOKED else _skipping():
                found.append(KeyEntry(path.stem, _load(path)[0].decode(), place == REVOKED))
    return found


@contextlib.contextmanager
def _skipping() -> Iterator[None]:
    """Skip a file that cannot be read, unless for want of a file descriptor."""
    try:
        yield
    except BadInput as exc:
        if no_descriptor(exc):
            raise


# ---------------------------------------------------------------- reading


def load_server(directory: Path) -> ServerKeys:
    """Load a BS's key pair.

    Raises:
        BadInput: no key pair, or it is open to others.
    """
    public, secret = _secret(directory, SERVER, "create it with: testbed keys new DIR")
    return ServerKeys(public, secret, directory)


def load_client(directory: Path) -> ClientKeys:
    """Load a UE's key pair and its BS's public key.

    Raises:
        BadInput: missing, or open to others.
    """
    advice = "create it with: testbed keys new DIR --ue NAME, on the machine of the BS or agent"
    public, secret = _secret(directory, CLIENT, advice)
    return ClientKeys(public, secret, _load(directory / f"{SERVER}.key")[0])


def _secret(directory: Path, name: str, advice: str) -> tuple[bytes, bytes]:
    path = directory / f"{name}.key_secret"
    if not path.is_file():
        raise BadInput(f"{directory} holds no {path.name}; {advice}")
    for place, mode in ((directory, "700"), (path, "600")):
        if place.stat().st_mode & 0o077:
            raise BadInput(f"{place} is open to others: chmod {mode} {place}")
    public, secret = _load(path)
    if len(secret) != KEY_LENGTH or zmq.curve_public(secret) != public:
        raise BadInput(f"{path} holds no key pair")
    return public, secret


def _load(path: Path) -> tuple[bytes, bytes]:
    """Public and secret key of a certificate; the secret is empty if the file has none."""
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:  # a device or pipe may never end
            raise BadInput(f"{path} is no key file: not a regular file of at most {MOST_BYTES} bytes")
        public, secret = zmq.auth.load_certificate(path)
        if len(z85.decode(public)) == 32 and len(public) == KEY_LENGTH:
            return public, secret or b""
    except (OSError, ValueError, LookupError) as exc:
        raise BadInput(f"{path} cannot be read as a key: {exc}") from exc
    raise BadInput(f"{path} holds no key")


def _write(*certificates: tuple[Path, bytes, bytes | None]) -> None:
    """Write new certificates that only their owner can read, each with a public and perhaps a secret key; if one cannot
    be written, none is kept.
    """
    made: list[Path] = []
    try:
        for path, public, secret in certificates:
            lines = ["metadata", "curve", f'    public-key = "{public.decode()}"']
            if secret is not None:
                lines.append(f'    secret-key = "{secret.decode()}"')
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            made.append(path)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write("\n".join(lines) + "\n")
    except OSError:
        for path in made:
            path.unlink(missing_ok=True)
        raise


def _folder(path: Path) -> None:
    """Create a directory that only its owner can read."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o077:
        raise BadInput(f"{path} is open to others: chmod 700 {path}")


@contextlib.contextmanager
def _as_bad_input(directory: Path) -> Iterator[None]:
    """Raise errors of the file system as BadInput with a message of one line."""
    try:
        yield
    except FileExistsError as exc:
        raise BadInput(f"{exc.filename or directory} exists already") from exc
    except OSError as exc:
        raise BadInput(f"cannot write {exc.filename or directory}: {exc.strerror or exc}") from exc
