"""Real models, fair timings, and upstream's rule for when a compiled model counts as right."""
