"""Artifacts: what was compiled, taken up from its bytes; in another process as well, where there are some."""

from __future__ import annotations

from mixbackend.certify.cases import Case
from mixbackend.certify.tested import NotAsked, Problem, Tested, named, one_line
from mixbackend.contracts.asked import AskedBackend

KIND = "artifact"


def loaded_here(tested: Tested) -> Problem | None:
    """What ``load`` makes of an artifact is right in the process that stored it."""
    if tested.compiled.artifact is None:
        raise NotAsked("it stores nothing")
    return loaded(tested.case, tested.backend, tested.compiled.artifact, "loaded where it was compiled")


def loaded(case: Case, backend: AskedBackend, artifact: bytes, when: str) -> Problem | None:
    """What ``load`` makes of an artifact is right."""
    try:
        compiled = backend.load(case.region, artifact)
    except FileNotFoundError as error:
        raise NotAsked(f"the artifact refers to what is gone: {error}") from error
    except Exception as error:
        return Problem(KIND, f"{when}: {one_line(error)}")
    again = Tested(case, backend, compiled)
    return named(KIND, again.judged(again.inputs()), when)
