"""A headless Chromium: the machine's own, driven by Playwright."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Locator, LocatorAssertions, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def chromium() -> str:
    """Path of Chromium; without one, tests are skipped, except in CI, where they fail."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None or importlib.util.find_spec("playwright") is None:
        lack = "Playwright here: make setup" if found else "Chromium here: apt install chromium"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no {lack}")
    return found


def expect(locator: Locator) -> LocatorAssertions:
    """Playwright's assertions, which wait."""
    from playwright.async_api import expect as assertions

    return assertions(locator)


@contextlib.asynccontextmanager
async def page(url: str, **how: Any) -> AsyncIterator[tuple[Page, list[str]]]:
    """A page of a new browser, and its errors so far: of scripts, refusals, failed requests.

    Args:
        how: of the browser's context, such as color_scheme.
    """
    executable = chromium()
    from playwright.async_api import async_playwright

    wrong: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=executable, args=list(FLAGS), timeout=120_000)
        try:
            shown = await (await browser.new_context(**how)).new_page()
            shown.set_default_timeout(60_000)
            shown.on("pageerror", lambda error: wrong.append(str(error)))
            shown.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
            await shown.goto(url)
            yield shown, wrong
        finally:
            await browser.close()
