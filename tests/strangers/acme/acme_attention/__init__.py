"""A stranger's plugin that adds a variant and a preset."""

from collections.abc import Iterator

import polyattn


@polyattn.hookimpl
def polyattn_variants() -> Iterator[polyattn.VariantSpec | polyattn.PresetSpec]:
    yield polyattn.VariantSpec(
        name="angular",
        target="acme_attention.cosine:Cosine",
        summary="softmax over cosine similarity",
        paper="https://arxiv.org/abs/2010.04245",
    )
    yield polyattn.PresetSpec(name="cool_cosine", variant="angular", options={"temperature": 2.0})
