"""Layers that compose: multi-head attention, positions, norms, feed-forward, blocks."""
