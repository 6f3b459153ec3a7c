"""Conversations in virtual time: all methods decode the same prompts, with the target's own answers in the context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Offer
from testbed.channel.spec import ChannelSpec
from testbed.config import RunConfig
from testbed.errors import BadInput
from testbed.experiments.inputs.marks import marker
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.experiments.report.page import write_report
from testbed.experiments.results.directory import read_summary
from testbed.experiments.results.files import read_requests
from testbed.experiments.results.rows import by_category
from testbed.experiments.runs import virtual
from testbed.experiments.runs.execute import decode_all
from testbed.experiments.runs.prepare import Workload, prepare
from testbed.experiments.runs.uerun import result_of, write_run
from testbed.experiments.runs.virtual import Models, run_virtual
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.prompts import Turn
from testbed.ue.run import Outcome
from tests.support.virtual import QUIET

TASKS = Path(__file__).parents[1] / "inputs" / "tasks"
DRAFT = LinearDraft(per_token_s=0.01, base_s=0.002, prefill_per_token_s=0.001)
VERIFY = LinearVerify(base_s=0.03, per_drafted_s=0.004, undrafted_s=0.02)
BARE = Profile(name="bare", about="", source="", draft=DRAFT, verify=VERIFY)
LINK = ChannelSpec(kind="virtual", uplink_mbps=2, downlink_mbps=1, rtt_ms=30)


def config_of(name: str, methods: tuple[str, ...], **more: Any) -> RunConfig:
    fixed = {"window": 4, "max_tokens": 12, "prompt_format": "plain", "warmup": 0}
    return RunConfig(dataset=str(TASKS / name), methods=methods, **{**fixed, **more})  # type: ignore[arg-type]


def decoded(config: RunConfig, positions: int | None = None) -> tuple[Workload, list[Outcome]]:
    work = prepare(config, turns=True)
    assert work.prompter is not None
    size = work.prompter.vocab_size
    engine = SyntheticEngine(vocab_size=size)
    offer = Offer("", work.prompter.fingerprint, size, engine.hidden_size, (), positions or engine.max_positions)
    models = Models(engine, SyntheticDrafter(vocab_size=size, alpha=0.8), offer)
    return work, run_virtual(config, work, QUIET, LINK, BARE, models)


@pytest.mark.parametrize("more", [{}, {"concurrency": 3}, {"temperature": 1.0, "sampling": "coupled"}])
def test_later_turns_of_every_method_have_the_same_context_and_are_lossless(more: dict[str, Any]) -> None:
    config = config_of("mt_bench.jsonl", ("target-only", "greedy", "fh", "sh"), **more)
    work, outcomes = decoded(config)
    assert len(outcomes) == 4 * 4 and all(o.lossless for o in outcomes)
    lengths = {(o.request, o.record.prompt_len) for o in outcomes}
    assert len(lengths) == 4  # one for each prompt
    _, alone = decoded(config_of("mt_bench.jsonl", ("target-only",)))
    answers = {o.request: o.record.token_ids for o in alone}  # greedy, whatever the run samples
    assert work.prompter is not None
    for request in (1, 3):
        first, second = (work.prompts[i].example.question for i in (request - 1, request))
        answer = work.prompter.text(answers[request - 1]).strip()
        context = [Turn("user", first), Turn("assistant", answer), Turn("user", second)]
        assert (request, len(work.prompter.conversation(context))) in lengths


def test_without_target_only_the_contexts_are_decoded_beside_the_run() -> None:
    whole, some = (
        {(o.method, o.request): o.record for o in decoded(config_of("mt_bench.jsonl", methods))[1]}
        for methods in (("target-only", "greedy"), ("greedy",))
    )
    assert {key: record.token_ids for key, record in some.items()} == {
        key: record.token_ids for key, record in whole.items() if key[0] == "greedy"
    }


@pytest.mark.parametrize("methods", [("target-only", "greedy"), ("greedy",)])
def test_a_run_resumed_within_a_conversation_decodes_the_same(
    methods: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of("mt_bench.jsonl", methods)
    _, whole = decoded(config)
    done = [o for o in whole if o.request in (0, 2, 3)][:-1]
    monkeypatch.setattr(virtual, "decode_all", lambda *given: decode_all(*given, done))
    _, resumed = decoded(config)
    kept = [
        {(o.method, o.request): (o.record.prompt_len, o.record.token_ids) for o in some} for some in (whole, resumed)
    ]
    assert kept[0] == kept[1] and len(resumed) == len(whole) and all(o.lossless for o in resumed)


def test_logs_have_their_own_answers_in_the_context() -> None:
    work, outcomes = decoded(config_of("openai.jsonl", ("greedy",)))
    assert work.prompter is not None
    for outcome in outcomes:
        example = work.prompts[outcome.request].example
        ids = work.prompter.conversation([*example.before, Turn("user", example.question)])
        assert outcome.record.prompt_len == len(ids)
    assert all(o.lossless for o in outcomes)


def test_worked_examples_come_before_every_turn() -> None:
    bare = prepare(config_of("mt_bench.jsonl", ("greedy",), limit=2), turns=True)
    work, outcomes = decoded(config_of("mt_bench.jsonl", ("greedy",), shots=1, limit=2))
    assert work.prompter is not None and len(outcomes) == 2
    question, answer = work.prompter.shots[0]
    before = work.prompter.conversation([Turn("user", question), Turn("assistant", answer), Turn("user", "?")])
    longer = {len(p.ids) - len(b.ids) for p, b in zip(work.prompts, bare.prompts, strict=True)}
    assert longer == {len(before) - len(work.prompter.conversation([Turn("user", "?")]))}


def test_system_messages_come_before_worked_examples() -> None:
    work = prepare(config_of("openai.jsonl", ("greedy",), shots=1, limit=1, warmup=1))
    assert work.prompter is not None
    (question, answer), first = work.prompter.shots[0], work.prompts[0]
    turns = [*first.example.before, Turn("user", question), Turn("assistant", answer)]
    assert turns[0] == Turn("system", "Be brief.")
    assert first.ids == work.prompter.conversation([*turns, Turn("user", first.example.question)])


def test_worked_examples_with_messages_before_them_are_refused() -> None:
    with pytest.raises(BadInput, match=r"'And a target\?' cannot be a worked example \(--shots\)"):
        prepare(config_of("openai.jsonl", ("greedy",), shots=1, limit=1, warmup=0), turns=True)


def test_a_conversation_that_outgrows_the_target_is_refused_at_the_start() -> None:
    work = prepare(config_of("mt_bench.jsonl", ("greedy",)), turns=True)
    longest = max(len(p.ids) + 12 * len(p.example.unanswered) for p in work.prompts)
    decoded(config_of("mt_bench.jsonl", ("greedy",)), longest + 12 + 1 + 12)
    with pytest.raises(BadInput, match=f"a prompt of {longest} tokens and 12 output tokens exceed"):
        decoded(config_of("mt_bench.jsonl", ("greedy",)), longest + 12)


def test_a_report_by_category_of_a_run_of_spec_bench(tmp_path: Path) -> None:
    config = config_of("spec_bench.jsonl", ("target-only", "greedy"))
    work, outcomes = decoded(config)
    out = tmp_path / "run"
    out.mkdir()
    write_run(out, config, work, result_of(config, work, outcomes))
    rows = read_summary(out)["rows"]
    sizes = {"math_reasoning": 1, "translation": 1, "qa": 1, "writing": 2}
    for row in rows:
        assert {name: one["requests"] for name, one in row["categories"].items()} == sizes
        assert sum(one["requests"] * one["tokens"] for one in row["categories"].values()) == pytest.approx(
            row["requests"] * row["tokens"]
        )
    parts = by_category(rows)
    assert [(p["category"], p["method"]) for p in parts] == [(c, row["method"]) for c in sizes for row in rows]
    stored = read_requests(out).to_pylist()
    assert {(r["request"], r["id"], r["category"], r["turn"]) for r in stored} == {
        (0, "1", "math_reasoning", 0), (1, "2", "translation", 0), (2, "3", "qa", 0), (3, "4", "writing", 0),
        (4, "4", "writing", 1),
    }  # fmt: skip
    assert {(r["request"], r["parsed"], r["right"]) for r in stored} == {
        (0, False, False), *((i, None, None) for i in range(1, 5)),
    }  # fmt: skip
    page = write_report([out], out).read_text()
    assert "By category" in page and all(f"category {name}" in page for name in sizes)
    lines = (out / "tables" / "1-run-categories.csv").read_text().splitlines()
    assert len(lines) == 1 + len(parts) and "speedup_low" in lines[0]


def test_programs_are_marked_where_they_may_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--run-code"):
        prepare(config_of("human_eval.jsonl", ("greedy",), scorer="code"))
    config = config_of("human_eval.jsonl", ("greedy",), scorer="code", run_code=True)
    work, outcomes = decoded(config)
    result = result_of(config, work, outcomes)
    own = {("greedy", i): str(prompt.example.answer) for i, prompt in enumerate(work.prompts)}
    mark = marker("code", run_code=True)
    for key, found in result.marks.items():
        assert found == mark(work.prompts[key[1]].example, result.texts[key], None)
        assert mark(work.prompts[key[1]].example, own[key], None) == (True, True)
    parsed = [one.parsed for one in result.marks.values() if one is not None]
    assert result.rows[0]["unparsed"] == pytest.approx(1 - sum(parsed) / len(parsed))
