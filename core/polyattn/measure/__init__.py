"""Measuring: time, memory and learning of variants, compared honestly within one run.

Read in this order: ``clock`` (interleaved timing, ratios, the void rule), ``memory`` (peak bytes),
``proof`` (no timing without a correct result), ``worker`` (processes with a known allocator),
``comparison`` (the whole of ``polyattn compare``), ``report`` (its page).
"""
