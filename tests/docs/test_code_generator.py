"""Every Python block of the code generator's page runs, in order."""

from __future__ import annotations

from pathlib import Path

from document_blocks import blocks_of

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "code_generator.md"


def test_blocks_run() -> None:
    from mixbackend.backends.codegen.targets.cpp.target import CppTarget

    blocks = [block.text for block in blocks_of(PAGE) if block.language == "python"]
    assert len(blocks) == 3
    names: dict[str, object] = {"MyTarget": CppTarget, "print": lambda *values: None}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["MyBackend"]().availability().available  # type: ignore[operator]
