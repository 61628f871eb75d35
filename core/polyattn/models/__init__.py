"""Whole models, assembled from a config."""
