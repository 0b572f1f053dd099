"""The golden record: what is generated, planned and reported for 30 graphs, as text (CONTRIBUTING.md)."""
