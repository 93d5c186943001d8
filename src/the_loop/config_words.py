"""What would be right in the configuration, in words: of a type, and of a value that is of another one."""

from __future__ import annotations

import re
import reprlib
from typing import Annotated, Any, Final, Literal, get_args, get_origin

_CREDENTIALS: Final = re.compile(r"//[^\s]*@")
_BRIEFLY: Final = reprlib.Repr()
_BRIEFLY.maxstring = _BRIEFLY.maxother = 60
_BRIEFLY.maxlevel = 2
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_EXAMPLES: Final = {
    "authorizedUsers": "octocat",
    "repos": "octo/repo",
    "command": "my-agent",
    "kinds": "spawn, comment",
}
_AS_BOOL: Final = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}


def wrong(hint: Any, value: Any, key: str, problem: str) -> str:
    """What is wrong with `value`, which `hint` does not take. `problem`: the validator's own sentence."""
    base, metas = _parts(hint)
    if get_origin(base) is tuple and isinstance(value, list) and value:
        return _wrong_inside(get_args(base)[0], value, problem)
    if base is str and isinstance(value, str):  # the type is right, and the form is not
        words = _description(metas)
        return f"{_plain(problem)}, got {shown(value)}{f' ({words})' if words else ''}"
    return f"expected {right(hint, key)}, got {shown(value)}{_advice(base, value)}"


def _wrong_inside(hint: Any, value: list[Any], problem: str) -> str:
    """The fault of one element, which the validator names by its index."""
    inner = re.search(r" - at `\$\[(\d+)\]", problem)
    if inner is None:
        return f"{_plain(problem)}, got {shown(value)}"
    return wrong(hint, value[int(inner[1])], "", problem)


def right(hint: Any, key: str) -> str:
    """What `hint` takes, as in "a whole number from 1 to 86400"."""
    base, metas = _parts(hint)
    if base is bool:
        return "true or false"
    if base in (int, float):
        what = "a whole number" if base is int else "a number"
        bounds = next((meta for meta in metas if meta.le is not None), None)
        return f"{what} from {bounds.ge} to {bounds.le}" if bounds is not None else what
    if get_origin(base) is Literal:
        return f"one of: {', '.join(get_args(base))}"
    if get_origin(base) is tuple:
        return f"a list, as in [{_EXAMPLES.get(key, 'one, two')}]"
    if get_origin(base) is dict:
        return "a mapping, as in {NAME: value}"
    words = _description(metas)
    return f"text{f' ({words})' if words else ''}" if base is str else "another value"


def _parts(hint: Any) -> tuple[Any, list[Any]]:
    """The type below `Annotated` and `| None`, and what is noted with it."""
    metas: list[Any] = []
    while True:
        if get_origin(hint) is Annotated:
            hint, *found = get_args(hint)
            metas += found
        elif type(None) in get_args(hint):
            hint = next(part for part in get_args(hint) if part is not type(None))
        else:
            return hint, metas


def _description(metas: list[Any]) -> str:
    return next((meta.description for meta in metas if meta.description), "")


def _advice(base: Any, value: Any) -> str:
    """What to do with a value that is right but for its quotes, or lacks them."""
    if base in (int, float) and isinstance(value, str) and _NUMBER.fullmatch(value):
        return "; write it without quotes"
    if base is bool and isinstance(value, str) and value.lower() in _AS_BOOL:
        return f"; write {_AS_BOOL[value.lower()]}, without quotes"
    if base is str and isinstance(value, bool):
        return "; YAML reads a bare yes, no, on and off as true and false: put the text in quotes"
    if base is str and isinstance(value, (int, float)):
        return "; put it in quotes"
    return ""


def shown(value: Any) -> str:
    """Never the whole, as aliases can make it larger than memory; and no password of an address."""
    if value is None or isinstance(value, bool):
        return "nothing" if value is None else str(value).lower()
    try:
        text = _BRIEFLY.repr(_CREDENTIALS.sub("//…@", value) if isinstance(value, str) else value)
    except ValueError:
        return "a number of thousands of digits"
    return _CREDENTIALS.sub("//…@", text)


def _plain(problem: str) -> str:
    """The validator's sentence without its own idea of the value, and without a pattern that says little."""
    text = re.sub(r" - at `.*`$", "", problem)
    text = re.sub(r", got `.*`$| '.*'$", "", re.sub(r" matching regex .*", " of another form", text)).replace("`", "")
    return text[:1].lower() + text[1:]
