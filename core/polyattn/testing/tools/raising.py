"""Calls that must raise."""

from __future__ import annotations

from collections.abc import Callable

from polyattn.errors import PolyattnError
from polyattn.testing.process.contained import contained, first_line
from polyattn.testing.results import Mismatch, Seen


def must_raise(
    call: Callable[[], object],
    *kinds: type[Exception],
    asked: str,
    expected: str,
    given: str = "",
) -> Exception:
    """The exception, of one of ``kinds``, that the call raises.

    asked: what it asks for, such as ``L > S under a causal mask``. expected: what is raised there,
    in words.
    Raises: Mismatch where it raises another or none; ImportError, a missing package being no
    finding.
    """
    try:
        with contained():
            call()
    except kinds as error:
        return error
    except (Mismatch, ImportError):
        raise
    except Exception as error:
        what = f"{asked} raised {first_line(error)}; expected {expected}"
        raise Mismatch(Seen(what=what, given=given)) from error
    raise Mismatch(Seen(what=f"{asked} was answered, expected {expected}", given=given))


def need_value_error(call: Callable[[], object], asked: str, given: str) -> None:
    """``must_raise`` for what does not fit what was given before."""
    expected = "a ValueError that says what fits"
    must_raise(call, PolyattnError, ValueError, asked=asked, expected=expected, given=given)
