"""Behind a router a session asks for one replica, in the way that the router understands."""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from relaygen.engines.open import connect
from tests.asking import SCRIPT, pieces, request_for
from tests.fakes import Fake, FakeSglang, FakeVllm


@pytest.mark.parametrize("kind", [FakeVllm, FakeSglang])
async def test_the_requests_of_a_session_carry_its_headers(kind: type[Fake]) -> None:
    fake = kind(SCRIPT)
    seen: list[tuple[str | None, ...]] = []

    async def router(request: web.Request, response: web.StreamResponse) -> None:
        if request.path == "/v1/completions":
            names = ("X-Session-ID", "X-SMG-Routing-Key", "X-Session-Token")
            seen.append(tuple(request.headers.get(name) for name in names))
            response.headers["x-session-token"] = f"pod {len(seen)}"

    app = web.Application(middlewares=[fake._note])  # pyright: ignore[reportPrivateUsage]
    app.on_response_prepare.append(router)
    fake.routes(app.router)
    async with TestServer(app) as server:
        engine = await connect(str(server.make_url("")), name="x", api_key=None, context_tokens=100)
        seen.clear()
        for _ in range(2):
            async with engine.session() as session:
                for _ in range(2):
                    chunks = [chunk async for chunk in session.write(request_for(fake, max_tokens=3))]
                    assert len(pieces(chunks)) == 3
        await engine.close()

    (a, a_key, none), (b, b_key, first), (c, _, none_again), _ = seen
    assert None not in (a, c)
    assert a == b == a_key == b_key != c
    assert (none, first, none_again) == (None, "pod 1", None)
