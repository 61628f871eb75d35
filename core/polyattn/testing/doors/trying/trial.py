"""Calls of a network that may fail, with the process put back after each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from polyattn.testing.process.contained import contained, limited, words_of
from polyattn.testing.process.settings import settings_restored
from polyattn.testing.results import Mismatch
from polyattn.testing.subjects.networks import Network, seed_all


class Trial:
    """Calls that may fail, each with the settings put back and so long and no longer."""

    def __init__(self, subject: Network, patience: float | None) -> None:
        self.subject = subject
        self.patience = patience
        self.notes: list[str] = []
        self.doubts: list[str] = []
        """What is odd and breaks no rule: the verdict says it."""
        self.error = ""
        """Why the last call gave nothing."""
        with self.guarded():
            self.running = subject.build()

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Around all code of strangers. Raises: TimeUp."""
        with settings_restored(), limited(self.patience), contained():
            yield

    def tried(self, x: Tensor, **keywords: Any) -> Tensor | None:
        """The output, or None."""
        try:
            with self.guarded(), torch.no_grad():
                return self.running(x.clone(), **keywords)
        except (Mismatch, ImportError) as error:
            text = words_of(error).splitlines()
            self.error = text[0] if text else type(error).__name__
            return None

    def seeded(self, x: Tensor, seed: int) -> Tensor | None:
        """The output with the global random states set to this seed, or None."""
        try:
            with self.guarded(), torch.no_grad():
                seed_all(seed)
                return self.running(x.clone())
        except (Mismatch, ImportError):
            return None

    def rebuilt(self) -> None:
        """Build it anew, after what is known of it has changed."""
        with self.guarded():
            self.running = self.subject.build()
