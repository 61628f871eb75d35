"""Which checks a subject gets, generated from its claims and its examples."""
