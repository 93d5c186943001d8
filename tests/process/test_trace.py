"""`the-loop trace`: at each stage of the life of a comment its address tells where it is, and why."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.github.fake import FakeGitHub
from support.http_server import FakeServer
from support.poller import ME, Box

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

REPO = "octo/repo"
MARKER = "<!-- the-loop -->"
POLLED_SOON_S = 90.0  # a cycle is every minute: only a wake makes one


class Page:
    """One issue, which a poller watches that makes a cycle when it is woken."""

    def __init__(self, box: Box, github: FakeGitHub, **settings: dict[str, Any]) -> None:
        self.box = box
        self.github = github
        self.number = github.add_issue(REPO, labels=["auto"], title="Squeaky \x1b[31mdoor")
        self.ref = f"github:127.0.0.1/{REPO}#{self.number}"
        source = {"provider": "github", "name": "work", "repos": [REPO], "label": "auto", "apiUrl": github.base_url}
        polling = {"intervalSeconds": 60, "lingerSeconds": 0, **settings.pop("polling", {})}
        routing = {"authorizedUsers": ["octocat"]}
        box.configure(sources=[source], polling=polling, routing=routing, **settings)

    def comment(self, behaviour: dict[str, Any] | None = None, *, author: str = "octocat", body: str = "and") -> str:
        """Write a comment, for which the receiver behaves like this; its key."""
        key = f"comment:{self.github.comment(REPO, self.number, author, body)}"
        self.box.sink.behave((f"*/{key}", behaviour or {}), ("*/spawn:*", {"gate": self.box.sink.gate("spawn")}))
        return key

    def url(self, key: str = "") -> str:
        page = f"http://127.0.0.1/{REPO}/issues/{self.number}"
        return f"{page}#issuecomment-{key.partition(':')[2]}" if key else page

    def trace(self, key: str = "", *, code: int = 0) -> dict[str, Any]:
        """What the address tells. That it is the same for people, and within 80 columns, is seen as well."""
        done = self.box.run("trace", self.url(key))
        assert done.code == code, done.out + done.err
        assert [line for line in done.out.splitlines() if is_too_wide(line)] == []
        assert "\x1b" not in done.out
        found: dict[str, Any] = self.box.run("trace", self.url(key), "--json").json()
        assert found["ref"] == self.ref
        assert found["deliveryId"] == (f"{self.ref}/{key}" if key else None)
        assert found["unreadable"] == []
        return found

    def wait_for(self, state: str, key: str = "") -> dict[str, Any]:
        """What the address tells once it is in this state."""
        found: dict[str, Any] = {}

        def is_there() -> bool:
            done = self.box.run("trace", self.url(key), "--json")
            found.update(json.loads(done.out))
            return bool(found["state"] == state)

        try:
            self.box.wait(is_there, f"'{state}' of {key}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {found}") from None
        return self.trace(key, code=0 if found["known"] else 1)

    def wake(self) -> None:
        assert self.box.run("poll", "wake").code == 0


@pytest.fixture
def page(box: Box) -> Iterator[Page]:
    github = FakeGitHub(time.time, web_url="http://127.0.0.1")
    github.add_repo(REPO)
    with FakeServer(github):
        yield Page(box, github)


def is_too_wide(line: str) -> bool:
    """True for a line that could have been broken; a command is shown on one."""
    return len(line) > 80 and "run `" not in line and max(map(len, line.split())) < 70


def is_soon(moment: str) -> bool:
    return 0 < datetime.fromisoformat(moment).timestamp() - time.time() < POLLED_SOON_S


def test_address_when_a_comment_lives_then_tells_each_stage_of_it(page: Page) -> None:
    box = page.box
    assert "no poller is running, the next start polls its source 'work'" in page.trace(code=1)["summary"]
    box.sink.behave(("*/spawn:*", {"gate": box.sink.gate("spawn")}))
    poller = box.start()
    start = page.wait_for("starting")
    assert start["summary"].startswith("starts with spawn:1: running since ")

    first = page.comment({"gate": box.sink.gate("first")})
    page.wake()
    behind = page.trace(first, code=1)
    assert (behind["state"], behind["reason"]) == ("not-seen", "behind spawn:1")
    assert "taken up after spawn:1 of the item: running since " in behind["summary"]

    box.sink.open_gate("spawn")
    page.wait_for("live")
    page.wake()
    running = page.wait_for("running", first)
    assert running["commands"] == [f"tail -f {box.root}/logs/output.log"]
    assert running["author"] == "octocat"
    assert running["url"] == page.url(first)
    assert [one["event"] for one in running["timeline"]][-1] is None
    assert f"begun: {first}, attempt 1" in [one["message"] for one in running["timeline"]]

    second = page.comment({"code": 1})
    assert page.trace(second, code=1)["state"] == "not-seen"
    page.wake()
    waiting = page.wait_for("waiting", second)
    assert waiting["reason"] == f"behind {first}"
    assert waiting["since"] is not None
    assert f"its turn comes after {first} of the item: running since " in waiting["summary"]
    assert [one["state"] for one in page.trace()["pending"]] == ["running", "waiting"]

    box.sink.open_gate("first")
    refused = page.wait_for("refused", second)
    assert "rejected, attempt 1 of 3 (exit status 1" in refused["summary"]
    assert is_soon(refused["until"])
    assert page.trace(first)["state"] == "delivered"
    settle(page, second)
    assert page.trace(second)["state"] == "settled"

    deferred = answered(page, {"code": 75}, "deferred")
    assert is_soon(deferred["until"])
    assert "deferred by its receiver" in deferred["summary"]
    held = answered(page, {"die": 15}, "held")
    assert [one.split(" ledger ")[1].split()[0] for one in held["commands"]] == ["retry", "settle"]

    assert poller.stop() == 0
    assert page.trace(first)["state"] == "delivered"
    assert page.trace()["state"] == "live"


def settle(page: Page, key: str) -> None:
    done = page.box.run("ledger", "settle", page.ref, key)
    assert done.code == 0, done.err


def answered(page: Page, behaviour: dict[str, Any], state: str) -> dict[str, Any]:
    """What is told of a comment to which the receiver answers like this; it is settled then."""
    key = page.comment(behaviour)
    page.wake()
    found = page.wait_for(state, key)
    settle(page, key)
    return found


def test_address_when_nothing_is_delivered_then_tells_the_rule(page: Page) -> None:
    page.box.sink.open_gate("spawn")
    early = page.comment()
    page.box.start()
    page.wait_for("live")
    assert page.trace(early)["state"] == "carried"

    stranger, own = page.comment(author="mallory"), page.comment(body=f"done\n\n{MARKER}")
    word = page.comment(body="the-loop pause")
    late = page.comment()
    page.wake()
    assert "; the item is paused by a word" in page.wait_for("paused", late)["summary"]
    dropped = page.trace(stranger)
    assert (dropped["state"], dropped["reason"]) == ("dropped", "unauthorized")
    assert "not delivered by 'mallory': its author is not authorised" in dropped["summary"]
    assert (page.trace(own)["state"], page.trace(own)["reason"]) == ("dropped", "own")
    assert (page.trace(word)["state"], page.trace(word)["reason"]) == ("applied", "pause")

    page.comment(body="the-loop resume")
    page.wake()
    page.wait_for("delivered", late)
    page.github.close(REPO, page.number)
    page.wake()
    ended = page.wait_for("ended")
    assert ended["item"]["phase"] == "ended"
    assert page.trace(late)["state"] == "delivered"
    after = page.trace(page.comment(), code=1)
    assert (after["state"], after["reason"]) == ("item-ended", ended["item"]["reason"])


def test_address_when_given_up_then_what_to_type_works(box: Box) -> None:
    box.configure(polling={"maxRetries": 1, "intervalSeconds": 60})
    ref = box.item("door")
    box.sink.behave(("*", {"code": 1}))
    assert box.once().code == 0

    done = box.run("trace", str(box.inbox / "door"))

    assert done.code == 0
    assert "starts with spawn:1: given up after attempt 1 (exit status 1" in done.out.replace("\n  ", " ")
    command = f"`the-loop --config {box.config} --state-root {box.root} ledger retry {ref} spawn:1`"
    assert f"run {command}" in done.out
    box.sink.behave()
    assert box.run("ledger", "retry", ref, "spawn:1").code == 0
    assert box.once().code == 0
    assert box.run("trace", f"{ref}/spawn:1", "--json").json()["state"] == "delivered"


def test_file_when_traced_by_its_path_then_is_its_event(box: Box) -> None:
    ref = box.item("door")
    assert box.once().code == 0
    box.comment("door", "02 hinges.md")
    assert box.once().code == 0

    for path in (box.inbox / "door" / "02 hinges.md", (box.inbox / "door" / "02 hinges.md").as_uri()):
        found = box.run("trace", str(path), "--json").json()
        assert (found["deliveryId"], found["state"]) == (f"{ref}/comment:02 hinges.md", "delivered")
    body = box.run("trace", str(box.inbox / "door" / "item.md"), "--json").json()
    assert (body["ref"], body["deliveryId"], body["state"]) == (ref, None, "live")
    assert box.run("trace", str(box.folder / "elsewhere")).code == 1


def test_output_when_the_receiver_printed_something_then_its_end_is_shown(box: Box) -> None:
    script = f"cat >/dev/null; echo 'by {ME}, \x1b[31mred'; echo 'no hinges' >&2; exit 1"
    box.configure(session={"command": ["sh", "-c", script]}, polling={"intervalSeconds": 60})
    ref = box.item("door")
    assert box.once().code == 0

    done = box.run("trace", f"{ref}/spawn:1")

    assert done.code == 0
    assert f"  | by {ME}, \\x1b[31mred\n  | no hinges\n" in done.out


def levelled(text: str, box: Box | None = None) -> str:
    """Without what differs from machine to machine: times, names, and where lines are broken."""
    if box is not None:
        text = text.replace(str(box.inbox), "/home/alice/inbox").replace(str(box.root), "/home/alice/state")
        text = text.replace(f"of {ME}", "of alice").replace(f"by {ME}", "by alice")
    return re.sub(r"[0-9]+(?: s| min)|[0-9-]{10}|[0-9:]{8}", "T", " ".join(text.split()))


def test_commands_page_when_it_shows_a_trace_then_it_is_told_so(box: Box) -> None:
    page = (Path(__file__).parents[2] / "docs/usage/commands.md").read_text("utf-8")
    (sample,) = re.findall(r"^```console\n\$ the-loop trace ([^\n]*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    fails = 'if [ "$THE_LOOP_DELIVERY_KIND" = comment ]; then echo cannot find the hinges; exit 1; fi'
    box.configure(session={"command": ["sh", "-c", fails]}, polling={"intervalSeconds": 60})
    box.item("squeaky-door")
    assert box.once().code == 0
    box.comment("squeaky-door", "02-hinges.md")
    box.start()
    box.wait(lambda: box.events("poll.comment_failed"), "the rejection")

    assert levelled(box.run("trace", sample[0]).out, box) == levelled(sample[1])


def test_trace_when_the_configuration_is_broken_then_it_says_so_and_tells_the_rest(box: Box) -> None:
    ref = box.item("door")
    assert box.once().code == 0
    box.config.write_text("polling: [")

    done = box.run("trace", f"{ref}/spawn:1")

    assert done.code == 0
    assert "cannot read the configuration:" in done.out
    assert "delivered, " in done.out
