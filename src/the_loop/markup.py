"""Building HTML in which text from outside cannot be taken for markup."""

from __future__ import annotations

from html import escape

from the_loop.core.model import clean, printable


class Html(str):
    """Text that is markup. Any other text is escaped where it is put into an element."""

    __slots__ = ()


def element(name: str, *inner: object, **attributes: object) -> Html:
    """An element; `class_` is its class, `aria_label` is `aria-label`. An attribute that is None is left out."""
    named = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{named}>{joined(inner)}</{name}>")


def joined(parts: object) -> Html:
    """These parts, one after the other."""
    return Html("".join(map(escaped, parts)))  # type: ignore[call-overload]


def escaped(text: object) -> Html:
    """`text` as it is shown: on one line, without control characters. Markup is left as it is."""
    return text if isinstance(text, Html) else Html(escape(printable(clean(str(text)))))
