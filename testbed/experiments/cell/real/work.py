"""What the process of a UE decodes: synthetic tokens, recorded drafts, or prompts of a pair."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.parts.decoding import Requests
from testbed.experiments.cell.parts.drafts import Agreement, RealDrafter
from testbed.experiments.cell.parts.tasks import PairTasks, UeTasks
from testbed.experiments.cell.recorded import RecordedWork, real_replay, recording_of, trained_policy
from testbed.experiments.cell.tally import UeTally
from testbed.experiments.cell.ue import drawn_lengths
from testbed.experiments.inputs.profile import load_profile
from testbed.experiments.runs.execute import drafter_of
from testbed.synthetic import VOCAB, next_token
from testbed.ue.drafters.base import Drafter
from testbed.ue.records import RequestRecord
from testbed.ue.windows.base import WindowPolicy
from testbed.ue.windows.registry import window_policy


class DecodedWork(NamedTuple):
    """What one UE decodes.

    Attributes:
        policy: its draft windows.
        lossy: counts the responses that had to be the target's own, and were not.
        tokenizer: fingerprint that the base station is greeted with.
        most_tokens: longest response; None: as each request says.
    """

    requests: Requests
    drafter: Drafter
    policy: WindowPolicy
    lossy: Callable[[], int]
    tokenizer: str
    most_tokens: int | None = None


def work_of(config: CellConfig, number: int, group: UeGroup, own: Path | None, tally: UeTally) -> DecodedWork:
    """The work of the UE of this number.

    Args:
        own: with models, the file of the target's own responses, see `write_own`.
    """
    if own is not None:
        return _computed(config, group, own, tally)
    size = load_profile(group.profile).hidden_size or 64
    recording, seen = recording_of(group), list[tuple[list[int], list[int]]]()
    drafter: Drafter = RealDrafter(VOCAB, size, Agreement(config.seed, number, group.alpha))
    lengths = drawn_lengths(group)
    if recording is not None:
        work = RecordedWork(recording, group.method.drafts)
        drafter, lengths = real_replay(work, size), work.next
    words = random.Random(f"prompts {config.seed} {number}")  # its own, so that lengths are those of virtual time

    def ended(prompt: list[int], record: RequestRecord) -> None:
        seen.append((prompt, list(record.token_ids)))

    return DecodedWork(
        Requests(lambda length: [words.randrange(VOCAB) for _ in range(length)], lengths, ended),
        drafter, window_policy(group.window_rule, group.window), partial(_different, seen), drafter.fingerprint,
    )  # fmt: skip


def write_own(outputs: Sequence[Sequence[int]], path: Path) -> None:
    """Write the target's own responses to the prompts of a cell with models, in order."""
    path.write_bytes(msgspec.msgpack.encode(outputs))


def _computed(config: CellConfig, group: UeGroup, own: Path, tally: UeTally) -> DecodedWork:
    known = dict[tuple[int, ...], list[int]]()
    tasks = PairTasks(config, lambda ids: known[tuple(ids)], at_once=1)
    outputs = msgspec.msgpack.decode(own.read_bytes(), type=list[list[int]])
    known.update((tuple(prompt.ids), output) for prompt, output in zip(tasks.work.prompts, outputs, strict=True))
    mine = UeTasks(tasks, tally, tasks.exact(group))
    drafter = drafter_of(tasks.run, tasks.work)
    assert tasks.work.prompter is not None, "prompts of a data set have a tokenizer"
    return DecodedWork(
        Requests(mine.prompt, mine.next, mine.seen), drafter, trained_policy(group, drafter.fingerprint),
        lambda: mine.lossy, tasks.work.prompter.fingerprint, tasks.demo.max_tokens,
    )  # fmt: skip


def _different(seen: Sequence[tuple[list[int], list[int]]]) -> int:
    """Outputs after these prompts that are not the synthetic target's."""
    return sum(output != _expected(prompt, len(output)) for prompt, output in seen)


def _expected(prompt: Sequence[int], count: int) -> list[int]:
    """The synthetic target's own output."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(next_token(ids, VOCAB, 0))
    return ids[len(prompt) :]
