"""Fixtures of ``stand_in_backends`` for the tests of this folder: fresh state, mixtures, backends that misbehave."""

from stand_in_backends import *  # noqa: F403
