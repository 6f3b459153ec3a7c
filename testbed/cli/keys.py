"""`testbed keys`: which UEs a base station lets in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from testbed.channel import keys
from testbed.cli.options import AsJson
from testbed.cli.output import note, print_json
from testbed.cli.screens import CommandGroup
from testbed.cli.tables import TableCommand, print_table
from testbed.errors import BadInput

app = CommandGroup(no_args_is_help=True, help="Keys of the UEs that a base station accepts.")
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the base station's keys.")]


@app.callback()
def group() -> None:
    """Keys of the UEs that a base station accepts."""


@app.command()
def new(
    directory: Directory,
    ue: Annotated[str | None, typer.Option(metavar="NAME", help="Make a key for this UE and accept it.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of that UE's files; default: DIR/ues/NAME.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make the keys of a base station, or of a UE that it accepts.

    The directory of a UE holds a secret: copy it there over a trusted channel, and remove it here.

    Examples:

        testbed keys new keys

        testbed keys new keys --ue orin-1

        testbed bs serve --keys keys --bind tcp://0.0.0.0:5555

        testbed ue run --keys orin-1 --bs tcp://192.0.2.7:5555
    """
    if ue is None:
        if out is not None:
            raise BadInput("--out goes with --ue NAME")
        public = keys.new_server(directory)
        document, told = {"directory": str(directory), "public_key": public}, "made; bs serve --keys"
    else:
        carried = keys.new_client(directory, ue, out)
        public = keys.load_client(carried).public.decode()
        document = {"ue": ue, "directory": str(carried), "public_key": public}
        told = f"{ue} may come in; carry this directory to it, for ue run --keys:"
    if as_json:
        print_json(document)
    else:
        note(f"{told} {document['directory']}")


@app.command("list", cls=TableCommand)
def list_(directory: Directory, as_json: AsJson = False) -> None:
    """List accepted and revoked UEs.

    Examples:

        testbed keys list keys
    """
    server = keys.load_server(directory).public.decode()
    found = keys.entries(directory)
    if as_json:
        print_json({"server": server, "ues": [entry._asdict() for entry in found]})
        return
    table = Table(title=Text(f"base station {server}"), title_justify="left")
    for header in ("UE", "public key", "let in"):
        table.add_column(header, no_wrap=True)
    for entry in found:
        table.add_row(Text(entry.name), Text(entry.public_key), "revoked" if entry.revoked else "yes")
    print_table(table)


@app.command()
def revoke(
    directory: Directory,
    ue: Annotated[str, typer.Argument(metavar="NAME", help="UE to revoke.")],
    as_json: AsJson = False,
) -> None:
    """Revoke the key of a UE; a running base station follows within a second.

    Examples:

        testbed keys revoke keys orin-1
    """
    entry = keys.revoke(directory, ue)
    if as_json:
        print_json(entry._asdict())
    else:
        note(f"{ue} is no longer let in")
