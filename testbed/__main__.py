"""`python -m testbed`."""

from testbed.cli.main import run

run()
