"""The procedure of a field run without a network: operator prompts, order of runs, and resuming."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from testbed.config import RunConfig
from testbed.errors import BadInput, LinkError, LinkTimeout, TestbedError
from testbed.experiments.field.devices.base import Probe, Reach
from testbed.experiments.field.log import LOG, FieldLog, open_log, read_field, read_log
from testbed.experiments.field.operator import SKIP, STOP, OperatorAnswer, Terminal, Unattended
from testbed.experiments.field.order import cells_of, steps_together
from testbed.experiments.field.plan import FieldPlan, Method, Place
from testbed.experiments.field.report import report_field
from testbed.experiments.field.run import FieldSetup, progress_of, visit_all
from testbed.experiments.inputs.datasets import load_dataset
from tests.support.refusals import refuse

PLAN = FieldPlan(
    places=(Place(name="near", distance_m=2.0), Place(name="far", distance_m=20.0)),
    methods=(Method(name="a", protocol="greedy"), Method(name="b", protocol="fh")),
    repeats=2,
    prompts=2,
)


class Stand:
    """Fake stage, operator and UE that writes run directories and records the calls."""

    def __init__(self, answers: Mapping[str, str] | None = None, rtt_ms: float = 10.0, breaks_at: int = -1) -> None:
        self.answers, self.rtt_ms, self.breaks_at = dict(answers or {}), rtt_ms, breaks_at
        self.asked: list[str] = []
        self.ran: list[str] = []
        self.starts: list[float] = []

    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[Reach]:
        yield Reach("tcp://127.0.0.1:5", None)

    def arrive(self, place: Place, runs: int, before: Mapping[str, Any] | None) -> OperatorAnswer:
        self.asked.append(f"{place.name} {runs}{' again' if before else ''}")
        return OperatorAnswer(self.answers.get(place.name, ""), "windy")

    def accept(self, place: Place, reasons: Sequence[str]) -> OperatorAnswer:
        self.asked.append(f"accept {place.name}")
        return OperatorAnswer(self.answers.get("accept", ""))

    def leave(self, place: Place) -> OperatorAnswer:
        return OperatorAnswer("", f"left {place.name}")

    def measure(self, reach: Reach, probe: Probe, folder: Path) -> dict[str, Any]:
        return {"rtt_ms": {"value": self.rtt_ms}, "csi": {"rtt_ms": self.rtt_ms}, "wifi": None}

    def expect(self, runs: Sequence[tuple[RunConfig, Path]]) -> None:
        self.asked.append(f"expect {len(runs)}")

    offset_s = 0.25

    def begin(self, config: RunConfig, folder: Path, out: Path, start_s: float) -> None:
        self.starts.append(start_s)

    def run(self, config: RunConfig, folder: Path, out: Path) -> None:
        if len(self.ran) == self.breaks_at:
            raise LinkTimeout("the BS fell silent")
        out.mkdir(parents=True)
        (out / "summary.json").write_text("{}")
        self.ran.append(f"{out.parent.name}/{out.name}")

    def close(self) -> None:
        self.asked.append("closed")


def visit(out: Path, stand: Stand, plan: FieldPlan = PLAN, operator: Any = None) -> bool:
    with open_log(out, plan, False) as log:
        return visit_all(log, FieldSetup(stand, operator or stand, lambda _: contextlib.closing(stand), lambda _: None))


def test_all_cells_run_once_in_the_plans_order(tmp_path: Path) -> None:
    stand = Stand()
    assert visit(tmp_path / "run", stand)
    assert stand.ran == [cell.key for place in PLAN.places for cell in cells_of(PLAN, place.name)]
    assert stand.asked == ["near 4", "expect 4", "closed", "far 4", "expect 4", "closed"]
    again = Stand()
    assert visit(tmp_path / "run", again)
    assert again.ran == again.asked == []
    _, log, emulated = read_field(tmp_path / "run")
    assert not emulated
    assert [e["event"] for e in log.events] == ["run", *["visit", *["cell"] * 4, "note"] * 2]
    assert log.last_visit("near")["note"] == "windy"  # type: ignore[index]
    assert log.events[6]["note"] == "left near"


def test_a_run_that_breaks_off_goes_on_with_what_is_left(tmp_path: Path) -> None:
    stand = Stand(breaks_at=5)
    with pytest.raises(LinkTimeout):
        visit(tmp_path / "run", stand)
    assert len(stand.ran) == 5
    second = Stand()
    assert visit(tmp_path / "run", second)
    assert second.asked[0] == "far 3 again"
    assert stand.ran + second.ran == [cell.key for place in PLAN.places for cell in cells_of(PLAN, place.name)]


def test_a_run_without_a_line_in_the_log_is_made_again(tmp_path: Path) -> None:
    """The disk was full when its line was written: it counted as done, and replays of it began elsewhere."""
    out = tmp_path / "run"
    assert visit(out, Stand())
    cell = cells_of(PLAN, "far")[1].key
    lines = (out / LOG).read_text().splitlines(keepends=True)
    (out / LOG).write_text("".join(line for line in lines if f'"cell": "{cell}"' not in line))
    assert [one.key for one in read_field(out)[1].left("far")] == [cell]
    again = Stand()
    assert visit(out, again) and again.ran == [cell]
    assert not read_field(out)[1].left("far")


def test_agents_that_fall_silent_hold_up_no_other_place(tmp_path: Path) -> None:
    places = tuple(Place(name=f"at-{i}", distance_m=1.0 + i, ue=f"tcp://127.0.0.1:{5 + i % 2}") for i in range(4))
    plan = msgspec.structs.replace(PLAN, places=places)
    stand, said, asked = Stand(), list[str](), list[str]()

    def device_of(place: Place) -> contextlib.AbstractContextManager[Any]:
        asked.append(place.name)
        if place.ue == "tcp://127.0.0.1:5":
            raise LinkTimeout("no answer")
        return contextlib.closing(stand)

    with open_log(tmp_path / "run", plan, False) as log:
        refuse(lambda: visit_all(log, FieldSetup(stand, stand, device_of, said.append)), LinkError,
               "tcp://127.0.0.1:5 did not answer", "run the same command again")  # fmt: skip
        assert [p["done"] for p in progress_of(log)["places"]] == [0, 4, 0, 4]
    assert asked == ["at-0", "at-1", "at-3"]  # who was silent once is not waited for again
    assert any("at-0: no answer" in line for line in said)
    local = Stand(breaks_at=0)
    with pytest.raises(LinkTimeout):  # where this machine is the UE, it is the base station that is gone
        visit(tmp_path / "local", local)
    assert local.asked.count("closed") == 1


def test_all_places_run_at_the_same_time_after_each_alone(tmp_path: Path) -> None:
    plan = msgspec.structs.replace(PLAN, together=True)
    stand = Stand()
    assert visit(tmp_path / "run", stand, plan)
    steps = steps_together(plan)
    assert [cell.method for step in steps for cell in step] == ["a", "a", "b", "b", "b", "b", "a", "a"]
    assert all([cell.place for cell in step] == ["near", "far"] for step in steps)
    assert stand.ran[8:] == [cell.key for step in steps for cell in step]
    starts = stand.starts
    assert starts[::2] == starts[1::2] and len(set(starts)) == 4
    _, log, _ = read_field(tmp_path / "run")
    assert [log.times_of(cell)["offset_s"] for cell in steps[0]] == [0.25] * 2  # type: ignore[index]
    assert progress_of(log)["left"] == 0 and progress_of(log)["together"] == 4
    again = Stand()
    assert visit(tmp_path / "run", again, plan) and again.ran == []


def test_a_step_of_all_places_that_broke_off_begins_anew(tmp_path: Path) -> None:
    plan = msgspec.structs.replace(PLAN, together=True)
    with pytest.raises(LinkTimeout):
        visit(tmp_path / "run", Stand(breaks_at=11), plan)
    with open_log(tmp_path / "run", plan, False) as log:
        assert progress_of(log)["left"] == 6 and len(log.left_together()) == 3
    second = Stand()
    assert visit(tmp_path / "run", second, plan)
    assert len(second.ran) == 6


def test_a_place_can_be_skipped_and_a_day_stopped(tmp_path: Path) -> None:
    stand = Stand({"near": SKIP})
    assert not visit(tmp_path / "run", stand)
    assert all(key.startswith("far/") for key in stand.ran) and len(stand.ran) == 4
    stopped = Stand({"near": STOP})
    assert not visit(tmp_path / "run", stopped)
    assert stopped.ran == [] and stopped.asked == ["near 4"]
    with open_log(tmp_path / "run", PLAN, False) as log:
        assert [p["done"] for p in progress_of(log)["places"]] == [0, 4]


def test_a_link_that_is_another_ones_is_asked_about_or_refused(tmp_path: Path) -> None:
    with pytest.raises(LinkTimeout):
        visit(tmp_path / "run", Stand(breaks_at=1))
    moved = Stand({"accept": SKIP}, rtt_ms=200.0)
    assert not visit(tmp_path / "run", moved)
    assert "accept near" in moved.asked
    assert all(key.startswith("far/") for key in moved.ran)
    refuse(
        lambda: visit(tmp_path / "run", Stand(rtt_ms=300.0), operator=Unattended(trusting=False)), BadInput,
        "does not look like near", "RTT 300.0 ms, before 10.0 ms",
    )  # fmt: skip
    sure = Stand(rtt_ms=200.0)
    assert visit(tmp_path / "run", sure)
    with open_log(tmp_path / "run", PLAN, False) as log:
        assert log.last_visit("near")["differs"] == ["RTT 200.0 ms, before 10.0 ms"]  # type: ignore[index]


def test_the_directory_is_one_runs_and_one_processs_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with open_log(out, PLAN, False):
        refuse(lambda: visit(out, Stand()), BadInput, "another process is running the field run")
    other = msgspec.structs.replace(PLAN, places=(Place(name="near", distance_m=3.0), PLAN.places[1]))
    refuse(lambda: visit(out, Stand(), other), BadInput, "near was at 2 m before, not at 3 m")
    with pytest.raises(BadInput, match="was in the field"), open_log(out, PLAN, True):
        pass
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    refuse(lambda: visit(tmp_path / "full", Stand()), BadInput, "is not empty and holds no field run")
    refuse(lambda: read_field(tmp_path / "full"), BadInput, "is not a field run")


def test_a_log_that_was_cut_off_is_mended(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with open_log(out, PLAN, False) as log:
        log.add("visit", place="near", distance_m=2.0, measured={"csi": {"rtt_ms": 1.0}}, note="", differs=[])
    whole = (out / LOG).read_bytes()
    (out / LOG).write_bytes(whole + b'{"event": "vis')
    assert len(read_field(out)[1].events) == 2
    with open_log(out, PLAN, False) as log:
        log.add("note", place="near", note="later")
    assert [json.loads(line)["event"] for line in (out / LOG).read_text().splitlines()] == ["run", "visit", "note"]
    (out / LOG).write_bytes(b'{"event": "note", "time": "", "place": "near", "note": "\xff"}\n\xff\n')
    refuse(lambda: read_field(out), BadInput, "line 2 is invalid")
    (out / LOG).write_text("rubbish\n")
    refuse(lambda: read_field(out), BadInput, "line 1 is invalid")


@pytest.mark.parametrize(
    "line",
    [
        {"event": "cell"},
        {"event": "cell", "cell": "near/0-greedy", "origin_s": "now"},
        {"event": "cell", "cell": "near/0-greedy", "origin_s": 0, "offset_s": [1]},
        {"event": "visit"},
        {"event": "visit", "time": "", "place": "near", "measured": 5},
        {"event": "visit", "time": "", "place": "near", "measured": {"csi": {}, "clock": {}}},
        {"event": "note", "place": "near"},
        {"event": ["cell"]},
        ["cell"],
    ],
)
def test_a_line_that_lacks_something_is_refused(line: Any, tmp_path: Path) -> None:
    """Reports ended with a traceback."""
    (tmp_path / LOG).write_text(json.dumps(line) + "\n")
    refuse(lambda: read_log(tmp_path), BadInput, "line 1 is invalid")


def test_a_log_takes_nothing_that_could_not_be_read(tmp_path: Path) -> None:
    with open_log(tmp_path / "run", PLAN, False) as log:
        before = (log.out / LOG).read_bytes()
        refuse(lambda: log.add("visit", place="near", measured={"csi": {}, "clock": 5}), TestbedError, "cannot take")
        assert (log.out / LOG).read_bytes() == before


def test_lines_of_later_versions_are_left_out(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text('{"event": "other"}\n{"event": "run", "id": "1", "more": 1}\n')
    assert read_log(tmp_path) == [{"event": "run", "id": "1", "more": 1}]


def test_a_log_that_is_a_link_is_not_mended(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a secret without a newline")
    with open_log(tmp_path / "run", PLAN, False):
        (tmp_path / "run" / LOG).unlink()
    (tmp_path / "run" / LOG).symlink_to(tmp_path / "token")

    def again() -> None:
        with open_log(tmp_path / "run", PLAN, False):
            pass

    refuse(again, BadInput, "log.jsonl is a link")
    log = FieldLog(tmp_path / "run", PLAN)
    refuse(lambda: report_field(log, False, print, lambda *_: None), BadInput, "log.jsonl is a link")
    assert (tmp_path / "token").read_text() == "a secret without a newline"


def test_each_repeat_has_its_prompts_beside_the_results(tmp_path: Path) -> None:
    with open_log(tmp_path / "run", PLAN, False) as log:
        paths = [log.prompts(repeat) for repeat in (0, 1)]
        texts = [path.read_text() for path in paths]
        assert all(len(text.splitlines()) == 2 + PLAN.warmup for text in texts)
        assert texts[0].splitlines()[:2] != texts[1].splitlines()[:2]
        assert FieldLog(tmp_path / "run", PLAN).prompts(0) == paths[0]


def test_devices_decode_the_messages_before_a_prompt_as_replays_do(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"What is {i}?"}]}
        for i in range(9)
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    plan = msgspec.structs.replace(PLAN, dataset=str(tmp_path / "chats.jsonl"))
    with open_log(tmp_path / "run", plan, False) as log:
        written = load_dataset(str(log.prompts(1)))
    examples = load_dataset(plan.dataset)[plan.prompts : 2 * plan.prompts]
    assert [(e.before, e.question) for e in written[: plan.prompts]] == [(e.before, e.question) for e in examples]
    assert examples[0].before[0].content == "Be brief."


def test_an_operator_answers_in_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\nrain on the window\ns\nq\nhm\ny\n"))
    terminal, place = Terminal(), Place(name="near", distance_m=2.0, about="by the door")
    assert terminal.arrive(place, 4, None) == OperatorAnswer("")
    assert terminal.arrive(place, 4, {"time": "noon"}) == OperatorAnswer("", "rain on the window")
    assert terminal.arrive(place, 4, None) == OperatorAnswer(SKIP)
    assert terminal.arrive(place, 4, None) == OperatorAnswer(STOP)
    assert terminal.accept(place, ["RTT"]) == OperatorAnswer("")  # "hm" is no answer
    assert terminal.leave(place) == OperatorAnswer(STOP)  # the end of stdin
    said = capsys.readouterr()
    assert "by the door" in said.err and "last visited noon" in said.err and said.out == ""


@pytest.mark.parametrize("errors", ["surrogateescape", "strict"])
def test_a_note_that_is_no_text_leaves_a_log_that_can_be_read(
    errors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"dry\nwet\xff\n"), "utf-8", errors=errors))
    terminal = Terminal()
    assert terminal.leave(PLAN.places[0]).note == "dry"
    note = terminal.leave(PLAN.places[0]).note
    assert note == "wet\ufffd"
    with open_log(tmp_path / "run", PLAN, False) as log:
        log.add("note", place="near", note=note)
    assert read_field(tmp_path / "run")[1].events[-1]["note"] == note
