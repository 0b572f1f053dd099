"""Lines for another process, through a pipe that is never waited for.

Place: between the user's process and the governor behind it, and between the governor and its workers.
Input: messages. Output: lines of JSON in the pipe, as far as it takes them; the rest is sent later.
Invariants: order is kept; what is sent to a reader that is gone is dropped: that it is gone is seen by the code that
listens to it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import IO, Any


class LinesOut:
    """See the module's docstring.

    Args:
        stream: without a buffer of its own; does not block from now on.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        os.set_blocking(stream.fileno(), False)
        self._stream = stream
        self._unsent = b""

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message, now or later."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self.send()

    def send(self) -> None:
        """Send what was not taken before."""
        with contextlib.suppress(BrokenPipeError):
            while self._unsent:
                sent = self._stream.write(self._unsent)
                if not sent:
                    return
                self._unsent = self._unsent[sent:]

    def close(self) -> None:
        """Say nothing more."""
        self._stream.close()
