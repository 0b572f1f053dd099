"""A kernel as text: what ``printer`` makes and ``compiler`` takes.

Place: beside both, so that what was compiled before is loaded without either.
"""

from __future__ import annotations

from dataclasses import dataclass

FUNCTION = "mixbackend_kernel"


@dataclass(frozen=True)
class Text:
    """See the module's docstring.

    Attributes:
        body: the function ``FUNCTION``, without imports.
        signature: name and Triton type of every argument.
        warps: of a block.
        stages: turns of a loop with loads that are under way at once; 0 leaves that to Triton.
    """

    body: str
    signature: tuple[tuple[str, str], ...]
    warps: int
    stages: int = 0
