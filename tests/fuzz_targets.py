"""Everything that reads bytes of others, in one form: bytes in, and either it takes them or an error of ours comes out.

`tests/test_fuzz.py` runs these under hypothesis, `scripts/fuzz.py` under atheris, which looks for new ways through the code.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from relaygen import config, gguf, profile, trace
from relaygen.analyse import scored
from relaygen.engines import ollama
from relaygen.engines.http import Parser
from relaygen.engines.sse import DamagedEventError, EventTooLongError, SSEParser
from relaygen.errors import UserError
from relaygen.gateway.auth import load as load_keys
from relaygen.gateway.wire import chat_job, completion_job
from relaygen.tasks import problems

_FOLDER = Path(tempfile.mkdtemp(prefix="relaygen-fuzz-"))


@dataclass(frozen=True)
class Target:
    run: Callable[[bytes], object]
    seeds: tuple[bytes, ...]  # good input, to be damaged


def _file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """`read`, of a file that holds the bytes."""

    def run(data: bytes) -> object:
        path = _FOLDER / "file"
        path.write_bytes(data)
        return read(path)

    return run


def _chunked(make: Callable[[], Parser]) -> Callable[[bytes], object]:
    """The first byte says where the stream is cut: that changes nothing."""

    def run(data: bytes) -> None:
        cut, stream = (data[0] if data else 0), data[1:]
        whole, parts = make(), make()
        assert whole.feed(stream) == parts.feed(stream[:cut]) + parts.feed(stream[cut:])

    return run


def _same_again(path: Path) -> None:
    """A profile that can be read can be written, and is the same then."""
    found = profile.load(path.rename(path.with_suffix(".toml")))
    assert profile.parse(profile.dump(found), "again") == found


def _cues(path: Path) -> None:
    assert len(profile.load_cues(path)) <= profile.MAX_CUES


_CHAT = b"""{"model":"relaygen","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"stream":true,
"stream_options":{"include_usage":true},"max_tokens":5,"temperature":0.5,"top_k":-1,"seed":7,"stop":["a","b"],"n":2,
"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"$ref":"#/x"}}}}}],
"tool_choice":"auto","logprobs":true,"top_logprobs":2,"relaygen":{"policy":"segment","segments":true}}"""
_TRACE = b'{"id":"a","text":"So it is.","problem":"1+1","token_ids":[1,2],"token_texts":["So"," it is."]}\n{"text":"x"}\n'
_OURS = b'{"format":1,"text":"ab","segments":[{"token_ids":[1]}],"metadata":{"models":{"large":"a"}},"num_tokens":1}\n'
_SCORED = (
    b'{"id":"a","problem":"p","model":"m","scorer":"s","text":"ab","token_ids":[1,2],"token_texts":["a","b"],'
    b'"margins":[0.5,1],"agree":[0,1],"logprobs":[-0.1,null]}\n'
)
_PROFILE = b"""format = 1
name = "mine"
cues = ["So,", "Thus "]
answer_by = "large"
think = { open = "<think>", close = "</think>" }
[limits]
max_tokens = 100
[sampling]
temperature = 0.6
[evidence]
a.b = [1.5, 2024-01-01, "x", { c = true }]
"""
_CONFIG = b'port = 8000\nhost = "::1"\nlarge = ["http://a:1", "http://b:2"]\ngrace_s = 1.5\nauth = false\n'

TARGETS = {
    "sse": Target(
        _chunked(SSEParser), (b"\x05data: a\r\n\r\n: x\n\ndata: b\ndata: c\n\n", b"\x01\xef\xbb\xbfdata\r\r")
    ),
    "json-lines": Target(_chunked(ollama.Lines), (b'\x03{"response":"a"}\n\n{"b":1}\n',)),
    "profile": Target(_file(_same_again), (_PROFILE,)),
    "cues": Target(_file(_cues), (b'# mine\nSo,\n"Thus "\r\n\n',)),
    "config": Target(_file(lambda path: config.load(path, {}, {})), (_CONFIG,)),
    "keys": Target(
        _file(lambda path: load_keys(path, {}, host="::", auth=None)), (b"# keys\nsk-0123456789\n",)
    ),
    "trace": Target(_file(lambda path: list(trace.read(path))), (_TRACE, _OURS)),
    "scored": Target(_file(lambda path: list(scored.read(path))), (_SCORED,)),
    "problems": Target(_file(problems.read), (b'{"problem":"1+1","answer":2,"id":"a"}\n{"problem":"x"}\n',)),
    "chat": Target(lambda data: chat_job(data, max_messages=20), (_CHAT,)),
    "completion": Target(completion_job, (b'{"prompt":["a"],"max_tokens":1,"stop":"x","best_of":1}',)),
    "gguf": Target(
        _file(gguf.check), (b"GGUF\x03\0\0\0" + bytes(16), b"GGUF\x02\0\0\0\0\0\0\0\0\0\0\0\1" + bytes(30))
    ),
}


def run(name: str, data: bytes) -> None:
    """Raises where `data` does more than to be taken or refused: in one line, and not a long one."""
    said = _refusal(TARGETS[name].run, data)
    assert len(said) < 2000, said[:300]
    assert len(said.splitlines()) < 2, said


def _refusal(take: Callable[[bytes], object], data: bytes) -> str:
    try:
        take(data)
    except (UserError, EventTooLongError, DamagedEventError) as error:
        return str(error)
    return ""
