"""Key files: who a BS lets in, and what a UE shows it. ZeroMQ CURVE, certificates as pyzmq writes and reads them.

    DIR/server.key_secret     the BS's pair; DIR/server.key its public half
    DIR/clients/NAME.key      public key of a UE that is let in
    DIR/revoked/NAME.key      of one that no longer is, under whatever name it comes
    DIR/ues/NAME/             to be carried to that UE: client.key_secret and server.key

Directories are 0700 and files 0600; a directory or a secret that others could read is refused.
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

from testbed.errors import BadInput

SERVER, CLIENT = "server", "client"
CLIENTS, REVOKED, UES = "clients", "revoked", "ues"
KEY_LENGTH = 40
"""Characters of a key in Z85."""


class ClientKeys(NamedTuple):
    """What a UE needs to be let in: keys in Z85."""

    public: bytes
    secret: bytes
    server: bytes
    """The BS's public key: only who has its secret can answer."""


class ServerKeys(NamedTuple):
    """What a BS needs to let UEs in: keys in Z85, and where the list of theirs is."""

    public: bytes
    secret: bytes
    directory: Path


class KeyEntry(NamedTuple):
    """A UE's key on the list."""

    name: str
    public_key: str
    revoked: bool


# ---------------------------------------------------------------- making and revoking


def new_server(directory: Path) -> str:
    """Make a BS's pair and an empty list; returns its public key.

    Raises:
        BadInput: there is a pair already, or the directory cannot be written or is open to others.
    """
    with _told(directory):
        _folder(directory)
        for name in (CLIENTS, REVOKED, UES):
            _folder(directory / name)
        public, secret = zmq.curve_keypair()
        _write(directory / f"{SERVER}.key_secret", public, secret)
        _write(directory / f"{SERVER}.key", public)
    return public.decode()


def new_client(directory: Path, name: str, out: Path | None = None) -> Path:
    """Make a UE's pair and put it on the list; returns the directory that the UE needs.

    Args:
        directory: the BS's.
        name: letters, digits, `.`, `-` and `_`.
        out: where the UE's directory goes; None: below the BS's.

    Raises:
        BadInput: no BS's keys there, a name that cannot be or is taken, or a directory that cannot be written.
    """
    server = load_server(directory)
    if not re.fullmatch(r"[\w-][\w.-]{0,63}", name, re.ASCII):
        raise BadInput(f"bad name {name!r}; use letters, digits, '.', '-' and '_', 64 at most")
    if any((directory / place / f"{name}.key").exists() for place in (CLIENTS, REVOKED)):
        raise BadInput(f"{name!r} had a key already; take another name")
    carried = out or directory / UES / name
    public, secret = zmq.curve_keypair()
    with _told(carried):
        _folder(carried)
        _write(carried / f"{CLIENT}.key_secret", public, secret)
        _write(carried / f"{SERVER}.key", server.public)
    with _told(directory):
        _write(directory / CLIENTS / f"{name}.key", public)
    return carried


def revoke(directory: Path, name: str) -> KeyEntry:
    """Take a UE off the list; a BS that runs notices within `guard.RELOAD_S`.

    Raises:
        BadInput: nobody of that name is on the list.
    """
    load_server(directory)
    before = directory / CLIENTS / f"{name}.key"
    if Path(name).name != name or not before.is_file():
        known = ", ".join(e.name for e in entries(directory) if not e.revoked) or "nobody"
        raise BadInput(f"no key of {name!r} on the list; there is {known}")
    with _told(directory):
        (directory / REVOKED).mkdir(mode=0o700, exist_ok=True)
        before.replace(directory / REVOKED / before.name)
    return next(e for e in entries(directory) if e.revoked and e.name == name)


def entries(directory: Path) -> list[KeyEntry]:
    """All keys that were ever on the list, by name; files that hold none are left out."""
    found = []
    for place in (CLIENTS, REVOKED):
        for path in sorted((directory / place).glob("*.key")):
            with contextlib.suppress(BadInput):
                found.append(KeyEntry(path.stem, _load(path)[0].decode(), place == REVOKED))
    return found


# ---------------------------------------------------------------- reading


def load_server(directory: Path) -> ServerKeys:
    """A BS's pair.

    Raises:
        BadInput: no pair there, or it is open to others.
    """
    public, secret = _secret(directory, SERVER, "testbed keys new DIR makes them")
    return ServerKeys(public, secret, directory)


def load_client(directory: Path) -> ClientKeys:
    """A UE's pair and its BS's public key.

    Raises:
        BadInput: not there, or open to others.
    """
    advice = "testbed keys new DIR --ue NAME makes them, at the BS or the agent that they are for"
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
        raise BadInput(f"{path} holds no pair of keys")
    return public, secret


def _load(path: Path) -> tuple[bytes, bytes]:
    """Public and secret key of a certificate; without a secret, empty."""
    try:
        public, secret = zmq.auth.load_certificate(path)
        if len(z85.decode(public)) == 32 and len(public) == KEY_LENGTH:
            return public, secret or b""
    except (OSError, ValueError, LookupError) as exc:
        raise BadInput(f"{path} cannot be read as a key: {exc}") from exc
    raise BadInput(f"{path} holds no key")


def _write(path: Path, public: bytes, secret: bytes | None = None) -> None:
    """Write a certificate that only its owner can read, and that was not there."""
    lines = ["metadata", "curve", f'    public-key = "{public.decode()}"']
    if secret is not None:
        lines.append(f'    secret-key = "{secret.decode()}"')
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")


def _folder(path: Path) -> None:
    """A directory for its owner alone."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o077:
        raise BadInput(f"{path} is open to others: chmod 700 {path}")


@contextlib.contextmanager
def _told(directory: Path) -> Iterator[None]:
    """Errors of the file system in one line."""
    try:
        yield
    except FileExistsError as exc:
        raise BadInput(f"{exc.filename or directory} is there already") from exc
    except OSError as exc:
        raise BadInput(f"cannot write {exc.filename or directory}: {exc.strerror or exc}") from exc
