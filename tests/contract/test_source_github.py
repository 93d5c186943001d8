"""The source `github` keeps what is asked of every source, over HTTP with the fake."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from contract.source_suite import Bench, SourceSuite
from support.clock import Clock
from support.github import faults
from support.github.fake import FakeGitHub
from support.github.stories import LISTING, without
from support.http_server import FakeServer

REPOS = ("octo/one", "octo/two")
DAMAGES = {
    "server error": faults.server_error(),
    "half of the JSON": faults.half_json(),
    "a web page": faults.html(),
    "cut off": faults.cut(),
    "not found": faults.reply(404, {"message": "Not Found"}),
    "unauthorized": faults.reply(401, {"message": "Bad credentials"}),
}


class Repositories(Bench):
    """A repository is a part."""

    provider = "github"
    author = "octocat"
    breaks = tuple(DAMAGES)
    endings: ClassVar = ("closed", "merged", "deleted", "transferred")
    shows_again = True  # lists are asked for with an overlap

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "root" / "portable").mkdir(parents=True)
        self.clock = Clock()
        self.github = FakeGitHub(self.clock)
        for repo in (*REPOS, "octo/elsewhere"):
            self.github.add_repo(repo)
        self._server = FakeServer(self.github)
        self._server.__enter__()

    def section(self, name: str) -> dict[str, Any]:
        repos = REPOS if name != "another" else ("octo/on", "octo/elsewhere")
        return {"repos": repos, "label": "auto", "api_url": self.github.base_url}

    def add_item(self, part: int = 0) -> str:
        self.clock.run(1)
        number = self.github.add_issue(REPOS[part], labels=["auto"], pull_request=part == 0)
        return f"github:127.0.0.1/{REPOS[part]}#{number}"

    def write(self, ref: str, text: str) -> str:
        self.clock.run(1)
        return f"comment:{self.github.comment(*_place(ref), body=text)}"

    def end(self, ref: str, how: str) -> None:
        match how:
            case "deleted":
                self.github.delete_issue(*_place(ref))
            case "transferred":
                self.github.transfer_issue(*_place(ref), "octo/elsewhere")
            case _:
                self.github.close(*_place(ref), merged=how == "merged")

    def lose(self, ref: str) -> None:
        repo, number = _place(ref)
        self.github.fail(f"{repo}{LISTING}", without(number), times=None)

    def break_all(self, how: str) -> None:
        self.github.fail(".", DAMAGES[how], times=None)

    def break_part(self, ref: str) -> None:
        self.github.fail(_place(ref)[0], faults.server_error(), times=None)

    def mend(self) -> None:
        self.github.faults.clear()

    def pass_time(self) -> None:
        self.clock.run(60)

    def close(self) -> None:
        self._server.__exit__(None, None, None)


def _place(ref: str) -> tuple[str, int]:
    repo, _, number = ref.removeprefix("github:127.0.0.1/").partition("#")
    return repo, int(number)


class TestGithub(SourceSuite):
    bench_type = Repositories
