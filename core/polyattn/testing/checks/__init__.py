"""The checks, by the groups of properties that they prove."""
