"""Connections to engines: used again, limited in time, through proxies, with certificates."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from relaygen.api import Options, Relay
from relaygen.chaos import proxy as chaos
from relaygen.chaos.faults import Fault, Kind, Stage
from relaygen.engines.base import Request
from relaygen.engines.http import Endpoint, Http
from relaygen.engines.open import connect
from relaygen.engines.probe import probe
from relaygen.errors import (
    EngineCutError,
    EngineError,
    EngineUnreachableError,
    UserError,
)
from relaygen.simulate.script import Library
from relaygen.simulate.server import Settings as SimulatorSettings
from relaygen.simulate.speed import Speed
from relaygen.simulate.vllm import SimulatedVllm
from relaygen.types import Message, Sampling
from tests.asking import (
    SCRIPT,
    engine_of,
    finish,
    read,
    request_for,
)
from tests.bare import bare_server
from tests.fakes import FakeVllm


async def test_a_stale_keep_alive_socket_is_replaced_once() -> None:
    """A server that closes idle connections just when they are used again (vLLM after 5 s)."""
    num_requests = {"any": 0}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        num_requests["any"] += 1
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await reader.readuntil(b"\r\n\r\n")

    async with bare_server(serve) as url:
        http = Http(Endpoint(url))
        for _ in range(4):
            assert await http.post("/x", {"a": 1}) == {}
        await http.close()
    assert num_requests["any"] == 4


async def test_a_reused_connection_that_was_reset_is_replaced_once() -> None:
    """As balancers and firewalls do to idle ones."""
    fake = FakeVllm(SCRIPT)
    async with fake.running() as target:
        proxy = chaos.Proxy(target)
        async with proxy.running() as url:
            http = Http(Endpoint(url))
            for kind in (Kind.RESET, Kind.CLOSE):
                await http.post("/tokenize", {"prompt": "a"})
                struck = len(proxy.struck)
                befalls, begin = Fault(kind, Stage.REUSE), proxy.num_requests
                proxy.plan = lambda number: befalls if number == begin else None  # noqa: B023
                assert "tokens" in await http.post("/tokenize", {"prompt": "a"})
                assert len(proxy.struck) == struck + 1
            await http.close()


@pytest.mark.parametrize("at", [22, 24, 30, 42, 44])
async def test_damaged_chunks_are_no_reason_to_wait_for_ever(at: int) -> None:
    """aiohttp's parser closes the connection then, and tells nobody."""
    event = b'data: {"a": 1}\n\n'
    data = bytearray(b"%x\r\n%b\r\n" % (len(event), event) * 4 + b"0\r\n\r\n")
    data[at : at + 16] = b"\xff" * 16

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for start in range(0, len(data), 7):
            writer.write(data[start : start + 7])
            await writer.drain()
            await asyncio.sleep(0.002)
        await reader.read()

    async with bare_server(serve) as url:
        http = Http(Endpoint(url, silence_s=0.3))
        with pytest.raises(EngineError):
            async with asyncio.timeout(20):
                async for value in http.stream("/x", {}):
                    assert value == {"a": 1}
        await http.close()


async def test_silence_is_of_the_server_and_of_each_read() -> None:
    """A caller that is slow to read is not cut, nor is a stream that is longer than the limit."""
    event = b'data: {"a": 1}\n\n'

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(30):
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await asyncio.sleep(0.1)
        await reader.read()

    async with bare_server(serve) as url:
        http = Http(Endpoint(url, silence_s=1))
        num_events = 0
        with pytest.raises(EngineCutError, match="silent for 1 s"):
            async with asyncio.timeout(20):
                async for _ in http.stream("/x", {}):
                    num_events += 1
                    if num_events == 1:
                        await asyncio.sleep(1.5)
        await http.close()
    assert num_events == 30


async def test_a_request_is_sent_at_most_twice() -> None:
    num_requests = {"any": 0}

    async def slam(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        num_requests["any"] += 1
        await reader.readuntil(b"\r\n\r\n")

    async with bare_server(slam) as url:
        http = Http(Endpoint(url))
        with pytest.raises(EngineCutError):
            await http.post("/x", {"a": 1})
        await http.close()
    assert num_requests["any"] == 2


async def test_a_finished_stream_leaves_its_connection_to_the_next() -> None:
    fake = FakeVllm(SCRIPT)
    async with engine_of(fake) as engine:
        for _ in range(5):
            assert finish(await read(engine, request_for(fake, max_tokens=3))) == "length"
    assert fake.num_connections <= 2  # one is the probe's


async def test_what_is_late_after_the_finish_reason_is_not_waited_for() -> None:
    library = Library.read()
    server = SimulatedVllm(SimulatorSettings("m", Speed.of(20_000, 1_000_000)), library)
    async with server.running() as target:
        proxy = chaos.Proxy(target)
        async with proxy.running() as url:
            engine = await connect(url, name="x", api_key=None, context_tokens=0, silence_s=60)
            _, ids = await engine.render([Message("user", "?")])
            proxy.plan = lambda number: None if proxy.struck else Fault(Kind.STALL, Stage.END, 60)
            request = Request(ids, 5, (), Sampling(temperature=0), 1)
            async with asyncio.timeout(30):
                assert finish(await read(engine, request)) == "length"
            assert [fault.kind for _, fault in proxy.struck] == [Kind.STALL]
            await engine.close()


# ---- limits


async def test_silence_has_a_limit_that_can_be_set() -> None:
    async with await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0) as server:
        url = f"vllm+http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(EngineCutError, match=r"silent for 0\.05 s.*longer wait: --timeout"):
            await connect(url, name="the large model", api_key=None, context_tokens=0, silence_s=0.05)
        relay = Relay(url, "smollm2-135m", policy="large", options=Options(silence_s=0.05))
        with pytest.raises(EngineCutError, match=r"silent for 0\.05 s"):
            await relay.__aenter__()
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(UserError, match="silence_s"):
            Options(silence_s=bad)


async def test_a_session_closed_meanwhile_is_our_error() -> None:
    fake = FakeVllm(SCRIPT)
    async with engine_of(fake) as engine:
        await engine.close()
        with pytest.raises(EngineCutError, match="closed here"):
            await read(engine, request_for(fake))


@pytest.mark.weights
async def test_a_relay_is_closed_while_a_stream_is_open(smollm2: Path) -> None:
    """llama.cpp waits half a minute for connections that are not closed before it."""
    relay = Relay(smollm2, smollm2, policy="large", options=Options(context_tokens=2048))
    await relay.__aenter__()
    run = relay.stream("Tell a very long story.", max_tokens=1900)
    events = run.events()
    for _ in range(3):
        await anext(events)
    begun = time.monotonic()
    await relay.__aexit__(None, None, None)
    assert time.monotonic() - begun < 20, "it has waited for its own client"
    with pytest.raises(EngineError):
        async for _ in events:
            pass


# ---- proxies


class Proxy:
    """Forwards requests for http://engine.test to `target`."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.headers: list[Mapping[str, str]] = []

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[str]:
        async def forward(request: web.BaseRequest) -> web.StreamResponse:
            assert request.url.host == "engine.test"
            self.headers.append(request.headers)
            url = self.target + request.path_qs
            async with (
                aiohttp.ClientSession(auto_decompress=False) as http,
                http.request(request.method, url, data=await request.read(), headers=_HEADERS) as answer,
            ):
                response = web.StreamResponse(status=answer.status)
                await response.prepare(request)
                async for part in answer.content.iter_any():
                    await response.write(part)
                return response

        server = RawTestServer(forward)
        async with server:
            yield str(server.make_url("")).rstrip("/")


_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.usefixtures("no_proxies")
async def test_a_proxy_from_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeVllm(SCRIPT)
    async with fake.running() as target, Proxy(target).running() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        engine = await connect("http://engine.test", name="x", api_key=None, context_tokens=0)
        assert finish(await read(engine, request_for(fake))) == "length"
        await engine.close()
        assert fake.generations
        monkeypatch.setenv("NO_PROXY", "engine.test")
        with pytest.raises(EngineUnreachableError, match="Is the server running"):
            await connect("http://engine.test", name="x", api_key=None, context_tokens=0)


@pytest.mark.usefixtures("no_proxies")
async def test_what_netrc_holds_is_not_for_engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine engine.test login me password pa55word\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    fake = FakeVllm(SCRIPT)
    async with fake.running() as target, (proxy := Proxy(target)).running() as url:
        for given in (url.replace("http://", "http://us:pw@"), url.removeprefix("http://")):
            monkeypatch.setenv("HTTP_PROXY", given)
            http = Http(Endpoint("http://engine.test", "sk-ours"))
            assert "tokens" in await http.post("/tokenize", {"prompt": "a"})
            await http.close()
    assert [one["Authorization"] for one in proxy.headers] == ["Bearer sk-ours"] * 2
    assert [one.get("Proxy-Authorization") for one in proxy.headers] == ["Basic dXM6cHc=", None]


@pytest.mark.usefixtures("no_proxies")
async def test_a_dead_proxy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:pa55word@127.0.0.1:9")
    with pytest.raises(EngineUnreachableError, match=r"the proxy 127.0.0.1:9 does not answer") as caught:
        await probe(Endpoint("http://engine.test"))
    assert "pa55word" not in str(caught.value)


@pytest.mark.usefixtures("no_proxies")
async def test_an_engine_on_this_machine_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    fake = FakeVllm(SCRIPT)
    async with fake.running() as url:
        assert await probe(Endpoint(url)) == "vllm"
        assert await probe(Endpoint(url.replace("127.0.0.1", "localhost"))) == "vllm"


# ---- certificates


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of our own for 127.0.0.1, and its key."""
    openssl = shutil.which("openssl")
    if not openssl:
        pytest.skip("NOT TESTED: there is no openssl here to make a certificate with")
    folder = tmp_path_factory.mktemp("certificate")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=relaygen test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return cert, key


async def test_tls_with_an_authority_of_ones_own(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    fake = FakeVllm(SCRIPT)
    async with fake.running(context) as url:
        assert url.startswith("https://")
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        with pytest.raises(
            EngineUnreachableError, match=r"cannot be trusted.*let SSL_CERT_FILE name"
        ) as caught:
            await probe(Endpoint(url, name="the large model"))
        assert "\n" not in str(caught.value)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        engine = await connect(url, name="x", api_key=None, context_tokens=0)
        assert finish(await read(engine, request_for(fake))) == "length"
        await engine.close()
        with pytest.raises(EngineUnreachableError, match="cannot be trusted"):  # of another name
            await probe(Endpoint(url.replace("127.0.0.1", "localhost")))


async def test_tls_where_none_is_spoken() -> None:
    async with FakeVllm(SCRIPT).running() as url:
        with pytest.raises(EngineUnreachableError, match="Is it http:// in place of https://"):
            await probe(Endpoint(url.replace("http://", "https://")))
