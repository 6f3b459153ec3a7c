"""Key files: contents, permissions, refusals."""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path
from typing import IO

import pytest
import zmq
import zmq.auth

from testbed.channel.keys import entries, load_client, load_server, new_client, new_server, revoke
from testbed.errors import BadInput
from tests.support.refusals import refuse


@pytest.fixture
def bs(tmp_path: Path) -> Path:
    new_server(tmp_path / "keys")
    return tmp_path / "keys"


def test_pairs_belong_together_and_pyzmq_reads_them(bs: Path) -> None:
    server, ue = load_server(bs), load_client(new_client(bs, "orin-1"))
    assert zmq.curve_public(server.secret) == server.public
    assert zmq.curve_public(ue.secret) == ue.public != server.public
    assert ue.server == server.public
    assert zmq.auth.load_certificate(bs / "server.key_secret") == (server.public, server.secret)
    assert zmq.auth.load_certificates(bs / "clients") == {ue.public: True}


def test_nobody_else_can_read_anything_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        new_server(tmp_path / "keys")
        new_client(tmp_path / "keys", "pi", tmp_path / "pi")
    finally:
        os.umask(before)
    found = [path for root in ("keys", "pi") for path in (tmp_path / root, *(tmp_path / root).rglob("*"))]
    assert len(found) == 10
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_secrets_stay_out_of_public_files_and_of_the_list(bs: Path) -> None:
    carried = new_client(bs, "pi")
    secrets = [load_server(bs).secret, load_client(carried).secret]
    for path in bs.rglob("*.key"):
        assert not any(secret in path.read_bytes() for secret in secrets)
    assert not any(secret.decode() in str(entry) for secret in secrets for entry in entries(bs))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o666])
def test_a_secret_that_others_can_read_is_refused(bs: Path, mode: int) -> None:
    carried = new_client(bs, "pi")
    for directory, name, load in ((bs, "server", load_server), (carried, "client", load_client)):
        (directory / f"{name}.key_secret").chmod(mode)
        refuse(lambda load=load, at=directory: load(at), BadInput, "open to others", "chmod 600")  # type: ignore[misc]


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o755, 0o777])
def test_a_directory_that_others_can_enter_is_refused(bs: Path, mode: int) -> None:
    carried = new_client(bs, "pi")
    for directory in (carried, bs):
        directory.chmod(mode)
    refuse(lambda: load_client(carried), BadInput, "open to others", "chmod 700")
    refuse(lambda: load_server(bs), BadInput, "open to others", "chmod 700")
    refuse(lambda: new_client(bs, "other"), BadInput, "open to others")
    refuse(lambda: new_server(bs), BadInput, "open to others")


def test_a_revoked_name_is_gone_and_is_not_given_again(bs: Path) -> None:
    for name in ("a", "b"):
        new_client(bs, name)
    entry = revoke(bs, "a")
    assert entry == next(e for e in entries(bs) if e.name == "a") and entry.revoked
    assert [(e.name, e.revoked) for e in entries(bs)] == [("b", False), ("a", True)]
    refuse(lambda: revoke(bs, "a"), BadInput, "no key of 'a'", "known: b")
    refuse(lambda: new_client(bs, "a"), BadInput, "had a key already")


def test_what_is_there_is_never_written_over(bs: Path, tmp_path: Path) -> None:
    before = (bs / "server.key_secret").read_bytes()
    refuse(lambda: new_server(bs), BadInput, "exists already")
    assert (bs / "server.key_secret").read_bytes() == before
    carried = new_client(bs, "a", tmp_path / "ue")
    refuse(lambda: new_client(bs, "b", carried), BadInput, "exists already")
    assert [e.name for e in entries(bs)] == ["a"]


@pytest.mark.parametrize(("client", "at"), [(False, 0), (False, 1), (True, 0), (True, 1), (True, 2)])
def test_a_full_disk_leaves_no_keys_behind(
    client: bool, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of 0 bytes stayed, so that the same command was refused when there was room again."""
    keys, number, fdopen = tmp_path / "keys", itertools.count(), os.fdopen

    def found() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def command() -> object:
        return new_client(keys, "pi") if client else new_server(keys)

    def opened(descriptor: int, *how: str, **options: str) -> IO[str]:
        file: IO[str] = fdopen(descriptor, *how, **options)  # type: ignore[call-overload]
        if next(number) != at:
            return file
        file.close()
        return Path("/dev/full").open("w")

    if client:
        new_server(keys)
    before = found()
    monkeypatch.setattr(os, "fdopen", opened)
    refuse(command, BadInput, "cannot write", "No space left on device")
    assert found() == before
    command()
    assert len(found()) == len(before) + (3 if client else 2)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a b", ".hidden", "ü", "x" * 65, "a\n"])
def test_names_that_are_no_file_names_are_refused(bs: Path, name: str) -> None:
    refuse(lambda: new_client(bs, name), BadInput, "bad name")
    refuse(lambda: revoke(bs, name), BadInput, "no key of")


@pytest.mark.parametrize(
    "content", ["", "public-key", 'public-key = "short"', f'public-key = "{"~" * 40}"', "\0" * 100]
)
def test_files_that_hold_no_keys_are_refused_in_one_line(bs: Path, content: str) -> None:
    path = bs / "server.key_secret"
    path.write_text(content)
    refuse(lambda: load_server(bs), BadInput, str(path))
    (bs / "clients" / "odd.key").write_text(content)
    assert entries(bs) == []


def test_halves_of_two_pairs_are_refused(bs: Path) -> None:
    other = load_client(new_client(bs, "a")).secret
    path = bs / "server.key_secret"
    path.write_bytes(path.read_bytes().replace(load_server(bs).secret, other))
    refuse(lambda: load_server(bs), BadInput, "holds no key pair")


def test_directories_without_keys_say_how_to_make_them(tmp_path: Path, bs: Path) -> None:
    refuse(lambda: load_server(tmp_path / "none"), BadInput, "testbed keys new")
    refuse(lambda: load_client(bs), BadInput, "client.key_secret", "--ue NAME")
    refuse(lambda: new_client(tmp_path / "none", "a"), BadInput, "testbed keys new")
