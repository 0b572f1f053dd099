"""Code blocks of a document, run in order: files are written, commands are run, Python is one script at the end.

The words behind a block's language say what becomes of it: ``file=PATH`` writes it there, ``needs=PACKAGE`` leaves it
out where the package is not installed, and ``bash run`` is a command. Other blocks that are not Python are shown alone.
Commands see what they install: pip installs into a folder of the run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

SECONDS = 240
_PRELUDE = """\
from mixbackend.benchmarks.models.torchvision_shim import enable_torchvision

enable_torchvision()  # clients import it, and it does where torch is another build
"""


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code.

    Attributes:
        language: as the fence says.
        words: what stands behind the language.
        text: the code.
    """

    language: str
    words: tuple[str, ...]
    text: str

    def value(self, key: str) -> str | None:
        """What a word ``key=value`` says."""
        return next((word[len(key) + 1 :] for word in self.words if word.startswith(f"{key}=")), None)


def blocks_of(page: Path) -> list[Block]:
    """Blocks of a page in their order."""
    found = re.findall(r"^```(\w+)([^\n]*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(language, tuple(words.split()), text) for language, words, text in found]


def needs_of(page: Path) -> list[str]:
    """Packages that single blocks of a page need."""
    return sorted({need for block in blocks_of(page) if (need := block.value("needs"))})


def missing(need: str) -> bool:
    """Whether a package is not installed."""
    return find_spec(need) is None


def run_page(page: Path, folder: Path, need: str | None = None, before: str = "") -> None:
    """Run what a page has without needs, and what needs one package.

    Args:
        before: Python that makes what a page takes as the reader's: a model, its inputs, a file.
    """
    folder.mkdir()
    environment = _environment(folder.parent)
    script = [_PRELUDE] if need else []
    script += [before] if before else []
    for block in blocks_of(page):
        if block.value("needs") not in (None, need):
            continue
        if name := block.value("file"):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.language == "bash" and "run" in block.words:
            _run(["bash", "-euo", "pipefail", "-c", block.text], folder, environment)
        elif block.language == "python":
            script.append(block.text)
    if script and script != [before]:
        path = folder / "page.py"
        path.write_text("\n\n".join(script), encoding="utf-8")
        _run([sys.executable, str(path)], folder, environment)


def _environment(folder: Path) -> dict[str, str]:
    installed = folder / "installed"
    places = [str(installed), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(place for place in places if place),
        "PIP_TARGET": str(installed),
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip takes the word for what it switches off
        "OMP_NUM_THREADS": "1",
        "PYTHONSAFEPATH": "",  # a page may import what it wrote
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=SECONDS)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
