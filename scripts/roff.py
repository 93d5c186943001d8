"""Text and our own Markdown as roff, the language of manual pages, in ASCII."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_CODES: Final = {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti", '"': "\\(dq"}
_LINK: Final = re.compile(r"\[((?:`[^`]*`|[^\]`])+)\]\([^)\s]+\)")
_BLOCK: Final = re.compile(
    r"^```.*?^```$|(?:^\|[^\n]*\n?)+|^#+ [^\n]*|^- [^\n]*|(?:^(?!```|\||#+ |- )[^\n]+\n?)+", re.MULTILINE | re.DOTALL
)


def plain(text: str) -> str:
    """The text as it is, whatever characters it has."""
    coded = "".join(_CODES.get(char, char if char.isascii() else f"\\[u{ord(char):04X}]") for char in text)
    return re.sub(r"^(?=\.)", r"\\&", coded, flags=re.MULTILINE)  # a line that begins with a dot is a request


def bold(text: str) -> str:
    return f"\\fB{plain(text)}\\fP"


def entry(tag: str, text: str) -> list[str]:
    """One entry of a list; `tag` is roff."""
    return [".TP", tag, text or "\\&"]


def literal(text: str) -> list[str]:
    """Lines that stay as they are."""
    return [".PP", ".RS 4", ".EX", plain(text.rstrip("\n")), ".EE", ".RE"]


def inline(markdown: str) -> str:
    """A paragraph with code in bold type; of a link only its text is left."""
    parts = re.split(r"`([^`]+)`", _LINK.sub(r"\1", markdown))
    return "".join(bold(part) if number % 2 else plain(part.replace("**", "")) for number, part in enumerate(parts))


def section(page: str, heading: str) -> str:
    """What is below a heading of a page, up to the next one of its level. Raises ValueError if there is none."""
    is_code, above = False, re.compile(rf"#{{1,{heading.index(' ')}}} ")
    lines = page.splitlines()
    found: list[str] = []
    for line in lines[lines.index(heading) + 1 :]:
        is_code ^= line.startswith("```")
        if not is_code and above.match(line):
            break
        found.append(line)
    return "\n".join(found)


def from_markdown(text: str) -> Iterator[str]:
    """Lines of roff: paragraphs, headings, fenced blocks, simple lists and tables, whose first column is the tag."""
    for block in _BLOCK.findall(text):
        if block.startswith("```"):
            yield from literal(block.partition("\n")[2].removesuffix("```"))
        elif block.startswith("|"):
            yield from _table(block)
        elif block.startswith("#"):
            yield f".SS {inline(block.lstrip('#').strip())}"
        elif block.startswith("- "):
            yield from [".IP \\[u2022] 2", inline(block[2:])]
        else:
            yield from [".PP", *(inline(line) for line in block.strip().splitlines())]


def _table(block: str) -> Iterator[str]:
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in block.strip().splitlines())
    for tag, *cells in rows:
        yield from entry(inline(tag), inline(_described(head, cells)))


def _described(head: list[str], cells: list[str]) -> str:
    """A row without its tag: the last cell, with the others in brackets; all alike where the tags have no name."""
    if not head[0]:
        return "; ".join(f"{name}: {cell}" if name else cell for name, cell in zip(head[1:], cells, strict=True))
    *others, text = cells
    notes = "; ".join(f"{name} {cell}" for name, cell in zip(head[1:-1], others, strict=True) if cell)
    in_brackets = f"({notes})".replace("default required", "required") if notes else ""
    return " ".join(filter(None, [text, in_brackets]))
