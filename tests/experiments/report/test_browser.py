"""Reports in a browser: results are in view on a wide screen and on a phone, beside the name of their row."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.experiments.report.page import write_report
from tests.support.browser import page
from tests.support.reports import make_bench, make_field, make_sweep, row, save_run

IN_VIEW = """(names) => {
  const table = [...document.querySelectorAll("table")].find((one) => !one.closest("details:not([open])") &&
    names.every((name) => [...one.tHead.rows].at(-1).textContent.includes(name)));
  if (!table) return "no open table has " + names;
  const cells = [...[...table.tHead.rows].at(-1).cells];
  const wide = table.parentElement.getBoundingClientRect().right;
  return cells.map((cell) => [cell.textContent, cell.getBoundingClientRect()])
    .filter(([text, box]) => box.right <= Math.min(wide, innerWidth) + 0.5 && box.left >= 0).map(([text]) => text);
}"""
RESULTS = ["latency s", "tokens/s", "AAL", "α", "accuracy", "lossless", "up B", "down B"]
BENCH = ["req/s", "TTFT ms", "TPOT ms", "ITL ms", "goodput/s", "tok/s", "latency ms"]
FIELD = ["latency s", "speed-up", "kept of judged", "AAL", "accuracy", "vs. field", "same outputs"]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("reports")
    rows = [row(name, uplink_mbps=20.0, rtt_ms=50.0, speedup=1.5) for name in ("target-only", "greedy", "fh", "sh")]
    return {
        "demo": write_report([save_run(root / "run", rows)], root / "demo"),
        "sweep": write_report([make_sweep(root / "runs")], root / "sweep"),
        "field": write_report([make_field(root / "hall")], root / "field"),
        "bench": write_report([make_bench(root / "load")], root / "bench"),
    }


async def in_view(report: Path, width: int, names: list[str]) -> list[str]:
    """Headers in view of the table that has all of `names`, unfolded or not."""
    async with page(report.as_uri(), viewport={"width": width, "height": 900}) as (shown, wrong):
        await shown.evaluate("""() => document.querySelectorAll("details").forEach((one) => {
            one.open = one.querySelector("summary").textContent.startsWith("All") && !one.closest("details details") &&
                one.querySelector("summary").textContent !== "All columns"; })""")
        found = await shown.evaluate(IN_VIEW, names)
        assert isinstance(found, list), found
        across = await shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert across and not wrong, "the page itself scrolls sideways"
        return list(found)


async def test_all_results_are_in_view_at_1400_pixels(reports: dict[str, Path]) -> None:
    assert set(RESULTS) <= set(await in_view(reports["demo"], 1400, RESULTS))
    assert {"latency s", "speed-up", "tokens/s", "AAL", "accuracy"} <= set(
        await in_view(reports["sweep"], 1400, ["latency s", "speed-up"])
    )
    assert set(FIELD) <= set(await in_view(reports["field"], 1400, FIELD))
    assert set(BENCH) <= set(await in_view(reports["bench"], 1400, BENCH))


async def test_the_first_results_are_in_view_at_420_pixels(reports: dict[str, Path]) -> None:
    for name, wanted in (("demo", RESULTS), ("sweep", ["latency s", "speed-up"]), ("field", FIELD)):
        found = await in_view(reports[name], 420, wanted)
        assert "latency s" in found, (name, found)
        assert len(found) >= 3, (name, found)


async def test_the_name_of_a_row_stays_while_its_results_are_scrolled(reports: dict[str, Path]) -> None:
    async with page(reports["demo"].as_uri(), viewport={"width": 420, "height": 900}) as (shown, _):
        box = await shown.evaluate("""() => {
            const region = document.querySelector("div.wide"); region.scrollLeft = 1e4;
            const cell = region.querySelector("tbody td");
            return [cell.getBoundingClientRect().left, region.getBoundingClientRect().left, region.scrollLeft];
        }""")
        assert abs(box[0] - box[1]) < 1 and box[2] > 0
