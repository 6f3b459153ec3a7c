"""`testbed`: the command line. One thin file per command group: parse, build a config, call."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import gc
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.main import get_command

from testbed import __version__
from testbed.cli.commands import COMMANDS, add_commands
from testbed.cli.output import for_stderr
from testbed.cli.screens import CommandGroup
from testbed.errors import BadInput, TestbedError
from testbed.process import logs
from testbed.process.children import keep_path_safe
from testbed.process.interrupts import UNSTOPPABLE
from testbed.process.streams import open_streams

INTERRUPTED = 130
SIGNALLED = (INTERRUPTED, 128 + signal.SIGTERM, 128 + signal.SIGHUP)
"""Exit codes of a process that SIGINT, SIGTERM or SIGHUP ended."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk."""
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
"""Errors of a file that cannot be used."""
PACKAGE = Path(__file__).parents[1]
TRACEBACK = "TESTBED_TRACEBACK"
"""Environment variable for a traceback of errors that nothing expects."""
LEAST_FILES = 128
"""Files that any command may need: modules, sockets, libraries' own."""
MOST_CHARACTERS = 2000
"""Largest number of characters of an error message: some quote what a file holds."""
PR_SET_PDEATHSIG = 1
ClickError = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
"""Base of what typer raises for a command line it cannot take; typer itself exports only a leaf of it."""


def _version(value: bool) -> None:
    if value:
        print(__version__)
        raise typer.Exit


def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """A wireless device-edge testbed for LLM inference by speculative decoding."""


@functools.cache
def command_line(name: str | None = None) -> Any:
    """`testbed` with the command `name` only, or with all commands: which takes a second or more to import."""
    app = CommandGroup(
        name="testbed",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        help=options.__doc__,
    )
    app.callback()(options)
    add_commands(app, COMMANDS if name is None else [name])
    return get_command(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code: 0 done, 1 the work failed, 2 bad input, 130 interrupted."""
    try:
        arguments = _arguments(argv)
        called = command_line(arguments[0] if arguments and arguments[0] in COMMANDS else None)
        code = called(args=arguments, prog_name="testbed", standalone_mode=False)
        sys.stdout.flush()
    except typer.Exit as exc:
        return exc.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _say("interrupted", INTERRUPTED)
    except BadInput as exc:
        return _say(str(exc), 2)
    except TestbedError as exc:
        return _say(str(exc), 1)
    except BrokenPipeError:
        return 1
    except MemoryError:
        return _say("out of memory", 1)
    except ImportError as exc:  # of an installed package; those that are missing are reported with their extra
        return _say(f"{exc.name or 'a package'} cannot be loaded: {exc}", 1)
    except Exception as exc:
        if isinstance(exc, OSError) and (exc.errno in FULL or (exc.errno in CLOSED and exc.filename)):
            return _unwritten(exc)
        if isinstance(exc, ClickError):
            return _usage(exc)
        if os.environ.get(TRACEBACK):
            raise
        return _unexpected(exc)
    if code == INTERRUPTED:  # typer's answer to Ctrl-C
        return _say("interrupted", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _arguments(argv: Sequence[str] | None) -> list[str]:
    """The arguments of a command line.

    Raises:
        BadInput: one is not UTF-8: configurations and tables, which are, could not hold it.
    """
    found = list(sys.argv[1:] if argv is None else argv)
    for argument in found:
        if argument.encode(errors="replace").decode() != argument:
            raise BadInput(f"{argument!r} is not UTF-8; use another name")
    return found


def _unwritten(error: OSError) -> int:
    """A file that may not be used, or a full disk, in one line."""
    if error.filename is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left for stdout would raise again at exit
    code = 2 if error.errno == errno.ENAMETOOLONG else 1
    return _say(f"cannot use {error.filename or 'the output'}: {error.strerror}", code)


def _unexpected(error: Exception) -> int:
    """An error that nothing above expects, of the testbed itself or of a file that it does not refuse, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = [*frames[-1:], *(one for one in frames if Path(one.filename).is_relative_to(PACKAGE))][-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    return _say(f"unexpected {type(error).__name__} at {place}: {error} ({TRACEBACK}=1 shows the traceback)", 1)


def _usage(error: Any) -> int:
    """The error in the command line, in one line; the help text where no command was given."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())
        return 2
    context = f" (see {error.ctx.command_path} --help)" if getattr(error, "ctx", None) else ""
    return _say(f"{error.format_message()}{context}", 2)


def _say(text: str, code: int) -> int:
    """One line on stderr."""
    line = " ".join(text.split())
    print(for_stderr(f"testbed: {line[:MOST_CHARACTERS]}"), file=sys.stderr)
    return code


def end_with_parent() -> bool:
    """Have Linux send SIGTERM when the parent ends, for a child process of a run (`TESTBED_PARENT`); returns whether
    this is one.
    """
    parent = os.environ.pop("TESTBED_PARENT", None)
    if parent is not None and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if str(os.getppid()) != parent:  # it was quicker
            sys.exit(128 + signal.SIGTERM)
    return parent is not None


def check_files() -> None:
    """Check that enough files may be opened.

    Raises:
        BadInput: fewer than `LEAST_FILES`.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < LEAST_FILES:
        raise BadInput(f"this process may open {files} files only, and needs {LEAST_FILES}: ulimit -n {LEAST_FILES}")


def _terminate(number: int, _: object) -> None:
    """Unwind; a second signal, as `timeout` sends it, does not break this off."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _end(code: Any) -> NoReturn:
    """End the process; after a signal without waiting for threads that cannot be stopped. A further SIGINT ends it at
    once.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if code in SIGNALLED and any(thread.name.startswith(UNSTOPPABLE) for thread in threading.enumerate()):
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    gc.freeze()  # the interpreter's last collection over all modules and models takes seconds on a busy machine
    sys.exit(code)


def run() -> None:
    """Entry point of the console script; SIGTERM and SIGHUP (a closed terminal) unwind, so that child processes and
    files are cleaned up; SIGHUP that is ignored stays so (`nohup`).

    SIGINT interrupts even where a shell started us in the background with it ignored. A child process of a run takes
    it as SIGTERM: Ctrl-C on a terminal reaches the parent as well, which reports it.
    """
    open_streams()
    keep_path_safe()
    is_child = end_with_parent()
    if not sys.stderr.isatty():  # bars are for people, those of libraries too
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # notes on NUMA at every start
    # threads that the library starts at its first text: where they cannot start, it refuses every text from then on
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    signal.signal(signal.SIGINT, _terminate if is_child else signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _terminate)
    try:
        check_files()
        logs.configure()
    except BadInput as exc:
        sys.exit(_say(str(exc), 2))
    try:
        code = main()
    except SystemExit as exc:  # of a signal
        _end(exc.code)
    _end(code)
