"""Additive attention for polyattn. What there is stands in ``registry.yaml``."""

from collections.abc import Iterator

import polyattn


@polyattn.hookimpl
def polyattn_variants() -> Iterator[object]:
    yield from polyattn.read_manifest(__name__)
