"""The page at `/`, in a real browser: against a gateway that plays events, faults among them."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from relaygen.api import Relay
from relaygen.config import Settings
from relaygen.engines.scripted import ScriptedEngine
from relaygen.gateway.app import create_app
from relaygen.gateway.auth import Keys
from relaygen.gateway.schema import Extension
from relaygen.profile import Profile
from relaygen.types import Author, Reason
from tests.browser import chromium, page_at, relaygen_serve, serving
from tests.fakes_gateway import FakeGateway, error, finish, switch, text

SOURCES = {file.name: file for file in files("relaygen.gateway.playground").iterdir() if file.is_file()}
HOSTILE = '<script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'"><b>bold</b>'

# Contrast of an element's text with what is behind it (WCAG 2.1, relative luminance).
CONTRAST = """
(element) => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  let behind = element;
  const ground = () => parse(getComputedStyle(behind).backgroundColor);
  while (behind.parentElement && ground()[3] === 0) behind = behind.parentElement;
  const [a, b] = [luminance(parse(getComputedStyle(element).color)), luminance(ground())].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}
"""


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def server() -> Generator[tuple[FakeGateway, str]]:
    gateway = FakeGateway()
    with serving(gateway.app()) as url:
        yield gateway, url


@pytest.fixture
def gateway(server: tuple[FakeGateway, str]) -> FakeGateway:
    gateway, _ = server
    gateway.__dict__.update(FakeGateway().__dict__)
    return gateway


@pytest.fixture
def url(server: tuple[FakeGateway, str]) -> str:
    return server[1]


def ask(page: Page, question: str = "What is 2 + 2?") -> None:
    page.get_by_label("Question").fill(question)
    page.get_by_role("button", name="Ask").click()


def wait_for_end(page: Page) -> None:
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()


# --- the files


def test_files_are_small_and_never_make_markup_of_text() -> None:
    sources = {name: file.read_text() for name, file in SOURCES.items() if not name.endswith(".py")}
    scripts = "\n".join(text for name, text in sources.items() if name.endswith(".js"))
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|Function\(", scripts
    )
    assert not re.search(
        r"\b(https?:)?//\w+\.", re.sub(r"http://www\.w3\.org\S*", "", "".join(sources.values()))
    )
    assert "style=" not in sources["index.html"]
    assert not re.search(r"\son\w+=", sources["index.html"])
    assert sum(text.count("\n") for text in sources.values()) < 900


def test_every_policy_and_every_reason_has_its_words() -> None:
    page = SOURCES["index.html"].read_text()
    select = page[page.index('id="policy"') : page.index("</select>", page.index('id="policy"'))]
    for policy in re.findall(r'value="(\w+)"', select):
        Extension(policy=policy)  # the gateway takes it
    words = SOURCES["words.js"].read_text()
    assert set(re.findall(r"^  (\w+): \"", words, re.MULTILINE)) == {reason.value for reason in Reason}


def test_all_files_are_served_with_type_policy_and_cache() -> None:
    with TestClient(FakeGateway().app()) as client:
        page = client.get("/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        served = {
            name: client.get(f"/playground/{name}") for name in SOURCES if not name.endswith((".py", ".html"))
        }
        kinds = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
        for name, response in served.items():
            assert response.status_code == 200, name
            assert response.headers["content-type"].split(";")[0] == kinds[name.rpartition(".")[2]]
            assert response.content == SOURCES[name].read_bytes()
        for response in (page, *served.values()):
            policy = response.headers["content-security-policy"]
            assert policy.startswith(
                "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
            )
            assert "unsafe" not in policy
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["cache-control"] == "no-cache"
        again = client.get("/", headers={"If-None-Match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["__init__.py", "nothing.js", "..%2f__init__.py", "index.html%00"])
def test_no_other_file_is_served(name: str) -> None:
    with TestClient(FakeGateway().app()) as client:
        assert client.get(f"/playground/{name}").status_code == 404


# --- an answer


def test_the_text_shows_who_wrote_it(browser: Browser, gateway: FakeGateway, url: str) -> None:
    with page_at(browser, url) as page:
        page.get_by_label("Max tokens").fill("50")
        page.get_by_label("Temperature").fill("0")
        ask(page)
        wait_for_end(page)
        assert page.locator(".reasoning .text").evaluate("e => e.textContent") == (
            "The sum is easy. So, let me add.\nGood."
        )
        assert page.locator(".content .text").evaluate("e => e.textContent") == "It is 4."
        assert page.locator(".text .large").all_text_contents() == ["The sum is easy. So, let", "Good."]
        assert page.locator(".text .small").all_text_contents() == [" me add.\n", "It is 4."]
        assert page.locator("mark.cue").all_text_contents() == ["So,"]
        hand_overs = page.locator(".hand-over")
        assert [hand_overs.nth(i).get_attribute("aria-label") for i in range(hand_overs.count())] == [
            "small model, after the cue “So,”",
            "large model, after the end of its sentence",
        ]
        expect(page.locator(".meter")).to_have_text(
            "6 tokens · 3.0 tokens/s · 33 % by the small model · 2.0 s"
        )
        summary = page.locator(".summary").inner_text().replace("\n", " ")
        assert summary == (
            "Large 4 tokens Small 2 tokens, 33 % Hand-overs 3 Time 2.0 s, 3.0 tokens/s Ended by the end of the text"
        )
    assert gateway.bodies == [
        {
            "model": "relaygen",
            "messages": [{"role": "user", "content": "What is 2 + 2?"}],
            "relaygen": {"segments": True},
            "max_tokens": 50,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_model_and_policy_are_chosen(browser: Browser, gateway: FakeGateway, url: str) -> None:
    with page_at(browser, url) as page:
        model = page.get_by_label("Model", exact=True)
        expect(model.locator("option")).to_have_text(["relaygen", "relaygen:generic"])
        model.select_option("relaygen:generic")
        page.get_by_label("Who writes").select_option("phase")
        ask(page)
        wait_for_end(page)
    assert gateway.bodies[0]["model"] == "relaygen:generic"
    assert gateway.bodies[0]["relaygen"] == {"segments": True, "policy": "phase"}


def test_large_only_is_asked_afterwards_and_stands_beside(
    browser: Browser, gateway: FakeGateway, url: str
) -> None:
    with page_at(browser, url, viewport={"width": 1200, "height": 800}) as page:
        page.get_by_label("Compare with large only").check()
        ask(page)
        wait_for_end(page)
        expect(page.get_by_role("heading", level=2)).to_have_text(["Relay", "Large only"])
        boxes = [page.locator(".answer").nth(i).bounding_box() for i in range(2)]
        assert boxes[0]
        assert boxes[1]
        assert boxes[0]["y"] == boxes[1]["y"]
        assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
        assert page.locator(".answer").nth(1).locator(".text .small").count() == 0
    assert [body["relaygen"].get("policy") for body in gateway.bodies] == [None, "large"]


def test_what_a_model_writes_never_runs(browser: Browser, gateway: FakeGateway, url: str) -> None:
    gateway.events = [
        text("large", HOSTILE, reasoning=True),
        switch("large", "small", "cue", HOSTILE),
        text("small", HOSTILE),
        finish(1, 1, warnings=[HOSTILE]),
    ]
    with page_at(browser, url) as page:
        ask(page, HOSTILE)
        wait_for_end(page)
        for place in (".reasoning .text", ".content .text", ".summary"):
            assert HOSTILE in (page.locator(place).text_content() or "")
        assert page.locator("#answers :is(script, img, b)").count() == 0
        assert page.title() == "RelayGen playground"
    gateway.events = [error(HOSTILE)]
    with page_at(browser, url) as page:
        ask(page)
        expect(page.locator(".answer .error")).to_have_text(HOSTILE)


def test_the_timeline_tells_of_each_turn(browser: Browser, url: str, gateway: FakeGateway) -> None:
    gateway.events = [
        *(text("large", f"Line {i}.\n") for i in range(60)),
        text("large", "So,"),
        switch("large", "small", "cue", "So,", tokens=64),  # some chunks were two tokens
        *(text("small", f" word{i}") for i in range(30)),
        finish(61, 30, reason="length", warnings=["the context is full"]),
    ]
    with page_at(browser, url) as page:
        ask(page)
        wait_for_end(page)
        bars = page.get_by_role("toolbar").get_by_role("button")
        expect(bars).to_have_count(2)
        widths = [box["width"] for box in (bars.nth(i).bounding_box() for i in range(2)) if box]
        assert widths[0] / widths[1] == pytest.approx(64 / 30, rel=0.05)
        caption = page.locator(".turn")
        expect(caption).to_have_text("2 turns, 1 hand-over")
        bars.nth(0).hover()
        expect(caption).to_have_text("Turn 1: large, 64 tokens, ended by the cue “So,”")
        bars.nth(1).hover()
        expect(caption).to_have_text("Turn 2: small, about 30 tokens, ended by the token limit")
        page.mouse.move(0, 0)
        expect(caption).to_have_text("2 turns, 1 hand-over")
        expect(page.locator(".summary")).to_contain_text("the context is full")

        last = page.get_by_text("word29")
        page.evaluate("scrollTo(0, 0)")
        expect(last).not_to_be_in_viewport()
        bars.nth(1).click()
        expect(last).to_be_in_viewport()


# --- while it is written


def test_stop_keeps_what_was_written_and_leaves_the_server(
    browser: Browser, gateway: FakeGateway, url: str
) -> None:
    gateway.events, gateway.hangs = gateway.events[:3], True
    for way in ("button", "Escape"):
        with page_at(browser, url) as page:
            ask(page)
            expect(page.locator(".text .large")).to_have_text("The sum is easy. So, let")
            expect(page.get_by_role("status")).to_have_text("Writing. Escape stops.")
            expect(page.locator(".meter")).to_contain_text("3 tokens")
            if way == "button":
                page.get_by_role("button", name="Stop").click()
            else:
                page.keyboard.press("Escape")
            expect(page.locator(".note")).to_have_text("Stopped")
            wait_for_end(page)
            expect(page.get_by_role("status")).to_have_text("Relay: Stopped")
            expect(page.locator(".answer .error")).to_be_hidden()
            expect(page.locator(".text .large")).to_have_text("The sum is easy. So, let")
    deadline = time.monotonic() + 5
    while gateway.num_left < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert gateway.num_left == 2


def test_stopping_the_first_answer_does_not_begin_the_second(
    browser: Browser, gateway: FakeGateway, url: str
) -> None:
    gateway.events, gateway.hangs = gateway.events[:3], True
    with page_at(browser, url) as page:
        page.get_by_label("Compare with large only").check()
        ask(page)
        expect(page.locator(".text .large")).to_be_visible()
        page.keyboard.press("Escape")
        wait_for_end(page)
        expect(page.locator(".answer")).to_have_count(1)
    assert len(gateway.bodies) == 1


def test_screen_readers_are_told_twice_not_token_by_token(
    browser: Browser, url: str, gateway: FakeGateway
) -> None:
    with page_at(browser, url) as page:
        page.evaluate(
            """() => {
              window.told = [];
              const status = document.getElementById("status");
              new MutationObserver(() => told.push(status.textContent)).observe(status, { childList: true });
            }"""
        )
        ask(page)
        wait_for_end(page)
        assert page.evaluate("told") == [
            "Writing. Escape stops.",
            "Relay: Complete: 6 tokens · 3.0 tokens/s · 33 % by the small model · 2.0 s",
        ]
        live = page.locator("[aria-live], [role=status], [role=alert]")
        for i in range(live.count()):
            assert live.nth(i).locator(".text").count() == 0
        assert page.locator(".answer[aria-busy]").count() == 0


# --- errors


@pytest.mark.parametrize(
    ("status", "message"), [(400, "max_tokens: too many"), (429, "busy: try again"), (500, "our fault")]
)
def test_a_refusal_is_told_in_the_words_of_the_server(
    browser: Browser, gateway: FakeGateway, url: str, status: int, message: str
) -> None:
    gateway.refusal = status, message
    with page_at(browser, url, expected_errors=1) as page:
        ask(page)
        expect(page.get_by_role("alert")).to_have_text(message)
        wait_for_end(page)
        expect(page.get_by_role("button", name="Ask")).to_be_enabled()


def test_an_error_on_the_way_keeps_what_was_written(browser: Browser, gateway: FakeGateway, url: str) -> None:
    gateway.events = [*gateway.events[:5], error("the large engine failed: connection refused")]
    with page_at(browser, url) as page:
        ask(page)
        expect(page.get_by_role("alert")).to_have_text("the large engine failed: connection refused")
        expect(page.locator(".reasoning")).to_contain_text("So, let me add.")
        expect(page.locator(".summary")).to_contain_text("3 tokens")


def test_a_stream_without_a_finish_is_an_error(browser: Browser, gateway: FakeGateway, url: str) -> None:
    gateway.events = gateway.events[:5]
    with page_at(browser, url) as page:
        ask(page)
        expect(page.get_by_role("alert")).to_have_text("The connection ended before the answer was complete")


def test_a_server_that_is_gone(browser: Browser) -> None:
    with serving(FakeGateway().app()) as url, page_at(browser, url, expected_errors=1) as page:
        expect(page.get_by_label("Model", exact=True).locator("option")).to_have_count(2)
        page.route("**/v1/chat/completions", lambda route: route.abort("connectionrefused"))
        ask(page)
        expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached")


def test_the_key_is_sent_and_kept_for_the_tab_only(browser: Browser, gateway: FakeGateway, url: str) -> None:
    gateway.api_key = "sesame"
    with page_at(browser, url, expected_errors=2) as page:
        expect(page.get_by_role("alert")).to_contain_text("a key is needed")
        ask(page)
        expect(page.locator(".answer .error")).to_contain_text("a key is needed")
        expect(page.get_by_label("API key")).to_be_focused()
        page.keyboard.type("sesame")
        page.keyboard.press("Tab")
        expect(page.locator("#notice")).to_be_hidden()
        ask(page)
        wait_for_end(page)
        expect(page.locator(".content")).to_contain_text("It is 4.")
        page.reload()
        expect(page.get_by_label("API key")).to_have_value("sesame")
        assert page.evaluate("JSON.stringify(localStorage)") == "{}"
        assert page.context.cookies() == []


# --- for everybody


def test_by_keyboard_only(browser: Browser, gateway: FakeGateway, url: str) -> None:
    with page_at(browser, url) as page:
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name="Dark")).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.get_by_label("Question")).to_be_focused()
        page.keyboard.type("one\ntwo")
        page.keyboard.press("Control+Enter")
        wait_for_end(page)
        assert gateway.bodies[0]["messages"][0]["content"] == "one\ntwo"
        for name in ("Model", "Who writes", "Max tokens", "Temperature", "API key"):
            page.keyboard.press("Tab")
            expect(page.get_by_label(name, exact=True)).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name="Ask")).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("Space")
        expect(page.get_by_label("Compare with large only")).to_be_checked()
        page.keyboard.press("Tab")  # into the timeline: one stop, then arrows
        bars = page.get_by_role("toolbar").get_by_role("button")
        expect(bars.nth(0)).to_be_focused()
        expect(page.locator(".turn")).to_contain_text("Turn 1: large, about 3 tokens")
        page.keyboard.press("ArrowRight")
        expect(bars.nth(1)).to_be_focused()
        expect(page.locator(".turn")).to_contain_text(
            "Turn 2: small, about 1 token, ended by the end of its sentence"
        )
        page.keyboard.press("End")
        expect(bars.nth(3)).to_be_focused()
        page.keyboard.press("ArrowRight")
        expect(bars.nth(3)).to_be_focused()
        page.keyboard.press("Home")
        expect(bars.nth(0)).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.locator("summary")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator(".reasoning .text")).to_be_hidden()
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Enter")  # shows the turn, though its text is folded away
        expect(page.locator(".reasoning .text")).to_be_visible()


def test_the_focus_stays_when_the_buttons_change(browser: Browser, gateway: FakeGateway, url: str) -> None:
    gateway.events, gateway.hangs = gateway.events[:3], True
    with page_at(browser, url) as page:
        page.get_by_label("Question").fill("?")
        page.get_by_role("button", name="Ask").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Stop")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Ask")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read(browser: Browser, gateway: FakeGateway, url: str, scheme: Any) -> None:
    gateway.events.insert(-1, text("large", " Yes."))
    gateway.events[-1]["relaygen"]["warnings"] = ["careful"]
    with page_at(browser, url, color_scheme=scheme) as page:
        ask(page)
        wait_for_end(page)
        seen = (
            ".text .large",
            ".text .small",
            ".cue",
            ".legend",
            ".legend .small",
            ".meter",
            ".turn",
            "label",
            "dt",
            "dd",
        )
        for selector in (*seen, "h1", "h2", "h3", "summary", "#send", "#theme", "textarea", ".hint"):
            assert page.locator(selector).first.evaluate(CONTRAST) >= 4.5, selector
        large, small = (page.locator(f".text .{author}").first for author in ("large", "small"))
        assert "underline" not in large.evaluate("e => getComputedStyle(e).textDecorationLine")
        assert "underline" in small.evaluate("e => getComputedStyle(e).textDecorationLine")


def test_the_button_changes_the_theme_and_the_choice_is_kept(
    browser: Browser, gateway: FakeGateway, url: str
) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with page_at(browser, url, color_scheme="light") as page:
        button = page.get_by_role("button", name="Dark")
        expect(button).to_have_attribute("aria-pressed", "false")
        light = page.evaluate(ground)
        button.click()
        expect(button).to_have_attribute("aria-pressed", "true")
        dark = page.evaluate(ground)
        assert dark != light
        page.reload()
        assert page.evaluate(ground) == dark
        button.click()
        assert page.evaluate(ground) == light


@pytest.mark.parametrize("width", [320, 390, 768])
def test_narrow_screens_need_no_scrolling_sideways(
    browser: Browser, gateway: FakeGateway, url: str, width: int
) -> None:
    gateway.events.insert(-1, text("large", "x" * 300))
    with page_at(browser, url, viewport={"width": width, "height": 700}) as page:
        page.get_by_label("Compare with large only").check()
        ask(page)
        wait_for_end(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


# --- long answers


def test_a_long_answer_makes_few_elements_and_the_page_follows(
    browser: Browser, gateway: FakeGateway, url: str
) -> None:
    tokens = [text("large", "\n" if i % 20 == 19 else f" w{i}") for i in range(8000)]
    gateway.events = [*tokens, finish(8000, 0)]
    with page_at(browser, url) as page:
        ask(page)
        wait_for_end(page)
        lines = page.locator(".text .line")
        expect(lines).to_have_count(400)
        assert page.locator(".text .large").count() == 400
        assert (
            page.evaluate(
                """() => {
              const texts = document.createTreeWalker(document.querySelector(".content .text"), NodeFilter.SHOW_TEXT);
              let count = 0;
              while (texts.nextNode()) count++;
              return count;
            }"""
            )
            == 400
        )
        expect(page.locator(".summary")).to_be_in_viewport()


# --- the real gateway


class ScriptedRelay(Relay):
    def __init__(self, script: str, profile: Profile) -> None:
        super().__init__("http://large", "http://small", profile=profile)
        self._script = script.split("|")

    async def _open(self, author: Author) -> ScriptedEngine:
        return ScriptedEngine(self._script, name=author)


def real_gateway(relay: Relay, *keys: str) -> Starlette:
    routes: list[Mount] = []

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with relay:
            routes.append(Mount("/", create_app(relay, Settings(), Keys(keys))[0]))
            app.router.routes[:] = routes
            yield

    app = Starlette(lifespan=lifespan)
    return app


def test_the_real_gateway_over_scripted_models(browser: Browser) -> None:
    profile = Profile.model_validate(
        {"name": "thinking", "cues": ["Therefore,"], "think": {"open": "<think>", "close": "</think>"}}
    )
    script = (
        "<think>|\n|Let| me| see|.| Therefore|,| it| is| 5|.\n|I| am| sure|.|</think>|\n\n|The| sum| is| 5|."
    )
    app = real_gateway(ScriptedRelay(script, profile), "a long key")
    with serving(app) as url, page_at(browser, url, expected_errors=1) as page:
        expect(page.get_by_role("alert")).to_contain_text("the API key is missing or wrong")
        page.get_by_label("API key").fill("a long key")
        page.keyboard.press("Tab")
        expect(page.get_by_label("Model", exact=True).locator("option")).to_contain_text(
            ["relaygen", "relaygen:"]
        )
        page.get_by_label("Compare with large only").check()
        ask(page)
        wait_for_end(page)
        relayed, alone = page.locator(".answer").all()
        assert relayed.locator(".reasoning .text").evaluate("e => e.textContent") == (
            "Let me see. Therefore, it is 5.\nI am sure."
        )
        assert relayed.locator(".content .text").evaluate("e => e.textContent") == "The sum is 5."
        assert relayed.locator(".text .small").all_text_contents() == [" it is 5.\n", "The sum is 5."]
        assert relayed.locator("mark.cue").all_text_contents() == ["Therefore,"]
        expect(relayed.locator(".turn")).to_have_text("4 turns, 3 hand-overs")
        expect(relayed.locator(".summary")).to_contain_text("the end of the text")
        assert alone.locator(".text .small").count() == 0
        assert alone.locator(".content .text").evaluate("e => e.textContent") == "The sum is 5."


@pytest.mark.weights
@pytest.mark.slow
def test_two_real_models_through_the_real_gateway(browser: Browser, smollm2: Path) -> None:
    pair = ("--large", str(smollm2), "--small", str(smollm2), "--context", "1024", "--slots", "1")
    with relaygen_serve(*pair, "--profile", "qwen2.5-coder-1.5b+0.5b") as url, page_at(browser, url) as page:
        expect(page.get_by_label("Model", exact=True).locator("option").first).to_have_text("relaygen")
        page.get_by_label("Temperature").fill("0")
        page.get_by_label("Max tokens").fill("60")
        ask(page, "Repeat exactly: So, we begin. Therefore, we end.")
        expect(page.get_by_role("status")).to_contain_text("Complete", timeout=60_000)
        written = page.locator(".summary").inner_text()
        bars = page.get_by_role("toolbar").get_by_role("button")
        counted = [
            re.search(r"(\d+) token", bars.nth(i).get_attribute("aria-label") or "")
            for i in range(bars.count())
        ]
        total = sum(int(found[1]) for found in counted if found)
        large, small = (int(found) for found in re.findall(r"(\d+) tokens?", written)[:2])
        assert 0 < total <= large + small  # a chunk can hold several tokens

        page.get_by_label("Max tokens").fill("900")
        page.get_by_label("Temperature").fill("1.5")
        ask(page, "Tell a very long story.")
        expect(page.locator(".meter")).to_contain_text(re.compile(r"[1-9]\d* tokens"), timeout=60_000)
        page.keyboard.press("Escape")
        expect(page.locator(".note")).to_have_text("Stopped")
