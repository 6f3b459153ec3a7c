"""Where web servers may listen, and keys in files."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from testbed.errors import BadInput
from testbed.listening import key_in, listening, url_of


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


def test_a_key_is_the_line_of_its_file(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(" abc-1 \n")
    assert (key_in(str(key)), key_in(None)) == ("abc-1", None)
