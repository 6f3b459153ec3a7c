"""The path of a controller's socket."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from testbed.bs.control import place
from testbed.bs.control.station import controlled
from testbed.config import ServeConfig
from testbed.errors import BadInput


def at(path: Path | str) -> ServeConfig:
    """A base station with a controller at a path."""
    return ServeConfig(engine="synthetic", controller=str(path))


def refused(path: Path | str) -> str:
    """Why a path is refused."""
    with pytest.raises(BadInput) as caught, controlled(at(path)):
        pass
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_only_its_user_opens_the_socket_and_it_is_removed(tmp_path: Path) -> None:
    with controlled(at(tmp_path / "c")):
        mode = (tmp_path / "c").stat().st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
    assert not (tmp_path / "c").exists()


def test_a_socket_that_a_killed_base_station_left_is_replaced(tmp_path: Path) -> None:
    """It kept the base station down: the address was already in use."""
    kills = (
        "import os, signal, sys; from testbed.bs.control.station import controlled\n"
        "from testbed.config import ServeConfig\n"
        "with controlled(ServeConfig(controller=sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", kills, tmp_path / "c"], check=False)
    assert killed.returncode == -signal.SIGKILL and (tmp_path / "c").is_socket()
    with controlled(at(tmp_path / "c")), socket.socket(socket.AF_UNIX) as one:
        one.connect(str(tmp_path / "c"))
    assert not (tmp_path / "c").exists()


def test_a_socket_at_which_another_process_listens_stays(tmp_path: Path) -> None:
    with controlled(at(tmp_path / "c")):
        assert "another process listens there" in refused(tmp_path / "c")
        assert (tmp_path / "c").is_socket()


def test_a_socket_whose_queue_is_full_stays(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(tmp_path / "c"))
        busy.listen(0)
        waiting.connect(str(tmp_path / "c"))
        assert "another process listens there" in refused(tmp_path / "c")
        assert (tmp_path / "c").is_socket()


def test_the_socket_of_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "c"))
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    assert "the socket there belongs to another user" in refused(tmp_path / "c")
    assert (tmp_path / "c").is_socket()


def test_files_folders_and_links_stay(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "link").symlink_to("nowhere")
    for name, kind in (("file", "a file"), ("link", "a link"), (".", "a folder")):
        assert refused(tmp_path / name) == f"no controller can be awaited at {tmp_path / name}: it is {kind}"
    assert (tmp_path / "file").read_text() == "kept" and (tmp_path / "link").is_symlink()


@pytest.mark.parametrize(
    ("path", "why"),
    [("", "--controller is empty"), ("/tmp/" + "x" * 103, "has at most 107 bytes, not 108"),
     ("/tmp/" + "é" * 60, "has at most 107 bytes, not 125"), ("/nowhere/c", "No such file or directory"),
     ("\0abstract", "no null bytes")],
)  # fmt: skip
def test_paths_at_which_no_socket_can_be_are_refused(path: str, why: str) -> None:
    assert why in refused(path)


def test_what_took_the_place_of_the_socket_stays(tmp_path: Path) -> None:
    """The end of the base station removed whatever was there."""
    with controlled(at(tmp_path / "c")):
        (tmp_path / "c").unlink()
        (tmp_path / "c").write_text("kept")
    assert (tmp_path / "c").read_text() == "kept"


def test_the_end_does_not_need_the_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with controlled(at(tmp_path / "run" / "c")):
        (tmp_path / "run" / "c").unlink()
        (tmp_path / "run").rmdir()


def test_two_that_start_at_once_leave_each_other_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between binding and listening, the first one's socket was taken for one that a killed base station had left."""
    path, bind, bound, done = tmp_path / "c", place._bind, threading.Event(), threading.Event()
    umask = os.umask(0o022)
    os.umask(umask)

    def slow(listening: socket.socket, at: Path) -> None:
        bind(listening, at)
        bound.set()
        time.sleep(0.3)

    def first() -> None:
        with place.listening_at(str(path)):
            done.wait(30)

    with monkeypatch.context() as patch:
        patch.setattr(place, "_bind", slow)
        thread = threading.Thread(target=first)
        thread.start()
        assert bound.wait(30)
    assert "another process listens there" in refused(path)
    done.set()
    thread.join()
    assert not path.exists()
    assert os.umask(umask) == umask, "the mode of its files"


def test_a_lock_that_is_not_released_delays_the_start_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "LOCK_S", 0.1)
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with controlled(at(tmp_path / "c")):
        assert (tmp_path / "c").exists()
    os.close(held)
