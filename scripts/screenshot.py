"""Makes docs/playground.png and docs/playground-dark.png: the playground after a real answer of the default pair.

python -m scripts.screenshot
"""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, expect
from tests.browser import chromium, page_at, relaygen_serve

QUESTION = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May."
    " How many clips did Natalia sell altogether in April and May?"
)
DOCS = Path(__file__).parents[1] / "docs"
WAIT_MS = 300_000


def take(browser: Browser, url: str) -> None:
    with page_at(browser, url, viewport={"width": 1120, "height": 400}, color_scheme="light") as page:
        page.get_by_label("Question").fill(QUESTION)
        page.get_by_label("Temperature").fill("0")
        page.get_by_label("Compare with large only").check()
        page.get_by_label("Question").press("Control+Enter")
        expect(page.locator(".answer")).to_have_count(2, timeout=WAIT_MS)
        expect(page.get_by_role("button", name="Stop")).to_be_disabled(timeout=WAIT_MS)
        page.locator("h1").click()  # takes the focus from the field
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=DOCS / "playground.png", full_page=True)
        page.get_by_role("button", name="Dark").click()
        page.locator("h1").click()
        page.screenshot(path=DOCS / "playground-dark.png", full_page=True)


def main() -> None:
    with relaygen_serve() as url, chromium() as browser:
        take(browser, url)
    for picture in sorted(DOCS.glob("playground*.png")):
        print(f"{picture} {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
