"""What inductor has for an operator, shipped or remembered between processes.

Place: asked by ``judge``. Asking torch imports all of inductor, most of a second, even where no region goes to it.
Input: the name of an operator. Output: see ``inductor_handling``.
Order: what is shipped for this torch (``known_answers``), what an earlier process was told, inductor.
Invariants: remembered are torch's own operators alone, for one version and one set of inductor's settings, in a folder
that only this user can write to. A process that had imported inductor before the first question asks inductor itself,
since its tables may have been changed. What cannot be read or written is asked for again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from mixbackend.backends.common.private_folder import distrust, private_cache_folder
from mixbackend.backends.common.whole_file import replacing
from mixbackend.backends.inductor.known_answers import known_answers
from mixbackend.contracts.torch_compat import inductor_handling, inductor_settings, operator_by_name

ANSWERS = frozenset({"lowered", "decomposed", "fallback", "none"})
_TABLES = "torch._inductor.lowering"


def handling_of(op: str) -> str | None:
    """How inductor treats an operator; ``None`` if torch has no operator of that name."""
    memory = _memory() if op.startswith("aten.") else None
    known = memory.answer(op) if memory is not None else None
    if known is not None:
        return known
    operator = operator_by_name(op)
    if operator is None:
        return None
    answer = inductor_handling(operator)
    if memory is not None:
        memory.remember(op, answer)
    return answer


class Memory:
    """Answers in a file.

    Args:
        path: of the file; what is not there yet is made.
        known: answers that need not be written there.
    """

    def __init__(self, path: Path, known: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._known = known or {}
        self._answers = _read(path)

    def answer(self, op: str) -> str | None:
        """What is known of an operator."""
        return self._known.get(op) or self._answers.get(op)

    def remember(self, op: str, answer: str) -> None:
        """Keep an answer, here and for later processes."""
        self._answers[op] = answer
        # What another process wrote meanwhile may be lost, or all where nothing can be written: it is asked again.
        with contextlib.suppress(OSError), replacing(self._path) as file:
            file.write(json.dumps(dict(self._answers)).encode())


@functools.cache
def _memory() -> Memory | None:
    if _TABLES in sys.modules:
        return None
    told = f"{torch.__version__}\0{torch.version.git_version}\0{inductor_settings()}"
    name = f"{hashlib.sha256(told.encode()).hexdigest()}.json"
    return Memory(private_cache_folder("inductor-handling") / name, known_answers())


def _read(path: Path) -> dict[str, str]:
    try:
        if distrust(path.parent, path):
            return {}
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    entries = content.items() if isinstance(content, dict) else ()
    return {op: answer for op, answer in entries if isinstance(answer, str) and answer in ANSWERS}
