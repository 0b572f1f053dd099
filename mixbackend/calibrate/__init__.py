"""Calibrate: probes and blocks of real models that fill the tables of rates."""
