"""Radio files: round trip, bundled ones in a cell, damaged ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.assets.bundled_files import find, names
from testbed.channel.radio.config import RadioConfig
from testbed.channel.radio.files import FileSource, RadioFile, noise_dbm, read_radio_file, snr_db
from testbed.channel.radio.model import RadioUe, Spectrum
from testbed.errors import BadInput
from testbed.experiments.links.tr38901 import SCENARIOS
from tests.support.refusals import refuse

UP = np.array([[1.0, 2.0, 3.0], [-4.0, 5.5, 6.0]], np.float16)


def test_a_file_comes_back_and_gives_each_ue_its_row(tmp_path: Path) -> None:
    RadioFile(UP, UP + 10, 0.5, "made up").save(tmp_path / "a.npz")
    found = read_radio_file(tmp_path / "a.npz")
    assert (found.uplink_db == UP).all() and (found.step_s, found.about) == (0.5, "made up")
    air = FileSource(file=str(tmp_path / "a.npz"), offset_db=-1.0).air([RadioUe(0)] * 3, Spectrum(1e6, 1e-3, True))
    assert [air.sinr_db(ue, True, 0.6) for ue in range(3)] == [1.0, 4.5, 1.0]
    assert air.sinr_db(0, False, 1.5 + 1.2) == 12.0  # repeated


def test_the_power_of_a_file_is_spread_over_the_bandwidth_of_the_cell(tmp_path: Path) -> None:
    RadioFile(UP, UP + 10, 0.5, "made up", 20e6).save(tmp_path / "a.npz")
    for bandwidth_hz, spread_db in ((20e6, 0.0), (5e6, 6.0206), (100e6, -6.9897)):
        air = FileSource(file=str(tmp_path / "a.npz")).air([RadioUe(0)], Spectrum(bandwidth_hz, 1e-3, True))
        assert air.sinr_db(0, True, 0.6) == pytest.approx(2.0 + spread_db, abs=1e-4)
        assert air.sinr_db(0, False, 0.6) == pytest.approx(12.0 + spread_db, abs=1e-4)


def test_bundled_files_say_how_they_were_made_and_serve_a_cell() -> None:
    assert names("radio files") == sorted(SCENARIOS)
    for name in names("radio files"):
        found = read_radio_file(find("radio files", name))
        assert name in found.about and "TR 38.901" in found.about and "seed 0" in found.about
        assert found.uplink_db.shape == (8, 2000) and found.step_s == 0.005
        assert f"bandwidth_hz {found.bandwidth_hz}" in found.about
        assert float(np.mean(found.downlink_db)) > float(np.mean(found.uplink_db)) + 10
        RadioConfig(source=FileSource(file=name)).air([RadioUe(0)] * 9)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"no zip at all"])
def test_damaged_files_are_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(content)
    refuse(lambda: read_radio_file(tmp_path / "bad.npz"), BadInput, "is no radio file")
    refuse(lambda: read_radio_file(tmp_path / "none.npz"), BadInput, "is no radio file")


def test_files_with_wrong_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", uplink_db=UP)
    refuse(lambda: read_radio_file(tmp_path / "a.npz"), BadInput, "is no radio file")
    for wrong, said in (
        (UP.astype(np.complex64), "need numbers"),
        (UP[:1], "need numbers"),
        (np.full(UP.shape, 1e300), "too large"),
        (np.full(UP.shape, np.nan), "no numbers"),
    ):
        np.savez(tmp_path / "b.npz", uplink_db=UP, downlink_db=wrong, step_s=1.0, about="")
        refuse(lambda: read_radio_file(tmp_path / "b.npz"), BadInput, said)
    refuse(lambda: RadioFile(UP, UP[:1], 1.0, ""), BadInput, "differ in shape")
    refuse(lambda: RadioFile(UP[0], UP[0], 1.0, ""), BadInput, "[UEs, steps]")
    refuse(lambda: RadioFile(UP * np.nan, UP, 1.0, ""), BadInput, "finite")
    refuse(lambda: RadioFile(UP, UP, 0.0, ""), BadInput, "1e-5..3600 s")
    refuse(lambda: RadioFile(UP, UP, 1.0, "", 0.0), BadInput, "1..1e12 Hz")
    refuse(lambda: FileSource(file="nowhere").air([], Spectrum(1e6, 1e-3, True)), BadInput, "no radio file 'nowhere'")


@given(st.lists(st.floats(1e-12, 1e-3), min_size=1, max_size=8))
def test_an_snr_carries_as_much_as_its_subcarriers(gains: list[float]) -> None:
    found = 10 ** (float(snr_db(np.array(gains), 23.0, noise_dbm(20e6, 5.0))) / 10)
    noise_w = 10 ** (noise_dbm(20e6, 5.0) / 10 - 3)
    rates = np.log2(1 + np.array(gains) * 10 ** (23.0 / 10 - 3) / noise_w)
    assert np.log2(1 + found) == pytest.approx(rates.mean(), rel=0.01)
