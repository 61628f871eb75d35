"""From what a failure says it was given back to the inputs: a line of Python. No torch.

A failure comes from another process as text, so that the text is all that there is to go by.
"""

from __future__ import annotations

import re

DESCRIBED = re.compile(
    r"(?P<shapes>q \(.+?\)), (?P<dtype>\w+), mask (?P<mask>[^,]+), seed (?P<seed>\d+)"
    r"(?: at a spread of (?P<std>[\de.+-]+))?"
)
"""What ``cases.Sample.describe`` says of inputs that are as they were drawn."""
X = re.compile(r"x \((?P<size>[\d, ]+)\) (?P<dtype>\w+), seed (?P<seed>\d+)(?:, (?P<more>.+))?")
IDS = re.compile(
    r"ids \((?P<size>[\d, ]+)\), seed (?P<seed>\d+) of (?P<vocab>\d+) ids(?:, (?P<more>.+))?"
)
"""What ``networks.described`` says of those of a module and of a model."""


def recipe(described: str) -> str:
    """The line of Python that makes the inputs again that ``describe`` told of.

    Empty where they were made of others, or the text says something else. A mask, and what more
    the text says of the call, is left to be added.
    """
    found = DESCRIBED.match(described)
    if found is None:
        return _of_a_network(described)
    shapes = dict(re.findall(r"(\w+) (\(.*?\))", found["shapes"]))
    how = f"dtype={found['dtype']!r}, seed={found['seed']}"
    how += f", std={found['std']}" if found["std"] else ""
    names, sizes = ", ".join(shapes), ", ".join(shapes.values())
    line = f"from polyattn.testing.tools.cases import drawn; {names} = drawn({sizes}, {how})"
    return line if found["mask"] == "full" else f"{line}  # mask {found['mask']}"


def _of_a_network(described: str) -> str:
    if found := X.match(described):
        how = f"dtype={found['dtype']!r}, seed={found['seed']}"
        name, call = "drawn_x", f"x = drawn_x({found['size']}, {how})"
    elif found := IDS.match(described):
        how = f"vocab={found['vocab']}, seed={found['seed']}"
        name, call = "drawn_ids", f"ids = drawn_ids({found['size']}, {how})"
    else:
        return ""
    more = f"  # {found['more']}" if found["more"] else ""
    return f"from polyattn.testing.subjects.drawing import {name}; {call}{more}"
