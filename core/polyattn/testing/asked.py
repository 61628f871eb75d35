"""What the functions of ``polyattn.testing`` are given: the wrong thing is refused by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from polyattn.errors import ConfigError


def described(got: object) -> str:
    """What was given, in few words; nothing of its own is run for that."""
    if isinstance(got, str):
        return repr(got)
    if inspect.isclass(got):
        return f"the class {got.__name__}"
    return "None" if got is None else f"a {type(got).__name__}"


def need_subject(asked: str, got: object, *kinds: type) -> None:
    """Raises: ConfigError for what is no instance of one of ``kinds``."""
    if not isinstance(got, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise ConfigError(f"{asked}: expected an instance of {expected}, got {described(got)}")


def need_class(asked: str, got: object, *kinds: type) -> None:
    """Raises: ConfigError for what is no class derived from one of ``kinds``."""
    if not (inspect.isclass(got) and issubclass(got, kinds) and got not in kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise ConfigError(
            f"{asked}: expected a class derived from {expected}, got {described(got)}"
        )


def expected_failures_of(given: object) -> dict[str, str]:
    """A copy of ``{id: reason}``; none for None. Raises: ConfigError for anything else."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"expected_failures: expected {{id: reason}}, got {described(given)}")
    for id, reason in given.items():
        if not isinstance(id, str):
            raise ConfigError(f"expected_failures: expected the id of a check, got {described(id)}")
        if not isinstance(reason, str) or not reason.strip():
            told = f"expected a reason in words, got {described(reason)}"
            raise ConfigError(f"expected_failures: {id}: {told}")
    return dict(given)
