"""Which lines of a text GitHub shows as text: not quoted, not code, not hidden, not the old mail below a reply.

The blocks are found by markdown-it (CommonMark, with GitHub's tables). It takes 0.1 s to import and, at the worst, a
second for 64 KiB, so a caller asks only about a text with a line that matters, and reads long ones in a thread. Pure.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

LIMIT: Final = 1 << 16  # characters; GitHub takes no more. Of a longer text no line is known to be shown


@dataclass(frozen=True, slots=True)
class Shown:
    """Numbers of lines, from 0: those that are `text`, and those that are `html` of their own, as comments are."""

    text: frozenset[int]
    html: frozenset[int]


NOTHING: Final = Shown(frozenset(), frozenset())


def lines_of(body: str) -> list[str]:
    """The lines of a text, whatever ends them."""
    return body.replace("\r\n", "\n").replace("\r", "\n").split("\n")


@functools.lru_cache(maxsize=64)
def shown(body: str) -> Shown:
    """The lines that are shown; none of a text over LIMIT."""
    if len(body) > LIMIT:
        return NOTHING
    lines = lines_of(body)
    end = _old_mail(lines)
    text: set[int] = set()
    html: set[int] = set()
    for kind, first, last in _blocks("\n".join(lines)):
        if kind == "html":
            html.update(range(first, last))
        else:
            text.update(_outside_code(lines, first, last))
    return Shown(frozenset(one for one in text if one < end), frozenset(html))


def _blocks(source: str) -> Iterator[tuple[str, int, int]]:
    """Paragraphs, headings and HTML outside quotations and tables, with their lines."""
    tokens: list[Any] = []
    parser = _parser()
    parser.block.parse(source, parser, {}, tokens)
    hidden = within = 0
    for token in tokens:
        if token.type.startswith(("blockquote_", "table_")):
            hidden += token.nesting
        elif hidden or not token.map:
            continue
        elif token.type == "html_block":
            yield "html", token.map[0], token.map[1]
            opened = len(_BLOCK_OPENED.findall(token.content)) - len(_BLOCK_CLOSED.findall(token.content))
            within = max(0, within + opened)  # what follows until its end is shown as it says
        elif token.type == "inline" and not within:
            yield "text", token.map[0], token.map[1]


@functools.cache
def _parser() -> Any:
    from markdown_it import MarkdownIt  # noqa: PLC0415 (see above)

    return MarkdownIt("commonmark").enable("table")


# --- within a paragraph ---

_TICKS: Final = re.compile(r"(?<![`\\])`+(?!`)")
_BLOCK_OPENED: Final = re.compile(r"<(?:code|kbd|samp|tt|blockquote)\b", re.IGNORECASE)
_BLOCK_CLOSED: Final = re.compile(r"</(?:code|kbd|samp|tt|blockquote)\b", re.IGNORECASE)
_OPENED: Final = re.compile(r"(?<!\\)<(?:(!--)|(code|pre|kbd|samp|tt|script|style|textarea)\b)", re.IGNORECASE)


def _outside_code(lines: list[str], first: int, last: int) -> Iterator[int]:
    """The lines of a paragraph that begin outside code and what HTML hides."""
    content = "\n".join(lines[first:last])
    code = [*_code_spans(content)]
    spans = sorted((*code, *_html_spans(content, code)))
    at = reach = index = 0
    for number in range(first, last):
        while index < len(spans) and spans[index][0] < at:
            reach = max(reach, spans[index][1])
            index += 1
        if reach <= at:
            yield number
        at += len(lines[number]) + 1


def _html_spans(content: str, code: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What HTML within a paragraph hides or shows as code. A comment that has no end is text, a tag goes to the end."""
    folded, at, index = content.lower(), 0, 0
    comments_end = folded.rfind("-->")
    for opened in _OPENED.finditer(folded):
        while index < len(code) and code[index][1] <= opened.start():
            index += 1
        if index < len(code) and code[index][0] < opened.start():
            continue  # it is code itself
        if opened.start() < at or (opened[1] and opened.end() > comments_end):
            continue
        end = folded.find("-->" if opened[1] else f"</{opened[2]}", opened.end())
        at = len(content) if end < 0 else end
        yield opened.start(), at


def _code_spans(content: str) -> Iterator[tuple[int, int]]:
    """Code between two runs of as many backticks; a run without its like is text."""
    runs = [found.span() for found in _TICKS.finditer(content)]
    following: dict[int, list[int]] = {}  # by length: the runs of it, the last one first
    for index in range(len(runs) - 1, -1, -1):
        following.setdefault(runs[index][1] - runs[index][0], []).append(index)
    index = 0
    while index < len(runs):
        start, end = runs[index]
        same = following[end - start]
        while same and same[-1] <= index:
            same.pop()
        if same:
            yield start, runs[same[-1]][1]
            index = same[-1]
        index += 1


# --- replies by mail ---

_FROM: Final = r"from|von|de|da|van|od|fra|från|lähettäjä|от|发件人|寄件者|差出人"
_OTHERS: Final = (
    r"sent|date|to|cc|subject|gesendet|datum|an|betreff|envoyé|à|objet|enviado|para|asunto|fecha|inviato|data|a|oggetto"
    r"|verzonden|aan|onderwerp|assunto|enviada|sendt|til|emne|skickat|till|ämne|wysłano|do|temat|дата|кому|тема|主题|收件人"
)
_FIRST: Final = re.compile(rf"\s*[*_]{{0,2}}(?:{_FROM})\s*[:\uff1a][*_]{{0,2}}\s*\S", re.IGNORECASE)
_OTHER: Final = re.compile(rf"\s*[*_]{{0,2}}(?:{_OTHERS})\s*[:\uff1a]", re.IGNORECASE)
_HEAD: Final = re.compile(
    r"\s*-{2,}\s*(?:original message|ursprüngliche nachricht|message d'origine|mensaje original|messaggio originale"
    r"|oorspronkelijk bericht|mensagem original|forwarded message|weitergeleitete nachricht)\s*-{2,}\s*\Z"
    r"|\s*(?:on|am|le|el|il|op|em|den)\b.{5,200}\b(?:wrote|schrieb.{0,100}|a écrit|escribió|ha scritto|schreef.{0,100}"
    r"|escreveu|skrev.{0,100})\s*[:\uff1a]\s*\Z",
    re.IGNORECASE,
)
_HEADERS: Final = 5  # lines in which the headers of one mail are looked for
_FEW: Final = 2  # as many lines may look like headers in any text


def _old_mail(lines: list[str]) -> int:
    """The number of the line where the mail that is answered begins; their number if there is none."""
    for number, line in enumerate(lines):
        if _HEAD.match(line) or (_HEAD.match(" ".join(lines[number : number + 2])) and line.strip()):
            return number
        if _FIRST.match(line) or _OTHER.match(line):
            block = lines[number : number + _HEADERS]
            senders = sum(bool(_FIRST.match(one)) for one in block)
            if senders and senders + sum(bool(_OTHER.match(one)) for one in block) > _FEW:
                return number
    return len(lines)
