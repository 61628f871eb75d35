"""The geometry of heads, and the variant that is to serve it."""

from __future__ import annotations

from polyattn.capabilities import Sizes
from polyattn.contract import SequenceAttention
from polyattn.errors import ConfigError
from polyattn.factory import create

__all__ = ["head_sizes", "variant_for"]


def head_sizes(
    d_model: int, heads: int, kv_heads: int | None = None, max_length: int | None = None
) -> Sizes:
    """The sizes of H heads that share a width of E evenly.

    Raises: ConfigError where they do not divide.
    """
    if heads < 1 or d_model % heads:
        raise ConfigError(
            f"heads = {heads}: expected a divisor of d_model = {d_model}, as the heads share it "
            "evenly"
        )
    if kv_heads is not None and (kv_heads < 1 or heads % kv_heads):
        raise ConfigError(
            f"kv_heads = {kv_heads}: expected a divisor of heads = {heads}, as each key head "
            "serves the same number of query heads"
        )
    return Sizes(heads, d_model // heads, kv_heads or heads, max_length=max_length)


def variant_for(attention: str | SequenceAttention, sizes: Sizes) -> SequenceAttention:
    """The variant of a name, or the given one if it was built for such heads.

    Raises: ConfigError where it was not, or is over feature maps.
    """
    variant = create(attention, sizes) if isinstance(attention, str) else attention
    if not isinstance(variant, SequenceAttention):
        raise ConfigError(
            f"attention: expected a sequence variant (or its name), got {type(variant).__name__}; "
            "feature-map variants serve (B, C, ...) tensors"
        )
    own = variant.sizes
    wanted = (sizes.heads, sizes.head_dim, sizes.kv_heads, sizes.value_dim)
    if own and (own.heads, own.head_dim, own.kv_heads, own.value_dim) != wanted:
        raise ConfigError(f"attention: expected a variant built for {sizes}, got one for {own}")
    return variant
