"""K. Life cycle: what is saved is what is loaded."""

from __future__ import annotations

import io

import torch

from polyattn.testing.cases import SQUARE
from polyattn.testing.numerics import compare_bits
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subject import Subject, blaming


@proves(
    "Saved and loaded into a fresh instance, it gives the same; the keys do not depend on what it "
    "has seen.",
    causes=(
        "a table or mask kept as a buffer that grows with the length",
        "random features kept outside the state",
        "a lazy initialisation that overwrites what was loaded",
    ),
)
def check_state_dict_roundtrip(subject: Subject) -> None:
    shape = subject.fit(SQUARE)
    longer = subject.fit(SQUARE.of(queries=20, keys=20))
    sample = subject.draw(shape)
    instance = subject.at(shape)
    module = instance.module()
    assert module is not None, "only what has a module has a state to save"
    fresh_keys = {name: tuple(x.shape) for name, x in module.state_dict().items()}
    instance(subject.draw(longer))
    before = instance(sample)
    after = {name: tuple(x.shape) for name, x in module.state_dict().items()}
    if after != fresh_keys:
        changed = sorted(fresh_keys.items() ^ after.items())
        raise Mismatch(
            Seen(
                what=f"the saved state depends on the calls made: {changed[:4]}",
                given=sample.describe(),
            )
        )
    saved = io.BytesIO()
    with blaming("torch.save and load_state_dict(strict=True)"):
        torch.save(module.state_dict(), saved)
        saved.seek(0)
        other = subject.at(shape, seed=1)
        target = other.module()
        assert target is not None
        target.load_state_dict(torch.load(saved, weights_only=True), strict=True)
    compare_bits("the output after loading", other(sample), before, given=sample.describe())
