"""A server in a thread, and a real browser that looks at it. The browser is the system's own; nothing is downloaded."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

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


@contextmanager
def relaygen_serve(*args: str) -> Generator[str]:
    """The address of `relaygen serve` in a process of its own."""
    command = [sys.executable, "-m", "relaygen", "serve", "--port", "0", *args]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as sink:
            process = subprocess.Popen(command, stderr=sink)
        try:
            yield _address(process, log)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: subprocess.Popen[bytes], log: Path, limit_s: float = 300) -> str:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r" at (http://\S+)\n", log.read_text()):
            return found[1] + "/"
        time.sleep(0.1)
    raise AssertionError(f"relaygen serve did not start: {log.read_text()[-2000:]}")
