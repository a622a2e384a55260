"""An event loop whose timers are exact to some microseconds.

asyncio's usual selector waits in whole milliseconds, rounded up: half a millisecond late on average, at each turn of a relay.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import sys
from typing import Any

if sys.platform == "linux":

    class _PreciseSelector(selectors.EpollSelector):
        def select(self, timeout: float | None = None) -> Any:
            if timeout is not None and timeout > 0:
                select.select(
                    [self.fileno()], [], [], timeout
                )  # that an epoll is readable says it has events
                timeout = 0
            return super().select(timeout)

    def event_loop() -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(_PreciseSelector())

else:

    def event_loop() -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()
