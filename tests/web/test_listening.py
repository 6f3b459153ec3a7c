"""Where web servers may listen, and keys in files."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from testbed.errors import BadInput
from testbed.web.listening import PROBE_S, UNREAD_MS, AccessRules, key_in, listening, url_of
from tests.support.refusals import refuse


def ipv6() -> bool:
    """Whether this machine speaks it."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.8.0.1", *(["::1"] if ipv6() else [])])
def test_loopback_needs_no_key(host: str) -> None:
    with listening(host, 0, guarded=False) as listener:
        assert listener.getsockname()[1] > 0


@pytest.mark.parametrize("host", ["0.0.0.0", "", *(["::"] if ipv6() else [])])
def test_other_addresses_need_one(host: str) -> None:
    with pytest.raises(BadInput, match="--token-file"), listening(host, 0, guarded=False):
        pass
    with listening(host, 0, guarded=True) as listener:
        assert listener.getsockname()[1] > 0


def test_a_port_that_is_taken_and_a_host_that_does_not_exist() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BadInput, match=f"cannot listen on 127.0.0.1:{port}"):
            listening("127.0.0.1", port, guarded=False).__enter__()
    with pytest.raises(BadInput, match=r"nowhere\.invalid"):
        listening("nowhere.invalid", 1, guarded=False).__enter__()


def test_the_refusal_names_the_flag() -> None:
    with pytest.raises(BadInput, match="--monitor-token-file FILE"):
        listening("0.0.0.0", 0, guarded=False, flag="--monitor-token-file").__enter__()


@pytest.mark.parametrize("host", ["127.0.0.1", *(["::1"] if ipv6() else [])])
def test_the_address_that_it_is_reached_at(host: str) -> None:
    with listening(host, 0, guarded=False) as listener:
        shown = f"[{host}]" if ":" in host else host
        assert url_of(listener) == f"http://{shown}:{listener.getsockname()[1]}"


def key_file(folder: Path, text: str, mode: int = 0o600) -> str:
    key = folder / "key"
    key.write_text(text)
    key.chmod(mode)
    return str(key)


def test_a_key_is_the_line_of_its_file(tmp_path: Path) -> None:
    assert (key_in(key_file(tmp_path, " abc-1 \n")), key_in(None)) == ("abc-1", None)


@pytest.mark.parametrize(
    ("mode", "taken"), [(0o600, True), (0o400, True), (0o640, False), (0o604, False), (0o644, False)]
)
def test_a_key_that_others_can_read_is_refused(mode: int, taken: bool, tmp_path: Path) -> None:
    path = key_file(tmp_path, "abc", mode)
    if taken:
        assert key_in(path) == "abc"
    else:
        refuse(lambda: key_in(path), BadInput, f"mode {mode:04o}", f"chmod 600 {path}")


@pytest.mark.skipif(sys.platform != "linux", reason="options are inherited on Linux")
def test_the_kernel_closes_connections_of_peers_that_are_gone() -> None:
    with listening("127.0.0.1", 0, guarded=False) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNREAD_MS
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == PROBE_S


def test_a_form_of_another_site_is_refused_and_a_link_is_followed() -> None:
    rules = AccessRules(None, "localhost")
    headers = {"host": "localhost", "sec-fetch-mode": "navigate", "sec-fetch-site": "cross-site"}
    assert rules.refusal("GET", headers, secret=True) is None
    refused = rules.refusal("POST", headers, secret=True)
    assert refused is not None and refused.status == 403
