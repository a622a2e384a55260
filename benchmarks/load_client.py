"""Many streams at once, read as cheaply as can be: the client of benchmarks.gateway_load, in a process of its own.

    python -m benchmarks.load_client URL[,URL...] MODEL STREAMS TOKENS

POSTs STREAMS chat completions, to the servers in turn, and counts the events as they come, without reading them. Prints one JSON
line: errors (a stream that did not end with [DONE], or without TOKENS tokens by its usage), tokens, seconds from the first to the
last event of all, and the gaps between the events of a stream in milliseconds. Events that come in one read count as gaps of 0
but the first.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import sys
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

_EVENT = b"data: {"
_USAGE = re.compile(rb'"completion_tokens": ?(\d+)')
_TAIL_BYTES = 4096  # the usage comes last


class Stream(asyncio.Protocol):
    def __init__(self, request: bytes) -> None:
        self._request = request
        self._tail = b""
        self.status = b""
        self.arrivals: list[tuple[float, int]] = []  # (seconds, events)
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self.status:
            self.status = data[:12]
        border = (
            self._tail[1 - len(_EVENT) :] + data[: len(_EVENT) - 1]
        )  # an event may begin across two reads
        if events := data.count(_EVENT) + border.count(_EVENT):
            self.arrivals.append((now, events))
        self._tail = (self._tail + data)[-_TAIL_BYTES:]

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)

    @property
    def tokens(self) -> int:
        found = _USAGE.findall(self._tail)
        return int(found[-1]) if found else 0

    @property
    def fault(self) -> str | None:
        if self.status != b"HTTP/1.1 200":
            return self.status.decode(errors="replace") or "no answer"
        return None if b"[DONE]" in self._tail else "no [DONE]"

    def gaps_ms(self) -> list[float]:
        gaps: list[float] = []
        for (before, _), (now, events) in zip(self.arrivals, self.arrivals[1:], strict=False):
            gaps += [(now - before) * 1000] + [0.0] * (events - 1)
        return gaps


async def load(urls: Sequence[str], model: str, num_streams: int, num_tokens: int) -> list[Stream]:
    loop = asyncio.get_running_loop()
    streams: list[Stream] = []
    for number in range(num_streams):
        parts = urlsplit(urls[number % len(urls)])
        body = json.dumps(
            {
                "model": model,
                "messages": [{"role": "user", "content": f"Stream {number}."}],
                "stream": True,
                "stream_options": {"include_usage": True},
                "max_tokens": num_tokens,
                "temperature": 0,
            }
        ).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer sk-none\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        request = head.encode() + body
        _, stream = await loop.create_connection(
            lambda r=request: Stream(r), str(parts.hostname), parts.port or 80
        )
        streams.append(stream)
    await asyncio.gather(*(stream.closed for stream in streams))
    return streams


def figures(streams: Sequence[Stream], num_tokens: int) -> dict[str, object]:
    faults = [s.fault or ("too few tokens" if s.tokens < num_tokens else None) for s in streams]
    gaps = sorted(gap for stream in streams for gap in stream.gaps_ms()) or [0.0]
    times = [at for stream in streams for at, _ in stream.arrivals] or [0.0]
    found = sorted(set(filter(None, faults)))
    return {
        "streams": len(streams),
        "errors": sum(fault is not None for fault in faults),
        "faults": found[:5],
        "tokens": sum(stream.tokens for stream in streams),
        "seconds": round(max(times) - min(times), 3),
        "gap_ms": {
            "median": round(statistics.median(gaps), 2),
            "p99": round(gaps[int(len(gaps) * 0.99)], 2),
            "largest": round(gaps[-1], 2),
        },
    }


def main() -> None:
    urls, model, num_streams, num_tokens = sys.argv[1:]
    streams = asyncio.run(load(urls.split(","), model, int(num_streams), int(num_tokens)))
    print(json.dumps(figures(streams, int(num_tokens))))


if __name__ == "__main__":
    main()
