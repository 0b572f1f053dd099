"""Certification finds what is deliberately wrong, each fault for its own reason, and nothing where nothing is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from few_samples import SAMPLES
from wrong_backends import IN_ONE_PROCESS, NEED_PROCESSES, Dies, Right

import mixbackend
from mixbackend.certify.certificate import Certificate
from mixbackend.contracts import Backend

LEFT_OUT_OF_QUICK = ("repeats_wrongly", "needs_elements")
"""What the short examination does not look for."""


def certified(backend: Backend, **options: Any) -> Certificate:
    """In this process, by samples of the ops that these backends claim."""
    return mixbackend.certify(backend, samples=SAMPLES, sources=("given",), jobs=0, **options)


def reasons(certificate: Certificate) -> set[str]:
    return {kind for row in certificate.failures for kind in row.kinds}


def test_there_are_enough() -> None:
    assert len({kind.reason for kind in (*IN_ONE_PROCESS, *NEED_PROCESSES)}) >= 12


def test_what_is_right_is_proved() -> None:
    certificate = certified(Right())
    assert certificate.passed and not certificate.failures, certificate.to_markdown()
    assert certificate.counts["proved"] >= 8
    held = {name for row in certificate.rows for name in row.held}
    wanted = {kind.reason for kind in IN_ONE_PROCESS} & {"strides", "kept results", "updated inputs", "other sizes"}
    assert wanted <= held


@pytest.mark.parametrize("kind", IN_ONE_PROCESS, ids=lambda kind: kind.name)
def test_a_fault_is_found_for_its_reason(kind: type[Right]) -> None:
    certificate = certified(kind(), quick=kind.name not in LEFT_OUT_OF_QUICK)
    assert not certificate.passed
    assert kind.reason in reasons(certificate), certificate.to_markdown()


@pytest.mark.parametrize(
    "kind",
    # Processes take seconds to start; one fault by day shows that a process that dies is a row.
    [pytest.param(kind, marks=[] if kind is Dies else [pytest.mark.nightly]) for kind in NEED_PROCESSES],
    ids=lambda kind: kind.name,
)
def test_a_fault_of_a_process_is_found(kind: type[Right]) -> None:
    certificate = mixbackend.certify(
        kind(), samples="few_samples:SAMPLES", sources=("given",), ops=("relu", "exp"), jobs=1, timeout_s=3, quick=True
    )
    assert reasons(certificate) == {kind.reason}, certificate.to_markdown()
    # The other claims were examined all the same.
    assert kind.reason == "artifact" or certificate.counts["proved"]
