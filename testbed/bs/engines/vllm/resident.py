"""Resident sessions: vLLM's scheduler hands the KV blocks of a session's last round to its next one.

vLLM's prefix cache serves whole blocks, so a round that starts anew computes up to a block of committed tokens again. A
worker, however, accepts a new request with any number of computed tokens and any block table. `ResidentScheduler`
therefore keeps the blocks of a finished round, by session, and gives them to the session's next round with as many
computed tokens as both have in common: the round then computes the last committed token and the drafted ones.

Rejected tokens are overwritten in place. Two rules keep that safe:

- only committed tokens are hashed for the prefix cache, so that no hash stands for tokens that are overwritten later;
- a block that another request shares, or that has a hash, is never written: the common prefix is cut to its start.

A session names itself in the request's `extra_kwargs["session"]`. Written for vLLM 0.32, whose scheduler interface is
not public; `VllmRunner.check_resident` finds out whether it works.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus


@dataclass(slots=True)
class Parked:
    """KV state of a session between two rounds."""

    tokens: Sequence[int]
    """Tokens in the blocks, drafted ones included."""
    blocks: list[KVCacheBlock]
    hashed: int
    """Leading blocks that are in the prefix cache."""
    hashes: list[BlockHash]
    """Hashes of the leading whole blocks of `tokens`."""
    compared: tuple[str, int] = ("", 0)
    """The last request that was compared with `tokens`, and how many leading tokens both have in common."""

    def common(self, request: Request) -> int:
        """Leading tokens that a request has in common with these, up to its last committed one."""
        if self.compared[0] != request.request_id:
            most = limit_of(request)
            self.compared = (request.request_id, common_prefix(self.tokens, request._all_token_ids, most))
        return self.compared[1]


class ResidentScheduler(Scheduler):
    """vLLM's scheduler, with sessions whose keys and values stay in their blocks between rounds.

    A session that waits for its UE holds blocks and nothing else: no slot, and no share of a pass. Where blocks run
    out, sessions give theirs back, the least recently used first; such a session computes its prefix again, less what
    the prefix cache still holds.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parked: OrderedDict[str, Parked] = OrderedDict()
        """KV state of waiting sessions by name, the least recently used first."""
        (self._manager,) = self.kv_cache_manager.coordinator.single_type_managers
        self._pool = self.kv_cache_manager.block_pool
        wrapped: Any = self.kv_cache_manager
        wrapped.coordinator.cache_blocks = functools.partial(self._cache_committed, wrapped.coordinator.cache_blocks)
        wrapped.get_computed_blocks = functools.partial(self._computed_blocks, wrapped.get_computed_blocks)
        wrapped.allocate_slots = functools.partial(self._allocate, wrapped.allocate_slots)

    # ------------------------------------------------------------ between rounds

    def _free_request_blocks(self, request: Request) -> None:
        """Keep the blocks of a round that finished; those of any other request are freed."""
        session = session_of(request)
        if request.status != RequestStatus.FINISHED_STOPPED or session is None:
            super()._free_request_blocks(request)
            return
        self.close(session)
        hashed = self._manager.num_cached_block.get(request.request_id, 0)
        blocks = self._manager.pop_blocks_for_free(request.request_id)
        self.parked[session] = Parked(request._all_token_ids, blocks, hashed, request.block_hashes)

    def add_request(self, request: Request) -> None:
        """Give a session's blocks to its next round."""
        session = session_of(request)
        parked = None if session is None else self.parked.pop(session, None)
        if parked is not None:
            self._adopt(request, parked)
        super().add_request(request)

    def _adopt(self, request: Request, parked: Parked) -> None:
        size = self._manager.block_size
        common = parked.common(request)
        if common % size and not self._pool.is_block_writable(parked.blocks[common // size]):
            common -= common % size
        count = -(-common // size)
        self._pool.free_blocks(reversed(parked.blocks[count:]))
        if not common:
            return
        self._manager.req_to_blocks[request.request_id] = parked.blocks[:count]
        self._manager.num_cached_block[request.request_id] = min(parked.hashed, common // size)
        request.num_computed_tokens = common

    def close(self, session: str) -> None:
        """Free a session's blocks; an unknown session is no error."""
        if (parked := self.parked.pop(session, None)) is not None:
            self._pool.free_blocks(reversed(parked.blocks))

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """Drop the prefix cache and all sessions' blocks."""
        for session in list(self.parked):
            self.close(session)
        return bool(super().reset_prefix_cache(*args, **kwargs))

    # ------------------------------------------------------------ passes

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """The next pass. Where rounds hold all blocks and none of them can grow, the last one gives its blocks back.

        A prompt that is alone is bounded like any other, since rounds that arrive during its pass wait for it; vLLM
        would let it fill the pass.
        """
        budget, most = self.max_num_scheduled_tokens, self.scheduler_config.long_prefill_token_threshold
        if most and sum(self.get_request_counts()) == 1:
            self.max_num_scheduled_tokens = min(budget, most)
        try:
            return self._schedule_growing(*args, **kwargs)
        finally:
            self.max_num_scheduled_tokens = budget

    def _schedule_growing(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        output = super().schedule(*args, **kwargs)
        while not output.total_num_scheduled_tokens and not self.running and self.kv_holding_waiting:
            last = list(self.kv_holding_waiting)[-1]
            self.kv_holding_waiting.remove_requests([last])
            self.kv_cache_manager.free(last)
            last.num_computed_tokens = 0
            self.waiting.prepend_request(last)
            output = super().schedule(*args, **kwargs)
        return output

    # ------------------------------------------------------------ what vLLM's KV cache manager calls

    def _cache_committed(self, cache: Callable[..., None], request: Request, num_computed_tokens: int) -> None:
        """Hash committed tokens only."""
        cache(request, min(num_computed_tokens, limit_of(request)))

    def _computed_blocks(self, found: Callable[..., Any], request: Request) -> tuple[KVCacheBlocks, int, int]:
        """The prefix that the cache holds, up to the last committed token, so that every row is computed."""
        blocks, tokens, boundary = found(request)
        limit = limit_of(request)
        if tokens > limit:
            tokens = limit - limit % self._manager.block_size
            blocks = self.kv_cache_manager.truncate_computed_blocks(blocks, tokens)
        return blocks, tokens, boundary

    def _allocate(self, allocate: Callable[..., KVCacheBlocks | None], *args: Any, **kwargs: Any) -> Any:
        """Blocks for new tokens; where there are none, those of sessions that wait, the longest idle first."""
        blocks = allocate(*args, **kwargs)
        while blocks is None and self.parked:
            self.close(next(iter(self.parked)))
            blocks = allocate(*args, **kwargs)
        return blocks


def session_of(request: Request) -> str | None:
    """The session that a request belongs to; None: none."""
    params = request.pooling_params
    return None if params is None or params.extra_kwargs is None else params.extra_kwargs.get("session")


def limit_of(request: Request) -> int:
    """Position of the last committed token: the first that a round must compute."""
    params = request.pooling_params
    rows = 1 if params is None or params.extra_kwargs is None else len(params.extra_kwargs["facing"])
    return int(request.num_prompt_tokens) - rows


def common_prefix(left: Sequence[int], right: Sequence[int], most: int) -> int:
    """Leading tokens that both have in common, at most `most`."""
    most = min(most, len(left), len(right))
    if left[:most] == right[:most]:
        return most
    return next(i for i in range(most) if left[i] != right[i])


def hashing_only_new(
    scheduler: ResidentScheduler, hasher: Callable[[Request], list[BlockHash]]
) -> Callable[[Request], list[BlockHash]]:
    """A block hasher that takes a session's known hashes over, and computes those of new blocks alone."""

    def hash_new(request: Request) -> list[BlockHash]:
        session = session_of(request)
        parked = None if request.block_hashes or session is None else scheduler.parked.get(session)
        if parked is None:
            return hasher(request)
        common = parked.common(request)
        request.block_hashes.extend(parked.hashes[: common // scheduler.hash_block_size])
        return hasher(request)

    return hash_new
