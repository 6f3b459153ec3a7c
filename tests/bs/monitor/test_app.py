"""The live view's web application: who is let in, what the page may do, and what it looks like to everybody."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import re
from typing import Any

import httpx
import pytest

from testbed.bs.monitor import app as monitor_app
from testbed.bs.monitor.app import PAGE, SCRIPTS, STYLES, Events, make_app, read_page
from testbed.bs.monitor.client import CLOSING, SERVING, MonitoredStation
from testbed.bs.monitor.feed import MOST_VIEWERS, Feed
from testbed.bs.monitor.process import check_monitor, monitor_address
from testbed.config import ServeConfig
from testbed.errors import BadInput
from tests.support.monitor import changed, connected, serving

TOKEN = "s3cret"


async def get(
    path: str, token: str | None = None, station: MonitoredStation | None = None, **headers: str
) -> httpx.Response:
    """The answer to a request; `_` in the names of headers stands for `-`."""
    async with contextlib.AsyncExitStack() as stack:
        station = station or (await stack.enter_async_context(connected()))[1]
        app = make_app(station, Feed(station), token, "lab.example")
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:9100")
        await stack.enter_async_context(client)
        return await client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})


# ---------------------------------------------------------------- who is let in


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((name, 200) for name in ("localhost", "LOCALHOST:9100", "127.0.0.1:9100", "[::1]:9100", "lab.example:80")),
        *((name, 421) for name in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:9100", "")),
    ],
)
async def test_without_a_token_only_names_of_this_machine_are_answered(host: str, status: int) -> None:
    assert (await get("/healthz", host=host)).status_code == status


async def test_with_a_token_any_name_may_be_used_for_it_is_in_no_cookie() -> None:
    assert (await get("/", TOKEN, host="edge.example")).status_code == 200
    assert (await get("/metrics", TOKEN, host="edge.example")).status_code == 401


@pytest.mark.parametrize("method", ["POST", "HEAD", "OPTIONS", "TRACE", "CONNECT"])
async def test_updates_are_only_read(method: str) -> None:
    """CONNECT was answered 200, and its stream ended in a traceback."""
    async with connected() as (_, station):
        feed = Feed(station)
        app = make_app(station, feed, None, "localhost")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:9100") as client:
            answer = await client.request(method, "/events")
        assert (answer.status_code, answer.headers["allow"], len(feed.viewers)) == (405, "GET", 0)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec_fetch_site": "same-origin", "origin": "http://localhost:9100"}, 200),
        ({"sec_fetch_site": "none"}, 200),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, 200),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, 403),
        ({"sec_fetch_site": "same-site", "sec_fetch_mode": "cors"}, 403),
        ({"origin": "http://localhost:9101"}, 403),
        ({"origin": "null"}, 403),
    ],
)
async def test_other_sites_are_not_answered(headers: dict[str, str], status: int) -> None:
    assert (await get("/metrics", **headers)).status_code == status


@pytest.mark.parametrize("path", ["/metrics", "/events"])
@pytest.mark.parametrize("given", [None, "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"bearer {TOKEN}", "Bearer \u00fc"])
async def test_what_is_known_is_for_those_who_know_the_token(path: str, given: str | None) -> None:
    headers: dict[str, Any] = {} if given is None else {"authorization": given.encode()}
    answer = await get(path, TOKEN, **headers)
    assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/metrics", "/events", "/healthz", "/readyz"])
@pytest.mark.parametrize("more", ["%0A", "%0D", "%0D%0A", "/", "%2F", "//", "%00", ";x", "%20"])
async def test_what_is_like_a_path_is_no_way_around_the_token(path: str, more: str) -> None:
    """A route's pattern matches before a final newline, too: /events%0A told strangers the outputs of all UEs."""
    assert (await get(path + more, TOKEN)).status_code == 401


async def test_the_token_opens_metrics_and_health_needs_none() -> None:
    assert (await get("/metrics", TOKEN, authorization=f"Bearer {TOKEN}")).status_code == 200
    assert (await get("/healthz", TOKEN)).text == "ok\n"
    assert (await get("/readyz", TOKEN)).status_code == 503


# ---------------------------------------------------------------- health


async def status(path: str, station: MonitoredStation) -> tuple[int, str]:
    answer = await get(path, station=station)
    return answer.status_code, answer.text


async def test_ready_is_who_serves() -> None:
    async with connected() as (_, station):
        assert await status("/readyz", station) == (503, "loading\n")
        assert await status("/healthz", station) == (200, "ok\n")
    async with serving() as (_, monitor, station):
        assert await status("/readyz", station) == (200, "serving\n")
        assert await status("/healthz", station) == (200, "ok\n")
        await monitor.detach()
        await changed(station, SERVING, CLOSING)
        assert await status("/readyz", station) == (503, "closing\n")
        assert await status("/healthz", station) == (200, "ok\n")


async def test_a_base_station_that_stands_still_is_neither_ready_nor_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.bs.monitor.client.ASK_S", 0.05)
    async with serving() as (_, monitor, station):
        assert monitor._answering is not None
        monitor._answering.cancel()
        assert await status("/metrics", station) == (503, "the server does not answer\n")
        assert await status("/readyz", station) == (503, "the server does not answer\n")
        assert await status("/healthz", station) == (503, "stalled\n")


async def test_a_base_station_whose_background_task_fails_is_healthy_but_not_ready() -> None:
    async with serving() as (served, _, station):
        served.failing.append("connection limits")
        assert await status("/readyz", station) == (503, "failing: connection limits\n")
        assert await status("/healthz", station) == (200, "ok\n")


# ---------------------------------------------------------------- streams


async def test_a_viewer_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_app, "STALL_S", 0.1)
    sent: list[str] = []

    async def receive() -> dict[str, Any]:
        if not sent:
            return {"type": "http.request"}
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message["type"])
        if message["type"] == "http.response.body":
            await asyncio.sleep(60)

    async with serving() as (_, _, station):
        feed = Feed(station)
        running = asyncio.create_task(feed.run())
        await asyncio.wait_for(Events(feed)({"type": "http", "method": "GET"}, receive, send), 20)
        assert sent == ["http.response.start", "http.response.body"] and not feed.viewers
        running.cancel()


async def test_one_viewer_too_many_is_told_so() -> None:
    async with connected() as (_, station):
        feed = Feed(station)
        viewers = [feed.viewer() for _ in range(MOST_VIEWERS)]
        for viewer in viewers:
            viewer.__enter__()
        app = make_app(station, feed, None, "localhost")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            assert (await client.get("/events")).status_code == 503
        for viewer in viewers:
            viewer.__exit__(None, None, None)


# ---------------------------------------------------------------- the page


async def test_the_page_may_run_its_own_script_and_nothing_else() -> None:
    answer = await get("/")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    (script,) = re.findall(r"<script>(.*)</script>", answer.text, re.DOTALL)
    (style,) = re.findall(r"<style>(.*)</style>", answer.text, re.DOTALL)
    for text, allowed in ((script, policy["script-src"]), (style, policy["style-src"])):
        assert allowed == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in answer.headers


def test_the_page_is_one_file_that_needs_nothing_from_elsewhere() -> None:
    html = read_page().html
    assert len(html) < 60_000
    assert not re.findall(r"(?:src|href)=\"(?!data:|#|metrics\")[^\"]*\"", html)
    assert set(re.findall(r"https?://[^'\" )]+", html)) <= {"http://www.w3.org/2000/svg"}


def test_nothing_that_comes_from_a_ue_can_become_markup() -> None:
    html = read_page().html
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "onclick="):
        assert word not in html


def luminance(color: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_contrast_is_that_of_wcag_aa_light_and_dark() -> None:
    css = (monitor_app.importlib.resources.files("testbed.bs.monitor") / PAGE / STYLES[0]).read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w{6});", block)) for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    )
    assert set(light) == set(dark) >= {"draft", "link", "queue", "verify", "hidden", "judge"}
    for theme in (light, dark):
        for text in ("text", "muted", "accent", "good", "bad"):
            for ground in ("panel", "back", "chosen"):
                assert contrast(theme[text], theme[ground]) >= 4.5, (text, ground, theme[text])
        assert contrast(theme["text"], theme["kept"]) >= 4.5
        for part in ("draft", "link", "queue", "verify", "hidden", "judge"):
            assert contrast(theme[part], theme["panel"]) >= 3, (part, theme[part])


def test_every_part_of_the_page_is_in_it() -> None:
    folder = monitor_app.importlib.resources.files("testbed.bs.monitor") / PAGE
    assert {entry.name for entry in folder.iterdir()} == {"page.html", *STYLES, *SCRIPTS}


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9100", ("127.0.0.1", 9100)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:9100", ("::1", 9100)),
        (":9100", ("", 9100)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert monitor_address(text) == address


@pytest.mark.parametrize("text", ["", "localhost", "localhost:", "a:b", "::1:9100", "1.2.3.4:65536", "h:-1", "h:9²"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(BadInput):
        monitor_address(text)


@pytest.mark.parametrize("options", [{"monitor_text": True}, {"monitor_token_file": "key"}])
def test_options_of_a_live_view_without_one(options: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="goes with --monitor"):
        check_monitor(ServeConfig(**options))
    check_monitor(ServeConfig(monitor="9100", **options))
