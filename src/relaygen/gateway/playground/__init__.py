"""The page at `/`: ask, and watch the answer being written. Plain files, served as they are.

The policy forbids all that is not a file of ours, and lets no script turn a string into markup, so nothing a model writes
can run.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_PAGE = "index.html"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_NAMES = (
    "style.css",
    "icon.svg",
    "main.js",
    "answer.js",
    "follow.js",
    "stream.js",
    "theme.js",
    "timeline.js",
    "transcript.js",
    "words.js",
)
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # keep it, but ask whether it has changed
}


@cache
def _file(name: str) -> tuple[bytes, str]:
    """Content and entity tag."""
    content = files(__name__).joinpath(name).read_bytes()
    return content, f'"{sha256(content).hexdigest()[:32]}"'


async def _serve(request: Request) -> Response:
    name: str = request.path_params.get("name", _PAGE)
    if name != _PAGE and name not in _NAMES:
        return Response("There is no such file.\n", 404, media_type="text/plain")
    content, tag = _file(name)
    headers = {**_HEADERS, "ETag": tag}
    if tag in request.headers.get("If-None-Match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=_TYPES[name.rpartition(".")[2]])


ROUTES = [Route("/", _serve), Route("/playground/{name}", _serve)]
