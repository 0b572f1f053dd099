"""Minification: which region of which backend is wrong, slow or fails, and the smallest region that still is."""
