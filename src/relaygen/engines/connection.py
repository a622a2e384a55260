"""How the connections to one engine are made: time limits, proxies, certificates.

Proxies come from HTTP_PROXY, HTTPS_PROXY and NO_PROXY, as everywhere; an engine on this machine is never asked through one.
Certificates are checked against the system's authorities, or those in the file that SSL_CERT_FILE names.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

_IDLE_S = 4.0  # under vLLM's and llama-server's 5 s, so that the pool lets go first
_CONNECT_S = 10.0


def open_session(url: str, *, silence_s: float, trace: aiohttp.TraceConfig) -> aiohttp.ClientSession:
    """`silence_s` is the longest wait for anything from the server, connecting included."""
    parts = urlsplit(url)
    limits = aiohttp.ClientTimeout(total=None, sock_connect=min(_CONNECT_S, silence_s), sock_read=silence_s)
    # A context of our own: aiohttp makes its own when it is imported, before a test or a program can set SSL_CERT_FILE.
    context = ssl.create_default_context() if parts.scheme == "https" else True
    return aiohttp.ClientSession(
        timeout=limits,
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S, ssl=context),
        auto_decompress=False,
        # Found once, here: aiohttp's `trust_env` would ask two threads before each request, and send passwords of ~/.netrc.
        proxy=_proxy(parts),
        trace_configs=[trace],
    )


def why_not_connected(error: aiohttp.ClientError | TimeoutError) -> str:
    """What happened, and what to do about it."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        wrong = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
        return (
            f"has a certificate that cannot be trusted ({wrong}). If it is your own, let SSL_CERT_FILE name the file of the"
            " authority that signed it"
        )
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"does not speak TLS as it should ({reason(error)}). Is it http:// in place of https://?"
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return (
            f"cannot be reached: the proxy {error.host}:{error.port} does not answer ({reason(error)})."
            " It comes from HTTP_PROXY or HTTPS_PROXY; NO_PROXY names hosts that need none"
        )
    return f"cannot be reached ({reason(error)}). Is the server running, and the address right?"


def reason(error: BaseException) -> str:
    """In a few words, without addresses."""
    inner = getattr(error, "os_error", None) or error
    if isinstance(inner, ssl.SSLError):
        return (inner.reason or str(inner)).replace("_", " ").lower()
    if isinstance(inner, OSError) and inner.errno and inner.errno > 0:
        return os.strerror(inner.errno)
    return str(inner).strip()[:200] or type(inner).__name__  # a server's own bytes may be in it


def _proxy(parts: SplitResult) -> str | None:
    host = parts.hostname or ""
    if _is_here(host) or proxy_bypass(host):
        return None
    proxy = getproxies().get(parts.scheme)
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
