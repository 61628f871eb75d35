"""The hooks of polyattn: everything that a plugin can add. No torch.

A plugin is a package with an entry point in the group ``polyattn``::

    [project.entry-points.polyattn]
    mine = "my_package"
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from polyattn.spec import Spec

PROJECT = "polyattn"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def polyattn_variants() -> Iterable[Spec]:  # type: ignore[empty-body]
    """Yield a descriptor for each variant, operation and preset of the plugin.

    Listing runs this hook and must stay quick: the classes are named by text and imported only
    when they are used::

        # my_package/__init__.py
        import polyattn

        @polyattn.hookimpl
        def polyattn_variants():
            yield polyattn.VariantSpec(
                name="angular",
                target="my_package.angular:Angular",
                summary="softmax over cosine similarity, learned temperature",
                paper="https://arxiv.org/abs/2010.04245",
            )
            yield polyattn.PresetSpec(
                name="cool_angular", variant="angular", options={"temperature": 2.0}
            )

    or, with the same descriptors written in ``my_package/registry.yaml``::

        @polyattn.hookimpl
        def polyattn_variants():
            yield from polyattn.read_manifest(__name__)
    """
