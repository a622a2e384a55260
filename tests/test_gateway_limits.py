"""Keys, limits, queues, clients that go away or do not read, and the stop: over real sockets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from relaygen.errors import UserError
from relaygen.gateway import auth
from tests.serving import Player, Served, ask, events_of, serving

KEYS = ("first-key-123", "second-key-456")
ENDLESS = [f" w{i}" for i in range(20_000)]


async def eventually(condition: Callable[[], bool], within_s: float = 10) -> None:
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, "it did not come about"
        await asyncio.sleep(0.01)


# --- who may ask


async def test_keys() -> None:
    async with serving(keys=KEYS) as gateway:
        for header, status in (
            (None, 401),
            ("Bearer wrong-key-999", 401),
            (KEYS[0], 401),
            (f"Basic {KEYS[0]}", 401),
            *((f"Bearer {key}", 200) for key in KEYS),
        ):
            headers = {"Authorization": header} if header else {}
            async with gateway.http.get(gateway.url + "/v1/models", headers=headers) as response:
                assert response.status == status
                if status == 401:
                    assert (await response.json())["error"]["code"] == "invalid_api_key"
        async with gateway.http.get(gateway.url + "/health") as response:
            assert response.status == 200


def test_where_keys_come_from(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nfrom-the-file\n\n")
    keys = auth.load(file, {auth.VARIABLE: "from-environment, another-one-12"}, host="0.0.0.0", auth=None)
    for key in ("from-the-file", "from-environment", "another-one-12"):
        assert keys.allow(f"Bearer {key}")
    assert not keys.allow("Bearer # ours")
    assert not auth.load(None, {}, host="127.0.0.1", auth=None)
    assert not auth.load(file, {}, host="0.0.0.0", auth=False)
    for host, wanted, variables in (
        ("0.0.0.0", None, {}),
        ("127.0.0.1", True, {}),
        ("::", None, {auth.VARIABLE: " ,"}),
    ):
        with pytest.raises(UserError, match="--no-auth"):
            auth.load(None, variables, host=host, auth=wanted)
    with pytest.raises(UserError, match="8 or more"):
        auth.load(None, {auth.VARIABLE: "short"}, host="127.0.0.1", auth=None)
    file.write_text("# none\n")
    with pytest.raises(UserError, match="no keys in it"):
        auth.load(file, {}, host="127.0.0.1", auth=None)


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("localhost:8000", True),
        ("127.0.0.1", True),
        ("[::1]:8000", True),
        ("[::1]", True),
        ("evil.example:8000", False),
        ("", False),
        ("localhost.evil.example", False),
    ],
)
def test_a_name_that_points_here_is_no_way_in(header: str, allowed: bool) -> None:
    assert auth.host_allowed(header, "127.0.0.1") is allowed
    assert auth.host_allowed(header, "0.0.0.0")


async def test_web_pages_are_kept_out_unless_named() -> None:
    page = {"Origin": "https://page.example"}
    preflight = {**page, "Access-Control-Request-Method": "POST"}
    async with serving() as gateway:
        status, _ = await gateway.post(
            None, data=b"{}", json=None, headers={**page, "Content-Type": "text/plain"}
        )
        async with gateway.http.options(gateway.url + "/v1/chat/completions", headers=preflight) as response:
            assert response.status == 405
            assert "access-control-allow-origin" not in response.headers
        async with gateway.http.get(gateway.url + "/v1/models", headers={"Host": "evil.example"}) as response:
            assert response.status == 403
    assert status == 415
    async with serving(cors_origins=("https://page.example",)) as gateway:
        async with gateway.http.options(gateway.url + "/v1/chat/completions", headers=preflight) as response:
            assert response.headers["access-control-allow-origin"] == "https://page.example"
        async with gateway.http.options(
            gateway.url + "/v1/chat/completions", headers={**preflight, "Origin": "https://other.example"}
        ) as response:
            assert "access-control-allow-origin" not in response.headers


# --- limits


async def test_sizes() -> None:
    async with serving(max_body_bytes=1000, max_header_bytes=2000, max_messages=3, max_choices=2) as gateway:
        assert (await gateway.post(ask("x" * 1000)))[0] == 413

        async def chunked() -> Any:
            for _ in range(100):
                yield b" " * 100

        status, _ = await gateway.post(
            None, data=chunked(), json=None, headers={"Content-Type": "application/json"}
        )
        assert status == 413
        assert (await gateway.post(ask(), headers={"X-Big": "x" * 2000}))[0] == 431
        assert (await gateway.post(ask(n=3)))[1]["error"]["param"] == "n"
        status, body = await gateway.post(ask() | {"messages": ask()["messages"] * 4})
        assert (status, body["error"]["param"]) == (400, "messages")
        assert (await gateway.post(ask(), "/v1/nothing"))[0] == 404
        async with gateway.http.get(gateway.url + "/v1/chat/completions") as response:
            assert response.status == 405


async def raw(gateway: Served, data: bytes) -> bytes:
    """What the server says to these bytes until it closes the connection."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        await writer.drain()
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_requests_that_never_arrive() -> None:
    start = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    async with serving(receive_s=0.2, max_header_bytes=1000) as gateway:
        assert await raw(gateway, b"") == b""
        assert await raw(gateway, start) == b""
        assert await raw(gateway, start + b"X: " + b"x" * 200_000) == b""
        assert b" 408 " in await raw(gateway, start + b"Content-Length: 100\r\n\r\n{")
        assert b" 400 " in await raw(gateway, b"GET\x00 / HTTP/9\r\n\r\n")
        assert (await gateway.post(ask()))[0] == 200


async def test_a_full_house() -> None:
    large = Player(ENDLESS, delay_s=0.01)
    async with serving(large, policy="large", max_active=2, max_queued=1) as gateway:

        async def one() -> tuple[int, str | None]:
            request = gateway.http.post(gateway.url + "/v1/chat/completions", json=ask(max_tokens=30))
            async with request as response:
                return response.status, response.headers.get("retry-after")

        asked = [asyncio.create_task(one()) for _ in range(3)]
        await eventually(lambda: gateway.service.admission.queued == 1)
        assert gateway.service.admission.active == 2
        assert await one() == (429, "2")
        assert (await gateway.post(ask(n=3)))[1]["error"]["param"] == "n"
        assert [status for status, _ in await asyncio.gather(*asked)] == [200, 200, 200]
        assert (gateway.service.admission.active, gateway.service.admission.queued) == (0, 0)


async def test_leaving_the_queue() -> None:
    large = Player(ENDLESS, delay_s=0.01)
    async with serving(large, policy="large", max_active=1, max_queued=5) as gateway:
        first = asyncio.create_task(gateway.post(ask(max_tokens=40)))
        await eventually(lambda: gateway.service.admission.active == 1)
        waiting = [asyncio.create_task(gateway.post(ask(max_tokens=1))) for _ in range(3)]
        await eventually(lambda: gateway.service.admission.queued == 3)
        waiting[0].cancel()
        await eventually(lambda: gateway.service.admission.queued == 2)
        assert (await first)[0] == (await waiting[1])[0] == (await waiting[2])[0] == 200
        assert len(large.requests) == 3


async def test_a_generation_has_an_end() -> None:
    async with serving(Player(ENDLESS, delay_s=0.01), policy="large", generation_s=0.2) as gateway:
        status, body = await gateway.post(ask())
        events = await gateway.stream(ask())
    assert (status, body["error"]["code"]) == (504, "timeout")
    assert events[-1]["error"]["code"] == "timeout"


# --- clients that go away


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_stops_the_work(stream: bool) -> None:
    large = Player(ENDLESS, delay_s=0.01)
    async with serving(large, policy="large") as gateway:
        async with aiohttp.ClientSession() as http:
            asked = asyncio.create_task(
                http.post(gateway.url + "/v1/chat/completions", json=ask(stream=stream, n=2))
            )
            await eventually(lambda: large.open_writes == 2)
            if stream:
                response = await asked
                await response.content.readany()
                response.close()
            asked.cancel()
        left = time.monotonic()
        await eventually(lambda: large.open_writes == 0)
        assert (
            time.monotonic() - left < 5
        )  # it is meant to be within 1 s, on a machine with nothing else to do
        await eventually(lambda: gateway.service.admission.active == 0)
        assert large.closed_early == 2


async def test_a_client_that_does_not_read_is_given_up() -> None:
    large = Player([f" {'w' * 500}{i}" for i in range(40_000)], context_tokens=10**6)
    async with serving(large, policy="large", write_s=0.5) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = json.dumps(ask(stream=True, max_tokens=40_000)).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            + b"Content-Length: %d\r\n\r\n" % len(body)
            + body
        )
        await eventually(lambda: large.open_writes == 1)
        await eventually(lambda: large.open_writes == 0, 30)
        await eventually(lambda: gateway.service.admission.active == 0)
        await eventually(
            lambda: not gateway.server.server_state.connections
        )  # though the client still holds it
        assert large.closed_early == 1
        writer.close()


# --- the stop


async def test_what_runs_may_finish() -> None:
    large = Player(ENDLESS, delay_s=0.01)
    async with serving(large, policy="large", grace_s=20) as gateway:
        asked = asyncio.create_task(gateway.stream(ask(max_tokens=30)))
        await eventually(lambda: large.open_writes == 1)
        gateway.server.stop()
        events = await asked
    assert events[-1] == "[DONE]"
    assert len(events) > 30


async def test_what_takes_too_long_is_ended_in_order() -> None:
    large = Player(ENDLESS, delay_s=0.01)
    async with serving(large, policy="large", grace_s=0.2, max_active=2) as gateway:

        async def stream() -> list[Any]:
            request = gateway.http.post(gateway.url + "/v1/chat/completions", json=ask(stream=True))
            async with request as response:
                return events_of(await response.read())

        asked = asyncio.create_task(stream())
        whole = asyncio.create_task(gateway.post(ask()))
        await eventually(lambda: large.open_writes == 2)
        queued = asyncio.create_task(gateway.post(ask()))
        await eventually(lambda: gateway.service.admission.queued == 1)
        gateway.server.stop()
        events = await asked
        assert events[-1]["error"]["code"] == "stopping"
        for status, body in (await whole, await queued):
            assert (status, body["error"]["code"]) == (503, "stopping")
    assert large.open_writes == 0
