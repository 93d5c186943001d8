"""Commands that would run a placeholder's text are refused, those that only take it are not (contract R7.1, R7.7)."""

from __future__ import annotations

import shlex

import pytest

from support.configs import faults_of, tree
from the_loop.config_file import parse
from the_loop.runners.placeholders import placeholder_problem

RUNS_IT = [
    "{text}",
    "sh -c x {text}",
    "/bin/sh -c x {text}",
    "bash -lc x {title}",
    "bash --norc -c x {title}",
    "bash -o pipefail -c x {title}",
    "dash -euc x {text}",
    "zsh -fc x {title}",
    "ksh -c x {ref}",
    "fish -c x {title}",
    "fish --command=x {title}",
    "sh -c 'agent \"$1\"' sh {text}",
    "env A=b nice -n 5 bash -ec x {url}",
    "/usr/bin/env -S 'sh -c' {text}",
    "python3 -c x {text}",
    "python3.11 -Ic x {text}",
    "/usr/bin/python -c x {text}",
    "pypy3 -c x {text}",
    "perl -e x {text}",
    "perl -ne x {text}",
    "perl5.36 -E x {text}",
    "ruby -e x {text}",
    "ruby3.1 -ne x {text}",
    "node -e x {text}",
    "node -p {text}",
    "node --eval=x {text}",
    "node --print x {text}",
    "nodejs -pe x {text}",
    "deno eval {text}",
    "php8.2 -r x {text}",
    "lua5.4 -e x {text}",
    "pwsh -Command x {text}",
    "osascript -e {text}",
    "psql -c {text}",
    "su - alice -c x {text}",
    "flock /tmp/l -c {text}",
    "busybox sh -c x {text}",
    "docker run -i image sh -c x {text}",
    "timeout -k 5 10 bash -c x {text}",
    "timeout 5 {text}",
    "timeout {title} agent",
    "env {text}",
    "env -i {text}",
    "env -u A {text}",
    "sudo -u alice {text}",
    "sudo -u {title} agent",
    "nohup setsid {title}",
    "flock /tmp/l {text}",
    "sh {text}",
    "sh -s {text}",
    "sh -eu {title}",
    "bash -o pipefail {text}",
    "python3 -u {ref}",
    "env python3 {ref}",
    "jq {title}",
    "env jq {title}",
    "awk {text}",
    "sed {title} file",
    "ssh host {text}",
    "xargs {text}",
    "watch {text}",
    "sqlite3 base {text}",
]
TAKES_IT = [
    "agent {text}",
    "agent -p {text} --model x",
    "agent -c {text}",
    "agent -e {title}",
    "agent --lang python {text}",
    "sh script.sh {text}",
    "bash -eu run.sh {text}",
    "bash -x -o pipefail run.sh {text}",
    "python3 agent.py {text} {title}",
    "python3 -m agent {text}",
    "python3 -u -W error agent.py {text}",
    "perl -w script.pl {title}",
    "node agent.js {text}",
    "env A=b agent {text}",
    "env -i agent {text}",
    "env -u A agent {text}",
    "timeout 600 agent {text}",
    "timeout -k 5 10 agent -p {text}",
    "nice -n 10 node agent.js {text}",
    "sudo -u alice agent {text}",
    "flock /tmp/l agent {text}",
    "git commit -m {title}",
    "docker run -i image {text}",
    "sh -c agent",
    "jq {x}",
    "sh -c 'echo {text}'",
    "agent --title={title}",
]


@pytest.mark.parametrize("command", RUNS_IT)
def test_command_that_would_run_a_text_from_outside_is_a_fault(command: str) -> None:
    words = shlex.split(command)

    problem = faults_of(tree(session={"command": words}))["session.command"]

    assert problem == placeholder_problem(words)
    assert "{" in problem


@pytest.mark.parametrize("command", TAKES_IT)
def test_command_that_takes_a_text_or_has_none_is_valid(command: str) -> None:
    assert placeholder_problem(shlex.split(command)) == ""


@pytest.mark.parametrize("command", [[], ["agent"], ["env"], ["sudo", "-u"], ["timeout", "5"]])
def test_command_without_placeholders_is_not_judged(command: list[str]) -> None:
    assert placeholder_problem(command) == ""


def test_command_of_the_printing_runner_is_not_judged() -> None:
    parse(
        b"polling: {sources: [{provider: directory, path: inbox}]}\n"
        b"session: {runner: print, command: [sh, -c, x, '{text}']}\n",
        "config.yaml",
    )
