"""HTML in which nothing can be forgotten to be escaped: what is not ``Html`` is escaped."""

from __future__ import annotations

import html


class Html(str):
    """A piece of finished markup."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str) -> Html:
    """``<name attributes>children</name>``. Plain strings among the children are escaped, and so
    is every attribute. A trailing underscore of an attribute is dropped (``class_``)."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
    )
    return Html(f"<{name}{given}>{join(children)}</{name}>")


def join(children: tuple[str, ...] | list[str]) -> Html:
    """Children one after another, plain strings escaped."""
    return Html("".join(c if isinstance(c, Html) else html.escape(c) for c in children))
