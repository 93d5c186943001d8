"""Completion in Bash, which takes a colon for the end of a word: refs and delivery ids have some.

Loaded when a shell asks for completions. It is given the whole line, and answers with what follows the last cut.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar, Final

from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

_SPECIAL: Final = frozenset(" \t'\"\\$`;&|<>(){}[]*?!~#")  # what Bash would not take as a character

_SCRIPT: Final = """\
%(complete_func)s() {
    local IFS=$'\\n' completion response
    response=$(COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" COMP_WORD="${COMP_WORDS[COMP_CWORD]}" \
%(complete_var)s=bash_complete "$1")
    COMPREPLY=()
    for completion in $response; do
        case $completion in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            plain,*) COMPREPLY+=("${completion#plain,}") ;;
        esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class BashWithColons(BashComplete):
    """Bash, whose words end at colons and at `=`, while ours do not."""

    source_template: ClassVar[str] = _SCRIPT

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environb.get(b"COMP_LINE", b"")[: int(os.environ.get("COMP_POINT", "0"))]
        words = split_arg_string(os.fsdecode(line))
        incomplete = words.pop() if words and not line[-1:].isspace() else ""
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """The value without the part that Bash takes for other words, its special characters quoted."""
        incomplete = self.get_completion_args()[1]
        if incomplete.startswith("--"):
            incomplete = incomplete.partition("=")[2]
        word = os.environ.get("COMP_WORD", "").lstrip(":=")
        cut = len(incomplete) - len(word) if word and incomplete.endswith(word) else incomplete.rfind(":") + 1
        value = str(item.value)[cut:] if item.type == "plain" else str(item.value)
        return f"{item.type}," + "".join(f"\\{char}" if char in _SPECIAL else char for char in value)


add_completion_class(BashWithColons, "bash")
