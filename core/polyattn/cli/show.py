"""``polyattn show``: what one name is, its options with their ranges, and what it claims."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyattn.cli import tables
from polyattn.cli.list import kind, summary
from polyattn.cli.printable import printable
from polyattn.errors import Unavailable
from polyattn.registry import Entry, Registry, discover, load_target
from polyattn.spec import OperationSpec, PresetSpec, VariantSpec

if TYPE_CHECKING:
    from rich.console import Console

    from polyattn.options import Options

Rows = Iterator[tuple[str, ...]]


def show(
    name: Annotated[str, typer.Argument(help="A variant, operation or preset.")],
) -> None:
    """Show one name: its formula and paper, its options, what it claims, who brings it."""
    registry = discover()
    entry = registry.find(name)
    base = registry.find(entry.spec.variant) if isinstance(entry.spec, PresetSpec) else entry
    # Everything that may fail comes before the first line.
    loaded = _loaded(base)
    console = tables.console()
    _facts(console, entry)
    if base is not entry:
        console.print(f"\n{base.name}, with other defaults:\n", markup=False)
        _facts(console, base)
    if isinstance(base.spec, OperationSpec):
        _members(console, registry, base)
    if loaded.cls is not None:
        _description(console, loaded.cls)
    if loaded.config is not None:
        _options(console, loaded.config)
    if loaded.cls is not None:
        _section(console, ("claim", "value"), _claims(loaded.cls.capabilities))


@dataclass(frozen=True)
class _Loaded:
    """What a name stands for: a variant's class, and the options of a variant or operation."""

    cls: Any = None
    config: type[Options] | None = None


def _loaded(entry: Entry) -> _Loaded:
    """Import what an entry names. Raises: Unavailable where it is not what was declared."""
    from polyattn.capabilities import Capabilities, FeatureMapCapabilities
    from polyattn.factory import _class_of

    if isinstance(entry.spec, OperationSpec):
        return _Loaded(config=_options_of(load_target(entry.spec.config), entry))
    if not isinstance(entry.spec, VariantSpec):
        return _Loaded()
    cls = _class_of(entry)
    if not isinstance(cls.capabilities, Capabilities | FeatureMapCapabilities):
        raise Unavailable(
            f"{entry.label}: {entry.spec.target}.capabilities: expected polyattn.Capabilities, got "
            f"{cls.capabilities!r}"
        )
    return _Loaded(cls, _options_of(cls.Config, entry))


def _options_of(config: object, entry: Entry) -> type[Options]:
    from polyattn.options import Options

    if isinstance(config, type) and issubclass(config, Options):
        return config
    raise Unavailable(f"{entry.label}: its Config is {config!r}, expected a polyattn.Options")


def _facts(console: Console, entry: Entry) -> None:
    spec = entry.spec
    rows = [("name", entry.name), ("kind", kind(entry)), ("what it is", summary(entry))]
    if isinstance(spec, VariantSpec):
        rows += [("paper", spec.paper or "none given"), ("class", spec.target)]
        rows += [("implements", spec.operation)] if spec.operation else []
        rows += [("needs", ", ".join(spec.requires))] if spec.requires else []
    rows.append(("from", f"{entry.distribution} ({entry.label})"))
    tables.show(console, ("", ""), rows, headed=False)


def _section(console: Console, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    console.print()
    tables.show(console, titles, rows)


def _members(console: Console, registry: Registry, entry: Entry) -> None:
    rows = [(member.name, summary(member)) for member in registry.members(entry.name)]
    _section(console, ("asked in this order", "what it is"), rows)
    for other in registry.entries:
        spec = other.spec
        if isinstance(spec, VariantSpec) and spec.operation == entry.name and other.reason:
            told = printable(f"{other.name}: unavailable: {other.reason}")
            console.print(told, markup=False)


def _description(console: Console, cls: Any) -> None:
    for text in (inspect.getdoc(inspect.getmodule(cls)), vars(cls).get("__doc__")):
        if text:
            console.print(f"\n{printable(inspect.cleandoc(text))}", markup=False, highlight=False)


def _options(console: Console, config: type[Options]) -> None:
    rows = [_option(name, field) for name, field in config.model_fields.items()]
    if not rows:
        console.print("\nno options")
        return
    _section(console, ("option", "type", "default", "range", "what it does"), rows)


def _option(name: str, field: Any) -> tuple[str, ...]:
    default = "required" if field.is_required() else repr(field.get_default())
    return name, _type(field.annotation), default, _range(field.metadata), field.description or ""


def _type(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _range(metadata: list[Any]) -> str:
    """The limits among pydantic's metadata, as comparisons."""
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "multiple_of": "multiple of"}
    limits = [
        f"{sign} {getattr(item, key)}"
        for item in metadata
        for key, sign in signs.items()
        if getattr(item, key, None) is not None
    ]
    return ", ".join(limits) or "any"


def _claims(capabilities: Any) -> Rows:
    if hasattr(capabilities, "causal"):
        yield "causal", capabilities.causal
    for name in capabilities.__dataclass_fields__:
        value = getattr(capabilities, name)
        if name == "devices":
            yield from ((f"on {place}", _support(support)) for place, support in value.items())
        elif name == "lengths":
            yield "lengths", _lengths(value)
        elif name != "limit" or value:
            yield name.replace("_", " "), _plain(value)


def _lengths(rule: Any) -> str:
    parts = []
    if rule.multiple_of != 1:
        parts.append(f"multiples of {rule.multiple_of}")
    if rule.at_least:
        parts.append(f"at least {rule.at_least}")
    if rule.up_to is not None:
        parts.append(f"up to {rule.up_to}")
    return ", ".join(parts) or "any"


def _support(support: Any) -> str:
    dtypes = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in support.dtypes))
    backward = "backward" if support.backward else "no backward"
    twice = ", double backward" if support.double_backward else ""
    return f"{dtypes}; {backward}{twice}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, frozenset):
        return ", ".join(map(str, sorted(value))) or "none"
    if isinstance(value, tuple):
        return " to ".join(map(str, value))
    return str(value)
