"""`make install`: what a package ships beside the command. Usage: install_files.py DESTDIR PREFIX.

The units are those of `the-loop unit install`, for a command in PREFIX/bin; where they go is systemd's own layout. With
them come the manual pages, completion for three shells, and the JSON schema of the configuration for editors.
Installing the command itself is pip's or the packager's part.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import man_pages
from click.shell_completion import get_completion_class

import the_loop.cli.bash  # noqa: F401 (completion in Bash is then ours)
from the_loop.cli import cli
from the_loop.cli.config import schema_text
from the_loop.supervision.install import MARK, SLICE, shipped, unit_texts

COMPLETIONS: Final = {
    "bash": "bash-completion/completions/the-loop",
    "fish": "fish/vendor_completions.d/the-loop.fish",
    "zsh": "zsh/site-functions/_the-loop",
}


def main(destination: str, prefix: str) -> None:
    lib = Path(prefix, "lib")
    texts = {
        lib / "sysusers.d" / "the-loop.conf": shipped("the-loop.sysusers"),
        lib / "tmpfiles.d" / "the-loop.conf": shipped("the-loop.tmpfiles"),
        lib / "systemd" / "catalog" / "the-loop.catalog": shipped("the-loop.catalog"),
    }
    texts |= {Path(prefix, "share", file): text for file, text in shared().items()}
    for name in (None, "any"):  # the plain units and the templates
        for manager in ("system", "user"):
            units = unit_texts(Path(prefix, "bin"), is_user=manager == "user", name=name)
            texts |= {
                lib / "systemd" / manager / file: text.removeprefix(f"{MARK}\n")
                for file, text in units.items()
                if manager == "user" or file != SLICE  # deliveries run under a user's manager
            }
    for path, text in texts.items():
        place = Path(f"{destination}{path}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")
        place.chmod(0o644)


def shared() -> dict[str, str]:
    """What goes below PREFIX/share."""
    pages = {f"man/man{name[-1]}/{name}": text for name, text in man_pages.pages().items()}
    shells = {file: completion(shell) for shell, file in COMPLETIONS.items()}
    return {**pages, **shells, "the-loop/config.schema.json": f"{schema_text()}\n"}


def completion(shell: str) -> str:
    """What a shell reads when somebody presses Tab behind the command for the first time."""
    kind = get_completion_class(shell)
    if kind is None:
        raise ValueError(f"no completion for '{shell}'")
    one = kind(cli, {}, "the-loop", "_THE_LOOP_COMPLETE")
    return one.source_template % one.source_vars()


if __name__ == "__main__":
    main(*sys.argv[1:])
