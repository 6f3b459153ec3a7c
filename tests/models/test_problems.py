"""Word problems: correct, solvable from their text, disjoint between splits, reproducible."""

from __future__ import annotations

import hashlib
import itertools
import random
import re

import pytest

from testbed.errors import BadInput
from testbed.models import problems, stories
from testbed.models.problems import HABIT_SHIFT, WordProblem, favourite, generate, split_of
from testbed.models.scoring import final_number
from tests.support.solver import EVENTS, MEANING, NOISE, solve

SPLITS = ("train", "calibration", "test")
MANY = 5000


def take(split: str, count: int, narrator: str = "target", seed: int = 5) -> list[WordProblem]:
    return list(itertools.islice(generate(split, seed, narrator), count))


@pytest.fixture(scope="module")
def samples() -> dict[tuple[str, str], list[WordProblem]]:
    return {(split, who): take(split, 300, who) for split in SPLITS for who in ("target", "drafter")}


# ---------------------------------------------------------------- answers


def test_the_solver_knows_every_template_and_nothing_else() -> None:
    assert set(MEANING) == set(EVENTS) == {template.key for template in stories.TEMPLATES}
    told = {t.key: t.text.format(n=12, name="Ada", other="Ben", items="eggs") for t in stories.TEMPLATES}
    for key, sentence in told.items():
        assert [k for k, pattern in EVENTS.items() if pattern.fullmatch(sentence)] == [key]
        assert not any(pattern.fullmatch(sentence) for pattern in NOISE)


@pytest.mark.parametrize("split", SPLITS)
def test_every_answer_follows_from_the_question_alone(
    split: str, samples: dict[tuple[str, str], list[WordProblem]]
) -> None:
    lengths = set()
    for problem in samples[split, "target"]:
        numbers = solve(problem.question)
        assert str(numbers[-1]) == str(problem.final) == final_number(problem.answer), problem.question
        lengths.add(len(numbers))
    assert lengths == {2, 3, 4, 5, 6}


EQUATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")
DIVISION = (
    re.compile(r"(?P<a>\d+)/(?P<b>\d+) is (?P<q>\d+) with remainder (?P<r>\d+), so (?P<c>\d+) are (?P<what>left|full)"),
    re.compile(
        r"groups of (?P<b>\d+) go (?P<q>\d+) times into (?P<a>\d+) with remainder (?P<r>\d+), "
        r"so (?P<c>\d+) are (?P<what>left|full)"
    ),
    re.compile(
        r"dividing by (?P<b>\d+) gives (?P<q>\d+) with remainder (?P<r>\d+), so (?P<c>\d+) are (?P<what>left|full)"
    ),
)
COMPARISON = re.compile(r"(\d+) is (more|less) than (\d+)")


def check_step(step: str, before: int) -> int:
    """Check every statement of a worked step, and return its result."""
    numbers = [int(n) for n in re.findall(r"\d+", step)]
    for a, sign, b, c in EQUATION.findall(step):
        x, y, z = int(a), int(b), int(c)
        assert {"+": x + y == z, "-": x - y == z, "*": x * y == z, "/": y * z == x}[sign], step
    for left, relation, right in COMPARISON.findall(step):
        assert (int(left) > int(right)) == (relation == "more"), step
        assert left != right, step
    for pattern in DIVISION:
        for found in pattern.finditer(step):
            parts = found.groupdict()
            a = int(parts.get("a") or before)
            b, q, r = int(parts["b"]), int(parts["q"]), int(parts["r"])
            assert a == q * b + r, step
            assert 0 <= r < b, step
            assert parts["c"] == parts["r" if parts["what"] == "left" else "q"], step
    if "/" not in step and "dividing by" not in step:
        assert before in numbers, step
    return numbers[-1]


@pytest.mark.parametrize("who", ["target", "drafter"])
@pytest.mark.parametrize("split", SPLITS)
def test_worked_steps_are_true_and_lead_to_the_answer(
    split: str, who: str, samples: dict[tuple[str, str], list[WordProblem]]
) -> None:
    for problem in samples[split, who]:
        body, mark, final = problem.answer.partition("\n#### ")
        assert mark
        *steps, ending = re.findall(r"[^.]+\.", body)
        number = int(re.findall(r"\d+", problem.question)[0])
        for step, expected in zip(steps, solve(problem.question), strict=True):
            number = check_step(step, number)
            assert number == expected, step
        assert re.findall(r"\d+", ending) == [final]
        assert number == int(final) == problem.final


def test_a_wrong_equation_would_be_seen() -> None:
    check_step("Then, we have 12+5=17 now.", 12)
    for lie in ("we have 12+5=18.", "12/5 is 2 with remainder 3, so 3 are left", "12 is less than 5, so 5 are kept"):
        with pytest.raises(AssertionError):
            check_step(lie, 12)


def test_distractors_carry_numbers_that_do_not_matter(samples: dict[tuple[str, str], list[WordProblem]]) -> None:
    noise = [
        sentence
        for problem in samples["train", "target"]
        for sentence in map(str.strip, re.findall(r"[^.?]+[.?]", problem.question))
        if any(pattern.fullmatch(sentence) for pattern in NOISE)
    ]
    assert len(noise) > 50
    assert len({re.sub(r"\d+|[A-Z][a-z]+", "", sentence) for sentence in noise}) > 5


# ---------------------------------------------------------------- material


def test_there_are_forty_templates_or_more_and_all_are_told(samples: dict[tuple[str, str], list[WordProblem]]) -> None:
    assert len({template.text for template in stories.TEMPLATES}) >= 40
    seen = {
        key
        for problem in samples["train", "target"]
        for sentence in map(str.strip, re.findall(r"[^.?]+[.?]", problem.question))
        for key, pattern in EVENTS.items()
        if pattern.fullmatch(sentence)
    }
    assert seen == set(EVENTS)


def test_numbers_stay_in_bounds(samples: dict[tuple[str, str], list[WordProblem]]) -> None:
    for problem in itertools.chain(*samples.values()):
        assert all(int(n) <= 999 for n in re.findall(r"\d+", problem.question + problem.answer))
        assert problem.final >= 2


def test_the_narrators_habits_differ_as_often_as_stated() -> None:
    """Over all choices of words for all templates and positions of a step."""
    keys = [template.key for template in stories.TEMPLATES]
    options = {
        **{f"connector/{p}/{k}": len(stories.CONNECTORS[p]) for p in stories.CONNECTORS for k in keys},
        **{f"body/{p}/{t.key}": len(stories.STEPS[t.op]) for p in stories.CONNECTORS for t in stories.TEMPLATES},
        **{f"tail/{p}/{k}": len(stories.TAILS) for p in stories.CONNECTORS for k in keys},
        **{f"ending/{k}": len(stories.ENDINGS) for k in keys},
    }
    pairs = [(favourite("target", c, n), favourite("drafter", c, n), n) for c, n in options.items()]
    assert all(0 <= a < n and 0 <= b < n for a, b, n in pairs)
    share = sum(a != b for a, b, _ in pairs) / len(pairs)
    assert share == pytest.approx(HABIT_SHIFT, abs=4 * (0.8 * 0.2 / len(pairs)) ** 0.5)


def test_each_narrator_takes_its_favourite_more_often_than_any_other_wording() -> None:
    """Counted in the endings of answers whose last event is `rival`."""
    for who in ("target", "drafter"):
        endings: dict[str, int] = {}
        for problem in take("train", 1200, who):
            sentence = re.findall(r"[^.?]+[.?]", problem.question)[-2].strip()
            if EVENTS["rival"].fullmatch(sentence):
                ending = re.findall(r"[^.]+\.", problem.answer.partition("\n####")[0])[-1].strip()
                words = re.sub(r"\d+", "{c}", ending)
                endings[words] = endings.get(words, 0) + 1
        liked = favourite(who, "ending/rival", len(stories.ENDINGS))
        beginnings = [text.partition("{c}")[0] for text in stories.ENDINGS]
        counts = [sum(n for words, n in endings.items() if words.startswith(b)) for b in beginnings]
        assert sum(counts) > 25
        assert counts.index(max(counts)) == liked, counts
        assert 0.4 < max(counts) / sum(counts) < 0.8  # FAVOURITE_P = 0.5, and a fifth of the rest


# ---------------------------------------------------------------- splits and seeds


@pytest.fixture(scope="module")
def skeletons() -> dict[str, set[str]]:
    return {split: {p.skeleton for p in take(split, MANY)} for split in SPLITS}


@pytest.mark.slow
def test_splits_share_no_skeleton(skeletons: dict[str, set[str]]) -> None:
    assert all(len(found) > 0.99 * MANY for found in skeletons.values())
    for one, other in itertools.combinations(SPLITS, 2):
        assert not skeletons[one] & skeletons[other]


def test_a_skeleton_can_be_in_one_split_alone(samples: dict[tuple[str, str], list[WordProblem]]) -> None:
    """The split is a function of the skeleton, so that problems outside any sample are disjoint too."""
    for (split, _), told in samples.items():
        assert {split_of(problem.skeleton) for problem in told} == {split}


def test_a_skeleton_tells_the_numbers_and_events_of_its_problem(
    samples: dict[tuple[str, str], list[WordProblem]],
) -> None:
    """The hashed skeleton matches the question, so that disjoint skeletons mean disjoint problems."""
    for problem in samples["test", "target"]:
        start, *events = problem.skeleton.split("|")
        sentences = [s.strip() for s in re.findall(r"[^.?]+[.?]", problem.question)]
        told = [
            f"{key}:{found[1]}"
            for sentence in sentences
            for key, pattern in EVENTS.items()
            if (found := pattern.fullmatch(sentence))
        ]
        assert re.findall(r"\d+", sentences[0]) == [start]
        assert told == events


def test_both_narrators_tell_the_same_problems_in_other_words(
    samples: dict[tuple[str, str], list[WordProblem]],
) -> None:
    for split in SPLITS:
        target, drafter = samples[split, "target"], samples[split, "drafter"]
        assert [p.question for p in target] == [p.question for p in drafter]
        assert [(p.final, p.skeleton) for p in target] == [(p.final, p.skeleton) for p in drafter]
        differing = sum(a.answer != b.answer for a, b in zip(target, drafter, strict=True))
        assert differing > 0.95 * len(target)


def test_a_seed_gives_the_same_problems_and_another_seed_others() -> None:
    assert take("train", 50, seed=9) == take("train", 50, seed=9)
    assert not {p.question for p in take("train", 50, seed=9)} & {p.question for p in take("train", 50, seed=10)}
    assert not {p.skeleton for p in take("train", 50, seed=9)} & {p.skeleton for p in take("test", 50, seed=9)}


def test_the_problems_are_the_same_on_every_machine() -> None:
    """Pinned, since results on the bundled problems and resumed trainings depend on it."""
    told = [p for split, who in (("test", "target"), ("train", "drafter")) for p in take(split, 30, who, seed=2026)]
    text = "\n".join(f"{p.question}\n{p.answer}" for p in told)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "0d3ea872dfdfb47d"


def test_drills_are_true() -> None:
    seen = set()
    for ask, reply in itertools.islice(problems.drills(random.Random(3)), 400):
        assert reply.endswith("\n")
        found = EQUATION.fullmatch(ask + reply.strip())
        if found is None:
            match = re.fullmatch(r"(\d+)/(\d+) is (\d+) with remainder (\d+)\n", ask + reply)
            assert match, ask
            assert divmod(int(match[1]), int(match[2])) == (int(match[3]), int(match[4]))
        else:
            check_step(found[0], int(found[1]))
        seen.add(found[2] if found else "divmod")
    assert seen == {"+", "-", "*", "/", "divmod"}


def test_unknown_splits_and_narrators_are_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match="unknown split 'tests'; known: train, calibration, test"):
        next(generate("tests", 0))
    with pytest.raises(BadInput, match="unknown narrator 'judge'; known: target, drafter"):
        next(generate("test", 0, "judge"))
