"""Tuning: whole plans of one graph measured against one another; the fastest is remembered."""
