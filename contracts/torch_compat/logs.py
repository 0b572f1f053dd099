"""What torch's own tools show of a compilation: ``TORCH_LOGS=output_code``, and ``TORCH_TRACE``, which tlparse reads.

Place: a part of the door; see ``contracts.torch_compat``.
Invariants: no text is made unless a log or a trace asks for it. A text that cannot be made says why, and raises nothing
into the compilation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Literal


def log_code(text: Callable[[], str]) -> None:
    """Log generated code where ``TORCH_LOGS`` or ``torch._logging.set_logs`` asks for ``output_code``.

    Args:
        text: makes the code with a heading.
    """
    if _code_log().isEnabledFor(logging.DEBUG):
        _code_log().debug("%s", _made(text))


def trace_artifact(name: str, encoding: Literal["string", "json"], text: Callable[[], str]) -> None:
    """Write an artifact into torch's trace, under the compilation that goes on, if there is one.

    Args:
        name: of the artifact.
        encoding: of its text.
        text: makes it.
    """
    from torch._logging import trace_structured

    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": encoding},
        payload_fn=lambda: _made(text),
        expect_trace_id=False,
    )


def _made(text: Callable[[], str]) -> str:
    try:
        return text()
    except Exception as error:
        return f"not shown: {type(error).__name__}: {error}"


@cache
def _code_log() -> logging.Logger:
    """A logger below torch's, which has the handlers, with the switch of its artifact."""
    from torch._logging import getArtifactLogger

    return getArtifactLogger("torch.mixbackend", "output_code")
