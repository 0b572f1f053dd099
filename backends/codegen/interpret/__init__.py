"""The meaning of the intermediate representation, run with torch."""
