"""What a person may call an item or an event by: its ref, its delivery id, the address in a browser, a path.

This looks at the text alone. Which of several refs is meant, and which source a path is of, is for the caller to find.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

from the_loop.core.model import Kind

_PAGE: Final = re.compile(r"/([\w.-]+)/([\w.-]+)/(?:issues|pulls?)/([0-9]{1,15})(?:/.*)?", re.ASCII)
_FRAGMENTS: Final = (
    (re.compile(r"issuecomment-([0-9]+)", re.ASCII), Kind.COMMENT),
    (re.compile(r"(?:discussion_)?r([0-9]+)", re.ASCII), Kind.REVIEW_COMMENT),
    (re.compile(r"pullrequestreview-([0-9]+)", re.ASCII), Kind.REVIEW),
)
_BARE_PAGE: Final = re.compile(r"[\w-]+(?:\.[\w-]+)+(?::[0-9]+)?/[\w.-]+/[\w.-]+/(?:issues|pulls?)/[0-9]", re.ASCII)
_SHORT: Final = re.compile(r"[\w.-]+/[\w.-]+#[0-9]{1,15}", re.ASCII)
_DELIVERY: Final = re.compile(rf"([^:]+:.+/.+)/((?:{'|'.join(Kind)}):[^/]+|body)")
_HOSTS: Final = {"github.com": "", "www.github.com": "", "api.github.com": ""}


@dataclass(frozen=True, slots=True)
class Address:
    """The item that a text may name: by `refs`, the likeliest first, or by the `path` of a folder or file.

    `key` is the event within the item; "" means the item as a whole.
    """

    refs: tuple[str, ...] = ()
    key: str = ""
    path: str = ""


def read_address(text: str) -> Address | None:
    """What `text` names; None if it has none of the forms."""
    text = text.strip()
    if text.startswith("file://"):
        path = unquote_to_bytes(text[len("file://") :]).decode("utf-8", "surrogateescape")
        return Address(path=path) if path.startswith("/") and "\0" not in path else None
    if re.match(r"https?://", text, re.IGNORECASE):
        return _page(text)
    if _BARE_PAGE.match(text):
        return _page(f"https://{text}")
    if _SHORT.fullmatch(text):
        return Address((f"github:{text.lower()}",))
    if text.startswith(("/", "./", "../", "~/")) or ("/" in text and ":" not in text):
        return Address(path=text)
    if found := _DELIVERY.fullmatch(text):
        return Address((_ref(found[1]),), found[2])
    return Address((_ref(text),)) if re.match(r"[^:/\s]+:.", text) else None


def _page(url: str) -> Address | None:
    """An issue or a pull request, or what is on it; also on a host of its own."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
    except ValueError:
        return None
    page = _PAGE.fullmatch(parts.path)
    if page is None or not host:
        return None
    item = f"{page[1]}/{page[2]}#{page[3]}".lower()
    places = (_HOSTS[host],) if host in _HOSTS else (f"{host}/", f"api.{host}/")  # refs have the host of the API
    return Address(tuple(f"github:{place}{item}" for place in places), _key(parts.fragment))


def _key(fragment: str) -> str:
    for form, kind in _FRAGMENTS:
        if found := form.fullmatch(fragment):
            return f"{kind}:{found[1]}"
    return ""


def _ref(text: str) -> str:
    """A ref as it is filed: those of GitHub are in lower case."""
    return text.lower() if text[:7].lower() == "github:" else text
