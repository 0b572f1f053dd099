"""Numpy as a target of mixbackend's code generator."""

from mixbackend_numpy.target import NumpyBackend, NumpyTarget

__all__ = ["NumpyBackend", "NumpyTarget"]
