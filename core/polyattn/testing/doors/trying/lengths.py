"""Which lengths a network takes."""

from __future__ import annotations

from polyattn.testing.doors.trying.trial import Trial

LENGTHS = (6, 8, 16, 32, 64, 128)


def find_lengths(trial: Trial) -> bool:
    """Which lengths it takes; False where it takes none that is tried."""
    subject = trial.subject
    errors = []
    for length in LENGTHS:
        subject.step, subject.any_length = length, False
        if trial.tried(subject.draw(2, length)) is None:
            errors.append(trial.error)
            continue
        if length == LENGTHS[0] and trial.tried(subject.draw(2, length + 1)) is not None:
            subject.step, subject.any_length = 1, True
        elif trial.tried(subject.draw(2, 2 * length)) is not None:
            subject.any_length = True
            trial.notes.append(f"checked at lengths that are multiples of {length}")
        else:
            trial.notes.append(f"it takes a length of {length} alone: checked there")
        return True
    subject.step, subject.any_length = 1, True
    trial.error = errors[0]
    return False


def find_longest(trial: Trial, most: int) -> None:
    """The greatest length that it takes, where it refuses one of up to ``most``."""
    subject = trial.subject
    good, bad, error = subject.fit(12), 0, ""
    if trial.tried(subject.draw(1, good)) is None:
        good, bad, error = subject.fit(6), good, trial.error
    while good < most and not bad:
        if trial.tried(subject.draw(1, 2 * good)) is None:
            bad, error = 2 * good, trial.error
        else:
            good *= 2
    while bad and bad - good > 1:
        middle = (good + bad) // 2
        if middle % subject.step or trial.tried(subject.draw(1, middle)) is None:
            bad = middle
        else:
            good = middle
    if bad:
        subject.longest = good
        trial.notes.append(f"it takes lengths up to {good} ({error})")
