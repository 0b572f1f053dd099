"""How programs are compiled: by default, with generated code alone, as a mixture that random wishes force, by all.

Place: used by ``judging``. Input: a setting's name and a seed. Output: a configuration as plain data.
"""

from __future__ import annotations

import random
from typing import Any

SETTINGS = ("default", "codegen", "mixture", "live")

_PARTS = ("a", "b", "c", "d", "e", "f-g", "h-k", "l", "m", "n-o", "p", "q-r", "s", "t", "u", "v-w", "x-z", "_")
_QUICK = ("codegen", "onednn", "onnxruntime", "eager")
"""Backends that compile fast; inductor's compilations are half of a live program's time."""
_SHARE_WITH_ALL = 0.25
"""Share of live programs in which all backends are tried."""
_MEMBERS = ("codegen", "codegen", "codegen", "onnxruntime", "onednn", "eager", "eager")


def configuration(setting: str, seed: int) -> dict[str, Any]:
    """For ``mixbackend.auto``.

    Args:
        setting: one of ``SETTINGS``.
        seed: of the program.
    """
    source = random.Random(f"{setting} {seed}")
    match setting:
        case "default":
            return {}
        case "live":
            few = {} if source.random() < _SHARE_WITH_ALL else {"backends": list(_QUICK)}
            return {"background": "off", **few}
        case "codegen":
            wish = {"match": {}, "prefer": "codegen", "factor": 1e-4}
            return {"select": "off", "backends": ["codegen", "eager"], "rules": [wish], **_unchecked(source, 0.3)}
    members = (*_MEMBERS, "inductor") if source.random() < 0.08 else _MEMBERS
    rules = [_rule(source, members) for _ in range(source.randint(4, 10))]
    rules.append({"match": {}, "prefer": source.choice(("codegen", "eager")), "factor": 1e-4})
    return {"select": "off", "rules": rules, **_unchecked(source, 0.5)}


def _unchecked(source: random.Random, share: float) -> dict[str, Any]:
    return {"verify": {"when": "off"}} if source.random() < share else {}


def _rule(source: random.Random, members: tuple[str, ...]) -> dict[str, Any]:
    match: dict[str, Any] = {"op": f"aten.{'*' if source.random() < 0.5 else ''}[{source.choice(_PARTS)}]*"}
    if source.random() < 0.2:
        match["phase"] = source.choice(("forward", "backward"))
    if source.random() < 0.1:
        match["dtype"] = source.choice(("float32", "int64", "bool"))
    backend = source.choice(members)
    if backend == "eager" and source.random() < 0.5:
        return {"match": match, "require": "eager"}
    return {"match": match, "prefer": backend, "factor": 1e-4}
