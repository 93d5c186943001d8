"""The token of a source of GitHub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from the_loop.sources.section import TokenSection
from the_loop.sources.tokens import token_of

VARIABLES: Final = ("GITHUB_TOKEN", "GH_TOKEN")


def github_token(section: TokenSection, environ: Mapping[str, str]) -> str | None:
    """The token in the named file, else in `$GITHUB_TOKEN`, else in `$GH_TOKEN`; None if there is none.

    Raises SourceError if one is named and cannot be read: that is not the same as none.
    """
    return token_of(section, environ, VARIABLES)
