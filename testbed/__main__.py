"""`python -m testbed`, and the console script."""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while modules are loaded; `run` sets its own handler

from testbed.cli.main import run  # noqa: E402

if __name__ == "__main__":
    run()
