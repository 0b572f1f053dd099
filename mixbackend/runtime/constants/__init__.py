"""Weights as constants: what depends on them alone is computed once, and they are watched for changes."""
