"""Fixtures of ``stand_in_backends`` for the tests of this folder: fresh state, mixtures, backends that misbehave."""

from stand_in_backends import (  # noqa: F401
    _fresh,
    faulty,
    loopback,
    make_mixture,
    packer,
    sleeper,
    tried_at_once,
    worth_comparing,
)
