"""``mixbackend minify MODEL`` or ``mixbackend minify FOLDER``: the smallest region that a backend fails on.

Place: a command; computation is in ``mixbackend.minify``. Input: a model as of ``explain``, or a folder that
``MIXBACKEND_DUMP`` wrote. Output: what was found and the script, or with ``--json`` all of it as one object. Progress
goes to standard error.
Exit status: 1 if a region fails, or is slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from mixbackend.commands.explain import load_model
from mixbackend.commands.output import print_json, progress_shown, quiet_stdout
from mixbackend.minify.minification import Progress, minify
from mixbackend.minify.result import Minified


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is minified, as the command line says it.

    Attributes:
        model: as of ``explain``, or a folder.
        config, train, device: see ``explain``.
        timeout_s, limit_s, slow: see ``minify``.
    """

    model: str
    config: str | None
    train: bool
    device: str
    timeout_s: float
    limit_s: float
    slow: float


def run(wanted: Wanted, script: Path | None, as_json: bool) -> int:
    """Minify; the exit status."""
    with quiet_stdout(), progress_shown("loading the model") as show:
        found = _found(wanted, show)
    if script is not None and found.script:
        script.write_text(found.script, encoding="utf-8")
    if as_json:
        print_json(found.to_dict())
    else:
        shown = found.script.rstrip() if script is None else f"written to {script}"
        print(f"{found}\n\n{shown}" if found.script else found)
    return 1 if found.found else 0


def _found(wanted: Wanted, progress: Progress) -> Minified:
    limits = {"timeout_s": wanted.timeout_s, "limit_s": wanted.limit_s, "slow": wanted.slow}
    if Path(wanted.model).is_dir():
        return minify(wanted.model, config=wanted.config, progress=progress, **limits)
    module, args, kwargs = load_model(wanted.model, wanted.train, wanted.device)
    with torch.set_grad_enabled(wanted.train):
        return minify(module, *args, config=wanted.config, progress=progress, **limits, **kwargs)
