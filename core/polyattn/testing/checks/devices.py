"""A device that is not claimed: refused, and by its name."""

from __future__ import annotations

from polyattn.errors import Unsupported
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.feature_maps import FeatureMapSubject
from polyattn.testing.subjects.sequence import Subject
from polyattn.testing.tools.cases import SQUARE, normal
from polyattn.testing.tools.raising import must_raise


@proves(
    "A device that is not claimed is refused with Unsupported, which names it.",
    causes=(
        "forward() or __call__() overridden, so that no call is judged",
        "an assertion or an error of a kernel in place of the claim devices",
    ),
    claim="devices",
)
def check_unclaimed_device_is_refused(subject: Subject | FeatureMapSubject) -> None:
    name = subject.place.name
    error = must_raise(
        lambda: _call(subject),
        Unsupported,
        asked=f"a call on {name}, which is not claimed,",
        expected="Unsupported",
    )
    if name not in str(error):
        raise Mismatch(Seen(what=f"it refused without naming {name}: {error}")) from error


def _call(subject: Subject | FeatureMapSubject) -> None:
    if isinstance(subject, FeatureMapSubject):
        dims = min(subject.capabilities.spatial_dims)
        subject.build(8, subject.dtype)(normal(2, 8, *(5,) * dims, seed=1).to(subject.dtype))
        return
    shape = subject.fit(SQUARE)
    subject.build(shape.sizes, subject.dtype).raw(subject.draw(shape))
