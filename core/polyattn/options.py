"""Options: the frozen, strict base of every ``Config``, and pydantic's complaints in one line.

A misspelt key is an error with the closest key; integers are strict (``True`` and ``3.0`` are not
integers); NaN and infinities are refused, since a comparison with NaN would let them through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import pydantic

from polyattn import plain
from polyattn.errors import ConfigError, suggestion

if TYPE_CHECKING:
    # What a type checker must see, or it stops checking the arguments of every Config.
    from pydantic._internal._model_construction import ModelMetaclass as _OneLine
else:

    class _OneLine(type(pydantic.BaseModel)):
        """Makes ``Config(left=-1)`` in an author's own code fail as it would in a user's config.

        Not an ``__init__``, which pydantic would call while it validates nested models.
        """

        def __call__(cls, /, **options):
            try:
                return super().__call__(**options)
            except pydantic.ValidationError as error:
                raise ConfigError(first_complaint(error, cls, cls.__qualname__)) from None


class Options(pydantic.BaseModel, metaclass=_OneLine):
    """Base of every variant's ``Config``. Keyword only, immutable, hashable, nothing extra.

    A tuple or a frozenset may be given as a list, and an enum by its value: a config in YAML has
    no other words for them. Nothing else is converted.
    """

    model_config = pydantic.ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        arbitrary_types_allowed=False,
    )

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _from_data(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        assert info.field_name is not None
        return plain.from_data(value, cls.model_fields[info.field_name].annotation)


def as_data(options: Options) -> dict[str, Any]:
    """The options as YAML and JSON can hold them; parsed again they are equal to what they were."""
    data: dict[str, Any] = plain.to_data(options.model_dump())
    return data


T = TypeVar("T", bound=pydantic.BaseModel)


def parse(model: type[T], options: Mapping[str, Any], where: str) -> T:
    """Build ``model`` from ``options``; ``where`` names the place in the user's own config.

    Raises: ConfigError, one line: the path, the value, what is allowed, the closest key.
    """
    try:
        return model.model_validate(dict(options))
    except pydantic.ValidationError as error:
        raise ConfigError(first_complaint(error, model, where)) from None


def first_complaint(
    error: pydantic.ValidationError, model: type[pydantic.BaseModel], where: str
) -> str:
    """The first fault of a validation error as one line a person can act on."""
    fault = error.errors(include_url=False)[0]
    location = fault["loc"]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    owner = _owner(model, location[:-1])
    key = str(location[-1]) if location else ""
    head = f"{where}{path}" if location else where
    if fault["type"] == "extra_forbidden":
        known = sorted(owner.model_fields) if owner else []
        hint = suggestion(key, known)
        return f"{head}: unknown key{hint or f'; known are {_listed(known)}'}"
    if fault["type"] == "missing":
        return f"{head}: missing; give a value for {key!r}"
    return f"{head} = {fault['input']!r}: {_expectation(fault)}"


def _expectation(fault: Any) -> str:
    """What was expected, in plain words, from pydantic's message."""
    message = str(fault["msg"])
    for prefix in ("Value error, ", "Input "):
        message = message.removeprefix(prefix)
    return message


def _owner(
    model: type[pydantic.BaseModel], location: tuple[str | int, ...]
) -> type[pydantic.BaseModel] | None:
    """The model that holds the last key of ``location``, as far as annotations tell."""
    current: type[pydantic.BaseModel] | None = model
    for part in location:
        if current is None or not isinstance(part, str) or part not in current.model_fields:
            continue
        current = _model_in(current.model_fields[part].annotation)
    return current


def _model_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    found = (_model_in(argument) for argument in get_args(annotation))
    return next((model for model in found if model is not None), None)


def _listed(words: list[str]) -> str:
    return ", ".join(words) if words else "none (it takes no options)"
