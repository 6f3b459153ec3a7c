"""`testbed keys`, and `bs serve` and `ue run` behind keys."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from testbed.channel.access import RELOAD_S
from testbed.cli.main import main
from testbed.clock import WallClock
from testbed.config import ServeConfig
from testbed.errors import LinkError
from testbed.experiments.runs.processes import base_station
from testbed.ue.dial import dial
from tests.support.stations import VOCAB


def call(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert main(["keys", *arguments]) == code
    said = capsys.readouterr()
    if code:
        assert len(said.err.strip().splitlines()) == 1 and not said.out
        return said.err
    return json.loads(said.out) if "--json" in arguments else said.out + said.err


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    assert main(["keys", "new", str(tmp_path / "keys")]) == 0
    return tmp_path / "keys"


def test_keys_from_making_to_revoking(keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    made = call(capsys, "new", str(keys), "--ue", "orin-1", "--json")
    other = call(capsys, "new", str(keys), "--ue", "pi", "--out", str(tmp_path / "pi"), "--json")
    assert (made["directory"], other["directory"]) == (str(keys / "ues" / "orin-1"), str(tmp_path / "pi"))
    listed = call(capsys, "list", str(keys), "--json")
    assert [(ue["name"], ue["revoked"]) for ue in listed["ues"]] == [("orin-1", False), ("pi", False)]
    assert {ue["public_key"] for ue in listed["ues"]} == {made["public_key"], other["public_key"]}
    assert call(capsys, "revoke", str(keys), "pi", "--json")["revoked"] is True
    shown = call(capsys, "list", str(keys))
    assert other["public_key"] in shown and "revoked" in shown and listed["server"] in shown


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["new", "{keys}"], "exists already"),
        (["new", "{keys}", "--out", "x"], "--ue NAME"),
        (["new", "{keys}/none", "--ue", "a"], "testbed keys new"),
        (["new", "{keys}", "--ue", "a/b"], "bad name"),
        (["list", "{keys}/none"], "testbed keys new"),
        (["revoke", "{keys}", "nobody"], "known: none"),
    ],
)
def test_what_cannot_be_is_one_line(
    keys: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    capsys.readouterr()
    assert word in call(capsys, *(a.format(keys=keys) for a in arguments), code=2)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["bs", "serve", "--engine", "synthetic", "--bind", "tcp://0.0.0.0:*"], "--insecure"),
        (["bs", "serve", "--engine", "synthetic", "--keys", "/no/such"], "testbed keys new"),
        (["bs", "serve", "--engine", "synthetic", "--keys", "{keys}", "--insecure"], "not both"),
        (["bs", "serve", "--engine", "synthetic", "--max-pending", "0"], "max-pending"),
        (["ue", "run", "--bs", "tcp://192.0.2.7:5555"], "--insecure"),
        (["ue", "run", "--bs", "tcp://127.0.0.1:1", "--local-bs", "tcp://192.0.2.7:5555"], "--insecure"),
        (["ue", "run", "--keys", "{keys}"], "client.key_secret"),
        (["ue", "run", "--bs", "tcp://127.0.0.1:1", "--bs", "tcp://127.0.0.1:1"], "each base station once"),
        (["ue", "run", "--failover-s", "1"], "failover-s"),
        (["ue", "run", "--resume"], "--out DIR"),
        (["ue", "run", "--bs", "tcp://127.0.0.1:1", "--out", "{keys}"], "is not empty; choose another --out"),
        (["ue", "serve", "--bs", "tcp://192.0.2.7:5555"], "--insecure"),
    ],
)
def test_links_that_are_open_to_others_are_refused(
    keys: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    capsys.readouterr()
    assert main([a.format(keys=keys) for a in arguments]) == 2
    said = capsys.readouterr().err
    assert word in said and len(said.strip().splitlines()) == 1


async def greeted(address: str, keys: Path | None) -> bool:
    connection = dial(address, str(keys) if keys else None, WallClock(), 1.5)
    try:
        await connection.connect("", VOCAB)
    except LinkError:
        return False
    finally:
        await connection.close()
    return True


def test_a_base_station_process_lets_in_who_is_on_its_list(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", str(keys), "--ue", "pi"]) == 0
    carried = keys / "ues" / "pi"
    with base_station(ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*", keys=str(keys))) as ready:
        bs = ready["bind"]
        assert asyncio.run(greeted(bs, carried))
        assert not asyncio.run(greeted(bs, None))
        assert main(["keys", "revoke", str(keys), "pi"]) == 0
        asyncio.run(asyncio.sleep(RELOAD_S))
        assert not asyncio.run(greeted(bs, carried))
        assert main(["keys", "new", str(keys), "--ue", "late"]) == 0
        assert asyncio.run(greeted(bs, keys / "ues" / "late"))
