"""The wrong thing given to the functions of ``polyattn.testing`` is a ConfigError that names it."""

from __future__ import annotations

import pytest

from polyattn import testing
from polyattn.contract import SequenceAttention
from polyattn.errors import ConfigError
from polyattn.testing.subjects.positions import Rotation

WRONG = (None, "core/rope", object(), [], Rotation)


@pytest.mark.parametrize("got", WRONG)
@pytest.mark.parametrize("asked", ["position_checks", "mask_checks", "state_checks"])
def test_what_is_no_subject_is_refused_at_once(asked: str, got: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{asked}: expected an instance of .*, got "):
        getattr(testing, asked)(got)


@pytest.mark.parametrize("got", [None, "se", object(), [], int, SequenceAttention])
def test_what_is_no_class_of_variants_is_refused(got: object) -> None:
    with pytest.raises(ConfigError, match=r"^check_class: expected a class derived from"):
        testing.check_class(got)  # type: ignore[arg-type]


@pytest.mark.parametrize("got", [None, 3, object(), ["se"], SequenceAttention])
def test_what_is_no_name_is_refused(got: object) -> None:
    with pytest.raises(ConfigError, match=r"^check_variant: expected the name of a variant, got"):
        testing.check_variant(got)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (None, "got None"),
        (3, "got a int"),
        ([], "got an empty one"),
        ([None], "expected a name or a subject, got None"),
        ([Rotation], "got the class Rotation"),
    ],
)
def test_what_are_no_names_are_refused(got: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        testing.parametrize_with_checks(got)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("got", "words"),
    [
        ([], "expected {id: reason}, got a list"),
        (["check_padding"], "expected {id: reason}, got a list"),
        ("check_padding", "expected {id: reason}, got 'check_padding'"),
        ({"check_padding": None}, "check_padding: expected a reason in words, got None"),
        ({"check_padding": " "}, "expected a reason in words"),
        ({3: "for a reason"}, "expected the id of a check, got a int"),
    ],
)
def test_expected_failures_have_ids_and_reasons(got: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        testing.run_checks([], expected_failures=got)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=words):
        testing.parametrize_with_checks(["core/count"], expected_failures=got)  # type: ignore[arg-type]
