"""A server in a thread, and a real browser that looks at it. The browser is the system's own; nothing is downloaded."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright
from starlette.types import ASGIApp

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# What the policy refuses is told to the page only, so the page passes it on.
_REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy violated: ${event.violatedDirective} ${event.blockedURI}`));
"""


def find_chromium() -> str:
    for name in _NAMES:
        if path := shutil.which(name):
            return path
    pytest.skip(f"NOT TESTED: no browser found ({', '.join(_NAMES)}); on Debian: apt-get install chromium")


@contextmanager
def chromium() -> Generator[Browser]:
    path = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_at(browser: Browser, url: str, *, expected_errors: int = 0, **context: object) -> Generator[Page]:
    """A fresh tab at `url`. Fails at the end if the console told of other than `expected_errors` errors (a response that
    is no 2xx is one)."""
    tab = browser.new_context(**context)  # pyright: ignore[reportArgumentType]
    tab.set_default_timeout(15_000)
    try:
        page = tab.new_page()
        errors: list[str] = []

        def note(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                errors.append(message.text)

        page.on("console", note)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.add_init_script(_REPORT_VIOLATIONS)
        page.goto(url)
        yield page
        assert len(errors) == expected_errors, errors
    finally:
        tab.close()


@contextmanager
def serving(app: ASGIApp) -> Generator[str]:
    """The address of `app`, served until the end of the block."""
    config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(10)
