"""Whether a network has parameters that hide others until they learn."""

from __future__ import annotations

from torch import nn

from polyattn.testing.doors.trying.trial import Trial
from polyattn.testing.subjects.waking import asleep


def settle_waking(trial: Trial) -> None:
    """Wake what starts at zero, where it still answers with that; says so."""
    subject, function = trial.subject, trial.running.function
    names = asleep(function) if isinstance(function, nn.Module) else []
    if not names:
        return
    subject.woken = True
    trial.rebuilt()
    out = trial.tried(subject.draw(2, subject.fit(6)))
    if out is None or not bool(out.isfinite().all()):
        subject.woken = False
        trial.rebuilt()
        return
    more = f" and {len(names) - 4} more" if names[4:] else ""
    told = "of zero or nearly so at first, which hides the rest: checked with other numbers there"
    trial.notes.append(f"{', '.join(names[:4])}{more}: {told}")
