"""One meaning of bytes a column."""

from __future__ import annotations

from testbed.cli.output import COLUMNS
from testbed.experiments.results.traffic import PAYLOAD, SOCKET, by_meaning


def test_bytes_of_a_profile_have_columns_of_their_own() -> None:
    row = {"uplink_bytes": 42, "downlink_bytes": 3}
    assert by_meaning({**row, "bytes_counted": SOCKET})["uplink_bytes"] == 42
    payload = by_meaning({**row, "bytes_counted": PAYLOAD})
    assert (payload["uplink_payload_bytes"], payload["uplink_bytes"], payload["downlink_bytes"]) == (42, None, None)
    assert COLUMNS["uplink_bytes"][0] != COLUMNS["uplink_payload_bytes"][0]
