"""The built-in variants: a plugin like any other, that happens to live beside the core.

What it offers is written in its manifest, ``registry.yaml``.
"""

from collections.abc import Iterator

import polyattn


@polyattn.hookimpl
def polyattn_variants() -> Iterator[object]:
    """Yield the descriptors of the manifest."""
    yield from polyattn.read_manifest(__name__)
