"""Graph: capture, description and pure rewrites of fx graphs."""
