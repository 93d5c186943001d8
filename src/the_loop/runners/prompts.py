"""The texts that a session is given: templates of the operator, filled from a delivery's payload. Pure.

What other people wrote is put between fences, lines of backquotes that are longer than any in the text, and said to
be theirs. Placeholders are those of `string.Template`: `$ref`, `${title}`, and `$$` for a dollar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any, Final

from the_loop.config import Fault
from the_loop.core.guards import OWN_MARKER
from the_loop.core.model import Kind, printable

PLACEHOLDERS: Final = (
    *("id", "kind", "ref", "url", "title", "author", "body", "thread", "created", "reason", "about"),
    *("attempt", "redelivery", "again", "omitted", "fence", "mark"),
)
_HEAD: Final = "[the-loop] delivery $id$again\n"
_MARK: Final = (
    "If you write on the item yourself, end that text with this line, so that it does not come back to you:\n$mark"
)
_SAID: Final = "Between the fences is what $author wrote, as it was written:\n$fence\n$body\n$fence\n"
SPAWN: Final = f"{_HEAD}You are to work on $ref: $url\nTitle: $title\n{_SAID}${{thread}}{_MARK}"
COMMENT: Final = f"{_HEAD}A new $kind on $ref: $url\n{_SAID}{_MARK}"
REVIEW: Final = f"{_HEAD}A new $kind on $ref ($about): $url\n{_SAID}{_MARK}"
RESUME: Final = (
    "[the-loop] your session on $ref was started again: $url\n"
    "You were given the following before, and there is nothing to do about it by itself; new messages follow.\n$thread"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """One template for each kind of event; an empty one gives the session nothing."""

    spawn: str = SPAWN
    comment: str = COMMENT
    review: str = REVIEW
    resume: str = RESUME
    close: str = ""

    def text(self, payload: Mapping[str, Any]) -> str:
        """The text for this event. `payload` is as `Event.to_json` makes it."""
        return _filled(self._of(str(payload.get("kind"))), payload)

    def resumed(self, payload: Mapping[str, Any], told: Sequence[Mapping[str, Any]]) -> str:
        """The text for a session that was started again, with the payloads that it was given before."""
        entries = [entry for before in told for entry in (_as_entry(before), *before.get("thread", ()))]
        omitted = sum(int(before.get("omitted") or 0) for before in told)
        return _filled(self.resume, {**payload, "thread": entries, "omitted": omitted}) if self.resume else ""

    def _of(self, kind: str) -> str:
        match kind:
            case Kind.SPAWN:
                return self.spawn
            case Kind.COMMENT:
                return self.comment
            case Kind.CLOSE:
                return self.close
            case _:
                return self.review


def faults(**templates: str | None) -> list[Fault]:
    """What is wrong with these templates, by field."""
    return [Fault(field, problem) for field, text in templates.items() if text and (problem := fault_of(text))]


def fault_of(text: str) -> str:
    """Why this is not a template that can be filled, or nothing."""
    template = Template(text)
    if not template.is_valid():
        return "has a '$' that begins no placeholder; write '$$' for a dollar"
    unknown = [name for name in template.get_identifiers() if name not in PLACEHOLDERS]
    if unknown:
        known = ", ".join(f"${name}" for name in PLACEHOLDERS)
        return f"'${unknown[0]}' is not a placeholder; there are {known}"
    return ""


def _filled(template: str, payload: Mapping[str, Any]) -> str:
    body = str(payload.get("body") or "")
    thread = [entry for entry in payload.get("thread", ()) if isinstance(entry, Mapping)]
    fence = _fence(body, *(str(entry.get("body") or "") for entry in thread))
    shown = {
        "id": payload.get("deliveryId"),
        "kind": str(payload.get("kind", "")).replace("_", " "),
        "ref": payload.get("ref"),
        "url": payload.get("url"),
        "title": payload.get("title"),
        "author": payload.get("author") or "an unknown author",
        "created": payload.get("createdAt"),
        "reason": payload.get("reason") or "",
        "about": payload.get("verdict") or payload.get("path") or "commented",
        "attempt": payload.get("attempt"),
        "redelivery": "true" if payload.get("redelivery") else "false",
        "again": " (delivered again: it may have arrived before)" if payload.get("redelivery") else "",
        "omitted": payload.get("omitted") or 0,
    }
    safe = {name: printable("" if value is None else str(value)) for name, value in shown.items()}
    whole = "(too long to be shown: see its address)" if payload.get("truncated") else body
    return Template(template).substitute(
        safe, body=whole, thread=_thread(thread, fence, shown["omitted"]), fence=fence, mark=OWN_MARKER
    )


def _thread(entries: Sequence[Mapping[str, Any]], fence: str, omitted: object) -> str:
    parts = [_entry(entry, fence) for entry in entries]
    if omitted:
        parts.append(f"({omitted} more of other authors, or too old, are left out.)\n")
    return "".join(parts)


def _entry(entry: Mapping[str, Any], fence: str) -> str:
    author = printable(str(entry.get("author") or "an unknown author"))
    kind = printable(str(entry.get("kind") or "comment")).replace("_", " ")
    url = printable(str(entry.get("url") or ""))
    body = "(too long to be shown: see its address)" if entry.get("truncated") else str(entry.get("body") or "")
    return f"{kind[:1].upper()}{kind[1:]} by {author} ({url}):\n{fence}\n{body}\n{fence}\n"


def _as_entry(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    title = payload.get("title") if payload.get("kind") == Kind.SPAWN else None
    body = payload.get("body") or ""
    return {
        **payload,
        "kind": "item" if title else payload.get("kind"),
        "body": f"{title}\n\n{body}" if title else body,
    }


def _fence(*texts: str) -> str:
    longest = max((len(run) for text in texts for run in re.findall("`+", text)), default=0)
    return "`" * max(3, longest + 1)
