"""How a session stays on one replica behind a router: by the headers that the known ones look at.

  X-Session-ID       AIBrix (routing-strategy: session-affinity); vLLM production-stack, started with
                     `--routing-logic session --session-key x-session-id`; proxies that hash a header
  X-SMG-Routing-Key  SGLang's gateway (policies consistent_hashing and manual)
  X-Session-Token    llm-d's session-affinity scorer

llm-d and AIBrix name the replica themselves, in a header of the answer, and want that back.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

_GIVEN = ("X-Session-ID", "X-Session-Token")


class Affinity:
    """Of one session. `headers` go with each of its requests."""

    def __init__(self) -> None:
        key = secrets.token_hex(8)
        self.headers = {"X-Session-ID": key, "X-SMG-Routing-Key": key}

    def learn(self, answered: Mapping[str, str]) -> None:
        """`answered`: the headers of an answer, found in any case of letters."""
        self.headers |= {name: answered[name] for name in _GIVEN if answered.get(name)}
