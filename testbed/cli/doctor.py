"""`testbed doctor`."""

from __future__ import annotations

from rich.table import Table

from testbed.cli.options import AsJson
from testbed.cli.output import print_json
from testbed.cli.tables import print_table


def doctor(as_json: AsJson = False) -> None:
    """Check what this machine provides, with a fix for everything that is missing.

    Examples:

        testbed doctor

        testbed doctor --json
    """
    from testbed.experiments.doctor.board_checks import examine_board
    from testbed.experiments.doctor.checks import examine

    findings = [*examine_board(), *examine()]
    if as_json:
        print_json({"findings": [vars(f) for f in findings]})
        return
    table = Table()
    for header in ("", "what", "found", "to get it"):
        table.add_column(header)
    for finding in findings:
        table.add_row("✓" if finding.ok else "✗", finding.name, finding.found, "" if finding.ok else finding.fix)
    print_table(table)
