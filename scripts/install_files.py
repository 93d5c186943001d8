"""`make install`: what a package ships beside the command. Usage: install_files.py DESTDIR PREFIX.

The texts are those of `the-loop unit install`, for a command in PREFIX/bin; where they go is systemd's own layout.
Installing the command itself is pip's or the packager's part.
"""

from __future__ import annotations

import sys
from pathlib import Path

from the_loop.supervision.install import MARK, SLICE, shipped, unit_texts


def main(destination: str, prefix: str) -> None:
    lib = Path(prefix, "lib")
    texts = {
        lib / "sysusers.d" / "the-loop.conf": shipped("the-loop.sysusers"),
        lib / "tmpfiles.d" / "the-loop.conf": shipped("the-loop.tmpfiles"),
        lib / "systemd" / "catalog" / "the-loop.catalog": shipped("the-loop.catalog"),
    }
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


if __name__ == "__main__":
    main(*sys.argv[1:])
