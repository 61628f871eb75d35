"""A stranger's plugin that claims a name which another distribution has."""

from collections.abc import Iterator

import polyattn


@polyattn.hookimpl
def polyattn_variants() -> Iterator[polyattn.VariantSpec]:
    yield polyattn.VariantSpec(name="local_window", target="twin_attention.code:Window")
