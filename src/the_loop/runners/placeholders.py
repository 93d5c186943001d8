"""Commands in which a placeholder would make text from outside a program, the path of one, or code (contract R7.1).

Conservative: where a command may be of that kind it is refused; a script that takes the text as an argument does
instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from the_loop.runners.keeper import PLACEHOLDERS

_INSTEAD: Final = "write a script that takes it as an argument, and name that"
_VERSION: Final = re.compile(r"[-.]?\d[\d.]*$")


def _table(*rows: tuple[str, str]) -> Mapping[str, str]:
    return {name: value for names, value in rows for name in names.split()}


# the options of interpreters behind which code follows, alone or at the end of others in one word
_CODE: Final = _table(
    ("sh bash rbash dash ash zsh ksh mksh oksh yash csh tcsh fish nu elvish xonsh posh rc es", r"-[A-Za-z]*[cC]"),
    ("python pypy ipython jython micropython graalpy", r"-[bBdEhiIOPqRsSuvVx]*c.*"),
    ("perl raku", r"-[acfnpsStTuUvwWlF0-9]*[eE].*"),
    ("ruby jruby truffleruby crystal", r"-[adlnpsSUvwWy0-9]*e.*"),
    ("node nodejs bun deno tsx ts-node", r"-[a-z]*[ep]|eval"),
    ("php php-cgi", r"-[a-zA-Z]*[rRBE].*"),
    ("lua luajit R Rscript julia groovy scala elixir iex erl ghc runghc ocaml tclsh osascript bb", r"-e.*|-eval"),
    ("guile sbcl clisp racket clojure expect mysql mariadb psql gdb vim nvim ex emacs", r"-(c|e|ex)|\+.+"),
    ("pwsh powershell", r"(?i:-(c|command|e|ec|encodedcommand))"),
    ("su runuser script flock sg", r"-[A-Za-z]*c"),
)
_LONG: Final = re.compile(r"--(init-command|session-command|command|execute|exec|eval|evaluate|print|run|expr)(=.*)?")
# programs of which an operand is code, or a command line for a shell
_CODE_OPERANDS: Final = frozenset(
    {"eval", "awk", "gawk", "mawk", "nawk", "sed", "gsed", "jq", "yq", "ssh", "watch", "parallel", "xargs", "find"}
    | {"tmux", "screen", "sqlite", "sqlite3", "mongo", "mongosh", "make", "at", "batch", "bc", "dc", "m4"}
)
# programs that run another one: the letters of their options that take a value
_WRAPPERS: Final = _table(
    ("env", "uC"), ("nice", "n"), ("ionice", "cnp"), ("timeout", "ks"), ("sudo", "ugCDhpRTrt"), ("doas", "uC"),
    ("stdbuf", "ioe"), ("systemd-run", "puMEH"), ("flock", "wE"), ("strace ltrace", "eoEspPuaOSX"), ("time", "of"),
    ("prlimit", "p"), ("nsenter", "tSG"), ("unshare", "SG"), ("chpst", "uUbenmodprfct/"), ("xvfb-run", "efnpsw"),
    ("nohup setsid chrt taskset setpriv systemd-inhibit busybox toybox unbuffer faketime fakeroot chroot", ""),
    ("catchsegv dbus-run-session caffeinate npx uvx exec command firejail bwrap numactl cpulimit", ""),
)  # fmt: skip
_TAKES_A_VALUE: Final = re.compile(r"[-+][oOWXIrCd]|--(rcfile|init-file|require|import|loader)")  # of interpreters
_OPERANDS: Final = dict.fromkeys(("timeout", "flock", "chrt", "taskset", "chroot", "faketime"), 1)  # before the program


def placeholder_problem(command: Sequence[str]) -> str:
    """Why no text from outside may be an argument of this command, or nothing. Without placeholders none is."""
    used = [word for word in command if word in PLACEHOLDERS]
    if not used:
        return ""
    for index, word in enumerate(command):
        if flag := _code_option(_name(word), command[index + 1 :]):
            return f"{used[0]} has no place in a command that runs code ('{_name(word)} {flag}'); {_INSTEAD}"
    program, rest = _run_in_the_end(command)
    script = _operand(rest) if program in _CODE else ""
    if program in PLACEHOLDERS or script in PLACEHOLDERS:
        return f"{used[0]} would make text from outside the program; {_INSTEAD}"
    if program in _CODE_OPERANDS:
        return f"{used[0]} has no place in a command of '{program}', which takes code as arguments; {_INSTEAD}"
    return ""


def _name(word: str) -> str:
    """The program that a word names, without its folder and version."""
    name = word.rpartition("/")[2]
    return name if name in _CODE else _VERSION.sub("", name)


def _code_option(name: str, words: Iterable[str]) -> str:
    """The option among `words` that makes this interpreter run code; nothing if there is none, or it is none."""
    if name not in _CODE:
        return ""
    return next((word for word in words if re.fullmatch(_CODE[name], word) or _LONG.fullmatch(word)), "")


def _operand(words: Iterable[str]) -> str:
    """The first word that is neither an option nor may be the value of one; a placeholder is never such a value."""
    is_value = False
    for word in words:
        is_option = word.startswith(("-", "+"))
        if word in PLACEHOLDERS or not (is_option or is_value):
            return word
        is_value = is_option and _TAKES_A_VALUE.fullmatch(word) is not None
    return ""


def _run_in_the_end(command: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The name of the program behind the wrappers, and its arguments."""
    name, words = _name(command[0]), list(command[1:])
    if name not in _WRAPPERS:
        return name, words
    operands = _OPERANDS.get(name, 0)
    while words and (operands > 0 or words[0].startswith("-") or re.match(r"\w+=", words[0])):
        word = words.pop(0)
        if len(word) == 2 and word[0] == "-" and word[1] in _WRAPPERS[name] and words:
            word = words.pop(0)
        elif not word.startswith("-") and not re.match(r"\w+=", word):
            operands -= 1
        if word in PLACEHOLDERS:
            return word, words
        if name == "env" and word.startswith(("-S", "--split-string")):
            return "eval", words
    return _run_in_the_end(words) if words else (name, words)
