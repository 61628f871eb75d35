"""YAML for configs and manifests: strict where YAML is surprising, one line for every error.

The rules are those of YAML 1.2's core schema: ``yes`` and ``on`` are text, ``1e-3`` is a number,
``010`` is ten. A key that comes twice is an error, and so is one that is not text. Only plain data
can be written: no tag makes an object, and size and aliases are limited, so that a file from a
stranger is safe to open. No torch.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from polyattn.errors import ConfigError

MAX_CHARACTERS = 1_000_000
MAX_VALUES = 100_000
"""Values in one document, where what an alias stands for counts each time it is used."""

_TAG = "tag:yaml.org,2002:"
_NUMBER = list("-+.0123456789")


class _Loader(yaml.reader.Reader, yaml.scanner.Scanner, yaml.parser.Parser,
              yaml.composer.Composer, yaml.constructor.BaseConstructor,
              yaml.resolver.BaseResolver):  # fmt: skip
    """PyYAML's parser with a schema of our own instead of YAML 1.1's."""

    def __init__(self, text: str) -> None:
        yaml.reader.Reader.__init__(self, text)
        yaml.scanner.Scanner.__init__(self)
        yaml.parser.Parser.__init__(self)
        yaml.composer.Composer.__init__(self)
        yaml.constructor.BaseConstructor.__init__(self)
        yaml.resolver.BaseResolver.__init__(self)


def _scalar(loader: Any, node: Any) -> str:
    text = loader.construct_scalar(node)
    assert isinstance(text, str)
    return text


def _integer(loader: Any, node: Any) -> int:
    text = _scalar(loader, node)
    base = {"0x": 16, "0o": 8}.get(text[:2], 10)
    try:
        return int(text, base)
    except ValueError as error:
        raise _at(node, f"{text[:40]!r} is not a whole number") from error


def _number(loader: Any, node: Any) -> float:
    text = _scalar(loader, node).lower().replace(".inf", "inf").replace(".nan", "nan")
    try:
        return float(text)
    except ValueError as error:
        raise _at(node, f"{text[:40]!r} is not a number") from error


def _boolean(loader: Any, node: Any) -> bool:
    text = _scalar(loader, node).lower()
    if text not in ("true", "false"):
        raise _at(node, f"{text[:40]!r} is neither true nor false")
    return text == "true"


def _sequence(loader: Any, node: Any) -> list[Any]:
    if not isinstance(node, yaml.SequenceNode):
        raise _at(node, "expected a list")
    return [loader.construct_object(item, deep=True) for item in node.value]


def _mapping(loader: Any, node: Any) -> dict[str, Any]:
    if not isinstance(node, yaml.MappingNode):
        raise _at(node, "expected a mapping")
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise _at(key_node, f"a key must be text, got {str(key)[:40]!r}; write it in quotes")
        if key in result:
            raise _at(key_node, f"the key {key!r} comes twice; keep one of them")
        result[key] = loader.construct_object(value_node, deep=True)
    return result


def _unknown(loader: Any, node: Any) -> Any:
    raise _at(node, f"the tag {node.tag[:60]!r} is not allowed; write plain data")


def _at(node: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


for _tag, _construct in {
    _TAG + "null": lambda loader, node: None,
    _TAG + "bool": _boolean,
    _TAG + "int": _integer,
    _TAG + "float": _number,
    _TAG + "str": _scalar,
    _TAG + "seq": _sequence,
    _TAG + "map": _mapping,
    None: _unknown,
}.items():
    _Loader.add_constructor(_tag, _construct)

for _tag, _pattern, _first in (
    (_TAG + "null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_TAG + "bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (_TAG + "int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        _TAG + "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        _NUMBER,
    ),
):
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), _first)


def load(text: str, source: str) -> Any:
    """Plain data (mappings, lists, text, numbers, booleans, None) of one YAML document.

    ``source`` names the text in errors. An empty document is None.

    Raises:
        ConfigError: one line with the source and, where known, the line of the text.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(
            f"{source}: expected at most {MAX_CHARACTERS:,} characters of YAML, got {len(text):,}"
        )
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _count(node, {})
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        problem = error.problem or "not YAML"
        if problem.startswith("but "):
            problem = f"{error.context}, {problem}"
        raise ConfigError(f"{source}{line}: {_one_line(problem)}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {_one_line(str(error))}") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply to be a config; flatten it") from None


def read(path: str | Path) -> Any:
    """The plain data of a YAML file, as by :func:`load`.

    Raises:
        ConfigError: the file is missing, a folder, not UTF-8 text, or not YAML.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(4 * MAX_CHARACTERS + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"{path}: expected a YAML file: {reason}") from None
    try:
        return load(content.decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: expected UTF-8 text, got byte {error.object[error.start]:#04x} "
            f"at position {error.start}"
        ) from None


def _count(node: Any, sizes: dict[int, int]) -> int:
    """How many values a node stands for once its aliases are written out."""
    known = sizes.get(id(node))
    if known == 0:
        raise _at(node, "an alias contains itself")
    if known is not None:
        return known
    sizes[id(node)] = 0
    if isinstance(node, yaml.SequenceNode):
        children = node.value
    elif isinstance(node, yaml.MappingNode):
        children = [part for pair in node.value for part in pair]
    else:
        children = []
    size = 1 + sum(_count(child, sizes) for child in children)
    if size > MAX_VALUES:
        raise _at(node, f"more than {MAX_VALUES:,} values, with aliases written out")
    sizes[id(node)] = size
    return size


def _one_line(text: str) -> str:
    return " ".join(text.split())
