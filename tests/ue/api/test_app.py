"""The endpoint with OpenAI's client: answers, refusals, and cleanup."""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import json
import threading
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Completion

from testbed.errors import BadInput
from testbed.protocols.sampling import Sampling, request_seed
from testbed.synthetic import next_token
from testbed.tasks import beside, cancel
from testbed.ue import client as ue_client
from testbed.ue.api import backend
from testbed.ue.api.app import TOKENIZED
from testbed.ue.api.config import EndpointConfig
from testbed.ue.api.schema import CompletionRequest
from testbed.ue.target_only import decode_remotely
from tests.support.endpoints import MODEL, WORDS, Site, endpoint, until
from tests.support.stations import client as connection

PROMPT = "w5 w7 w1"
LONG = {"max_tokens": 4000, "temperature": 0}
PATIENT = EndpointConfig(window=4)


async def complete(site: Site, prompt: Any = PROMPT, **options: Any) -> Completion:
    return await site.client.completions.create(model=MODEL, prompt=prompt, **options)


async def own(site: Site, prompt: list[int], tokens: int, ends: tuple[int, ...] = ()) -> list[int]:
    """The target's own greedy output."""
    async with connection(site.bs_address, greet=False) as alone:
        await alone.connect("", WORDS)
        return (await decode_remotely(alone, prompt, tokens, ends)).token_ids


def text(ids: list[int]) -> str:
    """The expected continuation of a prompt."""
    return "".join(f" w{i}" for i in ids)


# ---------------------------------------------------------------- what is answered


@pytest.mark.parametrize("protocol", ["greedy", "fh", "sh", "auto", "rejection", "split", "coupled"])
async def test_temperature_0_is_the_targets_own_greedy_output(tmp_path: Path, protocol: str) -> None:
    async with endpoint(tmp_path, EndpointConfig(protocols=(protocol,), window=5, sequences=3)) as site:
        prompts = [[i, 7, 1] for i in range(5)]
        answers = await asyncio.gather(*(complete(site, p, max_tokens=30, temperature=0) for p in prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.choices[0].text == text(await own(site, prompt, 30))
            assert answer.choices[0].finish_reason == "length"
            assert answer.usage is not None and answer.usage.model_dump(exclude_none=True) == {
                "prompt_tokens": 3, "completion_tokens": 30, "total_tokens": 33,
            }  # fmt: skip
            spent = (answer.model_extra or {})["speculation"]
            assert spent["rounds"] < 30 and spent["accepted"] < spent["drafted"]
            assert spent["protocol"] == ("sh" if protocol == "auto" else protocol)
        await until(lambda: site.at_rest)


async def test_an_end_token_ends_the_output_unless_it_is_to_be_ignored(tmp_path: Path) -> None:
    ends = tuple(range(0, 64, 8))
    async with endpoint(tmp_path, EndpointConfig(window=4), end_ids=ends) as site:
        ids = await own(site, [5, 7, 1], 200, ends)
        assert ids[-1] in ends
        answer = await complete(site, temperature=0, max_tokens=200)
        assert answer.choices[0].text == text(ids[:-1]) and answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None and answer.usage.completion_tokens == len(ids)
        on = await complete(site, temperature=0, max_tokens=50, extra_body={"ignore_eos": True})
        endless = [5, 7, 1]
        for _ in range(50):
            endless.append(next_token(endless, WORDS, 0))
        assert endless[3 : 3 + len(ids)] == ids
        assert on.choices[0].text == text(endless[3:]) and on.choices[0].finish_reason == "length"


async def test_a_stream_adds_up_to_the_whole_answer(tmp_path: Path) -> None:
    async with endpoint(tmp_path, EndpointConfig(window=4)) as site:
        options: dict[str, Any] = {"max_tokens": 40, "temperature": 0}
        whole = await complete(site, **options)
        stream = await complete(site, **options, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        assert len({chunk.id for chunk in chunks}) == 1
        *texts, last, usage = chunks
        assert "".join(c.choices[0].text for c in texts) == whole.choices[0].text and len(texts) > 3
        assert {c.choices[0].finish_reason for c in texts} == {None} and last.choices[0].finish_reason == "length"
        assert usage.choices == [] and usage.usage == whole.usage
        plain = [chunk async for chunk in await complete(site, **options, stream=True)]
        assert all(c.usage is None and c.choices for c in plain)


async def test_a_conversation(tmp_path: Path) -> None:
    async with endpoint(tmp_path, EndpointConfig(window=4, prompt_format="{question}")) as site:
        messages: Any = [
            {"role": "developer", "content": "w1"},
            {"role": "user", "content": [{"type": "text", "text": "w2 "}, {"type": "text", "text": "w3"}]},
            {"role": "assistant", "content": "w4"},
            {"role": "user", "content": "w5", "name": "somebody"},
        ]
        expected = text(await own(site, [1, 2, 3, 4, 5], 20))
        ask = {"model": MODEL, "messages": messages, "temperature": 0, "max_completion_tokens": 20, "max_tokens": 3}
        answer = await site.client.chat.completions.create(**ask)
        assert answer.choices[0].message.content == expected and answer.choices[0].message.role == "assistant"
        assert answer.usage is not None and answer.usage.prompt_tokens == 5
        chunks = [c async for c in await site.client.chat.completions.create(**ask, stream=True)]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == expected
        assert chunks[-1].choices[0].finish_reason == "length"


async def test_a_stop_string_that_spans_tokens_cuts_and_ends_the_rounds(tmp_path: Path) -> None:
    async with endpoint(tmp_path, EndpointConfig(window=4)) as site:
        ids = await own(site, [5, 7, 1], 40)
        stop = text(ids[10:13])[1:-1]  # from within a token to within another
        expected = text(ids)[: text(ids).index(stop)]
        before = site.bs.rounds
        whole = await complete(site, temperature=0, max_tokens=2000, stop=["nowhere", stop])
        assert whole.choices[0].text == expected and whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None and whole.usage.completion_tokens <= 13
        assert site.bs.rounds - before <= 13
        stream = await complete(site, temperature=0, max_tokens=2000, stop=stop, stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].text for c in chunks) == expected
        assert chunks[-1].choices[0].finish_reason == "stop"
        await until(lambda: site.at_rest)


@pytest.mark.parametrize("protocol", ["rejection", "split", "coupled"])
async def test_a_seed_repeats_what_is_drawn(tmp_path: Path, protocol: str) -> None:
    async with endpoint(tmp_path, EndpointConfig(protocols=(protocol,), window=4)) as site:
        same = [await complete(site, max_tokens=30, temperature=0.9, top_p=0.95, seed=-3) for _ in range(2)]
        stream = await complete(site, max_tokens=30, temperature=0.9, top_p=0.95, seed=-3, stream=True)
        streamed = "".join([chunk.choices[0].text async for chunk in stream])
        assert same[0].choices[0].text == same[1].choices[0].text == streamed
        others = [(await complete(site, max_tokens=30, temperature=0.9, seed=s)).choices[0].text for s in (1, 2)]
        free = [(await complete(site, max_tokens=30)).choices[0].text for _ in range(2)]
        assert len({streamed, *others, *free}) == 5


async def test_samples_are_the_targets_own_for_the_seed_whatever_the_window(tmp_path: Path) -> None:
    """The default above temperature 0 is coupled sampling, so that drafts decide about time alone."""
    found = []
    for window in (1, 6):
        async with endpoint(tmp_path, EndpointConfig(window=window)) as site:
            answer = await complete(site, max_tokens=30, temperature=0.9, top_p=0.95, seed=11)
            found.append(answer.choices[0].text)
            how, seed = Sampling(0.9, 0, 0.95, coupled=True), request_seed(11, "endpoint", 0)
            async with connection(site.bs_address, greet=False) as alone:
                await alone.connect("", WORDS)
                record = await decode_remotely(alone, [5, 7, 1], 30, (), sampling=how, seed=seed)
            found.append(text(record.token_ids))
    assert len(set(found)) == 1


async def test_a_narrow_top_p_leaves_the_targets_most_likely_tokens(tmp_path: Path) -> None:
    async with endpoint(tmp_path, EndpointConfig(window=4)) as site:
        answer = await complete(site, max_tokens=30, temperature=1.0, top_p=1e-9)
        assert answer.choices[0].text == text(await own(site, [5, 7, 1], 30))
        answer = await complete(site, max_tokens=30, temperature=1.0, extra_body={"top_k": 1})
        assert answer.choices[0].text == text(await own(site, [5, 7, 1], 30))


async def test_models(tmp_path: Path) -> None:
    async with endpoint(tmp_path, PATIENT) as site:
        assert [m.id async for m in site.client.models.list()] == [MODEL]
        assert (await site.client.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError):
            await site.client.models.retrieve("org/other")


# ---------------------------------------------------------------- what is refused

REFUSED: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"model": "gpt-4"}, 404, "model", "serves 'words'"),
    ({"n": 2}, 400, "n", "n = 2"),
    ({"n": True}, 400, "n", "n = True"),
    ({"best_of": 3}, 400, "best_of", "best_of"),
    ({"echo": True}, 400, "echo", "echo"),
    ({"suffix": "end"}, 400, "suffix", "suffix"),
    ({"presence_penalty": 0.5}, 400, "presence_penalty", "leave it out"),
    ({"frequency_penalty": -1}, 400, "frequency_penalty", "leave it out"),
    ({"chat_template_kwargs": {"enable_thinking": False}}, 400, "chat_template_kwargs", "leave it out"),
    ({"continue_final_message": True}, 400, "continue_final_message", "leave it out"),
    ({"logit_bias": {"5": 1}}, 400, "logit_bias", "leave it out"),
    ({"logprobs": 0}, 400, "logprobs", "logprobs are not available"),
    ({"logprobs": True}, 400, "logprobs", "logprobs are not available"),
    ({"max_tokens": 5000}, 400, "max_tokens", "exceed the context of 4096"),
    ({"max_tokens": 0}, 400, "max_tokens", "greater than or equal to 1"),
    ({"max_tokens": "9"}, 400, "max_tokens", "integer"),
    ({"prompt": "w1 " * 4096}, 400, "prompt", "exceed the context of 4096"),
    ({"prompt": ""}, 400, None, "the prompt is empty"),
    ({"prompt": []}, 400, None, "the prompt is empty"),
    ({"prompt": [5, 64]}, 400, "prompt", "0..63"),
    ({"prompt": ["w1"] * 65}, 400, "prompt", "at most 64"),
    ({"prompt": ["w1", ""]}, 400, None, "the prompt is empty"),
    ({"max_tokens": 10_000}, 400, "max_tokens", "--context"),
    ({"temperature": -1}, 400, None, "temperature"),
    ({"top_p": 0}, 400, None, "top-p"),
    ({"stop": ["a", ""]}, 400, "stop", "empty"),
    ({"stop": ["a", "b", "c", "d", "e"]}, 400, "stop", "at most 4"),
    ({"stream_options": 3}, 400, "stream_options", "dictionary"),
]


async def test_what_cannot_be_answered_is_refused_in_openais_shape(tmp_path: Path) -> None:
    async with endpoint(tmp_path, PATIENT) as site:
        for options, status, param, words in REFUSED:
            body = {"model": MODEL, "prompt": PROMPT, **options}
            with pytest.raises(openai.APIStatusError) as caught:
                await site.client.post("/completions", body=body, cast_to=object)
            error: Any = caught.value.body
            assert caught.value.status_code == status, options
            assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
            assert error["param"] == param and words in error["message"], (options, error)
        assert site.bs.rounds < 20  # those of the start alone


CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": "  "}]}, "the prompt is empty"),
    ({"messages": [{"role": "robot", "content": "w1"}]}, "messages.0.role"),
    ({"messages": [{"role": "assistant", "content": "w1"}]}, "last message"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "'image_url'"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"top_logprobs": 2, "logprobs": True}, "logprobs are not available"),
    ({"prompt": "w1", "messages": None}, "messages"),
]


async def test_conversations_that_are_refused(tmp_path: Path) -> None:
    async with endpoint(tmp_path, PATIENT) as site:
        for options, words in CHATS:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "w1"}], **options}
            with pytest.raises(openai.BadRequestError) as caught:
                await site.client.post("/chat/completions", body=body, cast_to=object)
            assert words in str(caught.value), options


async def test_what_changes_nothing_is_taken(tmp_path: Path) -> None:
    async with endpoint(tmp_path, PATIENT) as site:
        more = {"best_of": 1, "n": 1, "echo": False, "logprobs": None, "logit_bias": {}, "presence_penalty": 0.0}
        more["chat_template_kwargs"] = {}
        answer = await complete(
            site, max_tokens=4, temperature=0, user="me", extra_body={**more, "cache_salt": "?", "tools": []}
        )
        assert answer.choices[0].text == text(await own(site, [5, 7, 1], 4))


def ask(site: Site, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
    web = http.client.HTTPConnection(site.url.removeprefix("http://"), timeout=20)
    try:
        web.request(method, path, body, headers)
        answer = web.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        web.close()


async def test_what_is_no_request_of_the_api(tmp_path: Path) -> None:
    async with endpoint(tmp_path, PATIENT) as site:
        kind = {"content-type": "application/json"}
        for status, words, *request in (
            (404, "/v1/embeddings", "POST", "/v1/embeddings", b"{}"),
            (405, "Method Not Allowed", "GET", "/v1/completions", b""),
            (400, "not JSON", "POST", "/v1/completions", b'{"prompt": '),
            (400, "JSON object", "POST", "/v1/completions", b""),
            (400, "JSON object", "POST", "/v1/chat/completions", b"[1]"),
            (400, "prompt", "POST", "/completions", b"{}"),
        ):
            got, document = await asyncio.to_thread(ask, site, *request, **kind)
            assert got == status and words in document["error"]["message"], document


async def test_a_key_is_asked_for_where_there_is_one(tmp_path: Path) -> None:
    async with endpoint(tmp_path, PATIENT, token="s3cret") as site:
        assert (await complete(site, max_tokens=2)).choices
        for key in ("s3cre", "s3crets", "Bearer-s3cret"):
            with pytest.raises(openai.AuthenticationError) as caught:
                await site.client.with_options(api_key=key).models.list()
            assert caught.value.code == "invalid_api_key"
        assert (await asyncio.to_thread(ask, site, "GET", "/v1/models"))[0] == 401
        assert await asyncio.to_thread(ask, site, "GET", "/health") == (200, {"status": "ok"})


async def test_a_list_of_prompts_is_answered_in_order_whole_and_streamed(tmp_path: Path) -> None:
    async with endpoint(tmp_path, EndpointConfig(window=3, sequences=2)) as site:
        prompts = [[5, 7, 1], [9, 2], [4, 4, 4, 4]]
        wanted = [text(await own(site, prompt, 6)) for prompt in prompts]
        whole = await complete(site, prompts, max_tokens=6, temperature=0)
        assert [choice.text for choice in whole.choices] == wanted and [c.index for c in whole.choices] == [0, 1, 2]
        assert whole.usage is not None and (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (9, 18)
        said = ["", "", ""]
        async for chunk in await complete(site, prompts, max_tokens=6, temperature=0, stream=True):  # type: ignore[attr-defined]
            for choice in chunk.choices:
                said[choice.index] += choice.text
        assert said == wanted
        await until(lambda: site.at_rest)


async def test_json_needs_no_content_type(tmp_path: Path) -> None:
    """`curl -d` declares a form, and some clients nothing."""
    async with endpoint(tmp_path, PATIENT) as site:
        body = json.dumps({"prompt": [5, 7, 1], "max_tokens": 3, "temperature": 0}).encode()
        for headers in ({}, {"content-type": "application/x-www-form-urlencoded"}):
            status, document = await asyncio.to_thread(ask, site, "POST", "/v1/completions", body, **headers)
            assert status == 200 and document["choices"][0]["text"] == text(await own(site, [5, 7, 1], 3)), document


async def test_health_is_that_of_the_bs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "PROBE_S", 0.3)
    async with endpoint(tmp_path, EndpointConfig(window=1, timeout_s=1.0)) as site:
        assert await asyncio.to_thread(ask, site, "GET", "/health") == (200, {"status": "ok"})
        await site.stop_bs()
        await asyncio.sleep(0.35)
        status, document = await asyncio.to_thread(ask, site, "GET", "/health")
        assert status == 503 and document["reason"] == "the BS does not answer"


async def test_health_says_that_the_bs_serves_another_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "PROBE_S", 0.1)
    async with endpoint(tmp_path, PATIENT) as site:
        before = site.bs._intake.offer
        for offer, wanted in ((before, 200), (dataclasses.replace(before, judge="other"), 503), (before, 200)):
            site.bs._intake.offer = offer
            await asyncio.sleep(0.15)
            status, document = await asyncio.to_thread(ask, site, "GET", "/health")
            assert status == wanted
            assert wanted == 200 or "serves another target, judge or head" in document["reason"]


async def test_a_lost_bs_is_said_once_without_any_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backend, "PROBE_S", 0.1)
    monkeypatch.setattr(ue_client, "SILENT_S", 0.3)
    async with endpoint(tmp_path, EndpointConfig(window=1, timeout_s=1.0)) as site:

        async def lost() -> None:
            await asyncio.sleep(0.5)
            assert not caplog.records
            await site.stop_bs()
            await until(lambda: bool(caplog.records))
            await asyncio.sleep(1.0)

        await beside([site.backend.watch()], lost())
        (said,) = [record.getMessage() for record in caplog.records]
        assert said.startswith("the BS has not answered for")


# ---------------------------------------------------------------- who leaves, who waits


async def test_clients_that_left_count_among_those_whose_prompts_are_tokenized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their threads go on, and others began beside them."""
    free, running, most = threading.Event(), [0], [0]

    def orders(*_: object) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        assert free.wait(30)
        running[0] -= 1
        raise BadInput("refused")

    monkeypatch.setattr(CompletionRequest, "orders", orders)
    async with endpoint(tmp_path, PATIENT) as site:
        for _ in range(3):
            asking = [asyncio.create_task(complete(site)) for _ in range(3)]
            await until(lambda: running[0] >= TOKENIZED)
            await asyncio.sleep(0.1)
            await cancel(*asking)
        await asyncio.sleep(0.1)
        free.set()
        assert most[0] == TOKENIZED
        with pytest.raises(openai.BadRequestError):
            await complete(site)


async def test_a_client_that_leaves_a_stream_frees_its_session(tmp_path: Path) -> None:
    async with endpoint(tmp_path, EndpointConfig(window=1)) as site:
        stream = await complete(site, **LONG, stream=True)
        async for _ in stream:
            break
        assert len(site.bs_sessions) == site.drafter.places_taken == 1
        await stream.close()
        await until(lambda: site.at_rest)
        assert site.bs.rounds < 1500  # 2000 or more would have been the whole


async def test_a_client_that_leaves_before_the_answer_frees_its_session(tmp_path: Path) -> None:
    async with endpoint(tmp_path, EndpointConfig(window=1)) as site:
        asking = asyncio.create_task(complete(site, **LONG))
        await until(lambda: len(site.bs_sessions) == 1)
        asking.cancel()
        await until(lambda: site.at_rest)
        assert site.bs.rounds < 1500


async def test_a_bounded_number_waits_and_the_rest_is_told_to_come_again(tmp_path: Path) -> None:
    async with endpoint(tmp_path, EndpointConfig(window=1, sequences=1, queue=1)) as site:
        stream = await complete(site, **LONG, stream=True)
        waiting = asyncio.create_task(complete(site, max_tokens=3, temperature=0))
        await until(lambda: site.backend.waiting == 1)
        with pytest.raises(openai.RateLimitError) as caught:
            await complete(site)
        assert caught.value.code == "rate_limit_exceeded" and caught.value.response.headers["retry-after"]
        waiting.cancel()
        await until(lambda: site.backend.waiting == 0)  # who leaves makes room
        waiting = asyncio.create_task(complete(site, max_tokens=3, temperature=0))
        await until(lambda: site.backend.waiting == 1)
        await stream.close()
        assert (await waiting).choices[0].text == text(await own(site, [5, 7, 1], 3))
        await until(lambda: site.at_rest)


async def test_more_prompts_than_places_and_queue_are_refused_for_good_unless_they_are_streamed(tmp_path: Path) -> None:
    """The client was told to try again later, which never helped."""
    async with endpoint(tmp_path, EndpointConfig(window=4, sequences=2, queue=3)) as site:
        prompts, short = [[i, 7, 1] for i in range(6)], {"max_tokens": 3, "temperature": 0}
        with pytest.raises(openai.BadRequestError, match="6 prompts in one request: at most 5 have room"):
            await complete(site, prompts, **short)
        assert len((await complete(site, prompts[:5], **short)).choices) == 5
        chunks = [chunk async for chunk in await complete(site, prompts, **short, stream=True)]
        assert {chunk.choices[0].index for chunk in chunks} == set(range(6))
        await until(lambda: site.at_rest)


async def test_drafting_does_not_hold_up_the_web_server(tmp_path: Path) -> None:
    async with endpoint(tmp_path, PATIENT) as site:
        site.drafter.opening.clear()
        site.drafter.free.clear()
        asking = asyncio.create_task(complete(site, max_tokens=3, temperature=0))
        await until(site.drafter.opening.is_set)
        assert [m.id async for m in site.client.models.list()] == [MODEL]  # while the drafter is stuck
        assert not asking.done()
        asking.cancel()  # in the midst of opening a sequence
        site.drafter.free.set()
        await until(lambda: site.at_rest)


async def test_a_bs_that_is_gone_is_said_so(tmp_path: Path) -> None:
    async with endpoint(tmp_path, EndpointConfig(window=1, timeout_s=1.0)) as site:
        stream = await complete(site, **LONG, stream=True)
        async for _ in stream:
            break
        await site.stop_bs()
        with pytest.raises(openai.APIError, match="did not answer"):
            async for _ in stream:
                pass
        with pytest.raises(openai.InternalServerError) as caught:
            await complete(site, max_tokens=2)
        assert caught.value.status_code == 503 and caught.value.type == "server_error"
        await until(lambda: not site.drafter.places_taken and not site.backend.busy)


async def test_a_bs_that_serves_another_target_is_refused_until_the_old_one_is_back(tmp_path: Path) -> None:
    async with endpoint(tmp_path, PATIENT) as site:
        before = site.bs._intake.offer
        site.bs._intake.offer = dataclasses.replace(before, weights="other")
        with pytest.raises(openai.InternalServerError) as caught:
            await complete(site, max_tokens=2, temperature=0)
        assert caught.value.status_code == 502 and caught.value.code == "backend_error"
        assert "serves another target" in caught.value.message and "\n" not in caught.value.message
        site.bs._intake.offer = before
        answer = await complete(site, max_tokens=2, temperature=0)
        assert answer.choices[0].text == text(await own(site, [5, 7, 1], 2))
        await until(lambda: site.at_rest)


async def test_a_bs_without_room_is_asked_again(tmp_path: Path) -> None:
    async with endpoint(tmp_path, PATIENT) as site:
        site.bs_sessions.total = 0
        asking = asyncio.create_task(complete(site, max_tokens=2, temperature=0))
        await until(lambda: site.backend.busy == 1)
        site.bs_sessions.total = 1024  # it was told to come again, and does
        assert (await asking).choices[0].text == text(await own(site, [5, 7, 1], 2))


async def test_stopping_ends_streams_with_an_error(tmp_path: Path) -> None:
    async with endpoint(tmp_path, EndpointConfig(window=1, sequences=1)) as site:
        stream = await complete(site, **LONG, stream=True)
        waiting = asyncio.create_task(complete(site))
        await until(lambda: site.backend.waiting == 1)
        await site.backend.close()
        with pytest.raises(openai.APIError, match="stopping"):
            async for _ in stream:
                pass
        with pytest.raises(openai.InternalServerError, match="stopping"):
            await waiting
        await until(lambda: site.at_rest)
