"""The YAML of configs and manifests: strict where YAML surprises, and safe to open."""

import math
from pathlib import Path
from typing import Any

import pytest

from polyattn import strict_yaml
from polyattn.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        ("1.5e3", 1500.0),
        (".5", 0.5),
        ("-2.", -2.0),
        ("-.inf", -math.inf),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("yes", "yes"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("none", "none"),
        ("~", None),
        ("", None),
        ("'1'", "1"),
        ("[1, 2.0, a]", [1, 2.0, "a"]),
        ("{a: {b: [c]}}", {"a": {"b": ["c"]}}),
        ("- &x [1]\n- *x", [[1], [1]]),
    ],
)
def test_values(text: str, value: Any) -> None:
    loaded = strict_yaml.load(text, "f.yaml")
    assert loaded == value
    assert type(loaded) is type(value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3", "f.yaml:3: the key 'a' comes twice"),
        ("x:\n  a: 1\n  a: 1", "f.yaml:3: the key 'a' comes twice"),
        ("1: 2", "f.yaml:1: a key must be text, got '1'"),
        ("? [a]\n: 1", "a key must be text"),
        ("a: [1", "f.yaml:1: "),
        ("a: 'x", "f.yaml:1: found unexpected end of stream"),
        ("a: 1\n---\nb: 1", "expected a single document in the stream, but found another"),
        ("!!python/object/apply:os.system [echo]", "the tag .* is not allowed"),
        ("!!binary aGk=", "the tag .* is not allowed"),
        ("!!int x", "'x' is not a whole number"),
        ("!!float x", "'x' is not a number"),
        ("!!bool 1", "'1' is neither true nor false"),
        ("!!map [1]", "expected a mapping"),
        ("!!seq {a: 1}", "expected a list"),
        ("a: *b", "found undefined alias 'b'"),
        ("a: &a [*a]", "an alias contains itself"),
        ("a: \x01", "not YAML: unacceptable character"),
        ("[" * 5000, "nested too deeply"),
        ("x" * (strict_yaml.MAX_CHARACTERS + 1), "expected at most 1,000,000 characters"),
    ],
)
def test_errors_are_one_line_with_the_source(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        strict_yaml.load(text, "f.yaml")
    assert str(caught.value).startswith("f.yaml:")
    assert "\n" not in str(caught.value)


def test_aliases_of_aliases_are_counted_as_written_out() -> None:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    with pytest.raises(ConfigError, match="more than 100,000 values"):
        strict_yaml.load("\n".join(lines), "f.yaml")


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("name: café", encoding="utf-8")
    assert strict_yaml.read(path) == {"name": "café"}


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml: expected a YAML file: No such file"):
        strict_yaml.read(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        strict_yaml.read(tmp_path)
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"a: caf\xe9")
    with pytest.raises(ConfigError, match="expected UTF-8 text, got byte 0xe9 at position 6"):
        strict_yaml.read(path)
