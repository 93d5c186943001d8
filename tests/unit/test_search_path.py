"""What of the caller's PATH the units may carry: nothing that another user could put a program into."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from the_loop.supervision import search_path
from the_loop.supervision.search_path import safe_path

ME = os.geteuid()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "place"
    place.mkdir(mode=0o755)
    return place


def folder(path: Path, mode: int = 0o755) -> Path:
    path.mkdir()
    path.chmod(mode)
    return path


def kept(*entries: object, uid: int = ME) -> list[str]:
    return list(safe_path(":".join(map(str, entries)), uid).kept)


def why(entry: object, uid: int = ME) -> str:
    ((_, problem),) = safe_path(str(entry), uid).dropped
    return problem


def test_entries_stay_in_their_order_and_once(place: Path) -> None:
    one, two = folder(place / "one"), folder(place / "two words")

    assert kept(two, "/usr/bin", one, two, "/usr/bin") == [str(two), "/usr/bin", str(one)]
    assert str(safe_path(f"{two}:bin:{one}", ME)) == f"{two}:{one}"


@pytest.mark.parametrize("entry", ["", ".", "bin", "~/bin", "./x", "../x", "$HOME/bin"])
def test_relative_entry_is_dropped(entry: str) -> None:
    found = safe_path(f"/usr/bin:{entry}", ME)

    assert found.kept == ("/usr/bin",)
    ((dropped, problem),) = found.dropped
    assert (dropped, "relative" in problem or "working directory" in problem) == (entry, True)


@pytest.mark.parametrize(("mode", "stays"), [(0o755, True), (0o700, True), (0o757, False), (0o1777, False)])
def test_entry_that_everybody_can_write_to_is_dropped(place: Path, mode: int, stays: bool) -> None:
    entry = folder(place / "bin", mode)

    assert kept(entry) == ([str(entry)] if stays else [])


def test_entry_below_a_folder_that_others_can_change_is_dropped_unless_that_is_sticky(place: Path) -> None:
    entry = folder(folder(place / "above") / "bin")

    (place / "above").chmod(0o777)
    assert why(entry) == f"everybody can write to '{place / 'above'}'"
    (place / "above").chmod(0o1777)
    assert kept(entry) == [str(entry)]


@pytest.mark.parametrize("depth", ["bin", "bin/below"])
def test_entry_of_another_user_is_dropped(place: Path, monkeypatch: pytest.MonkeyPatch, depth: str) -> None:
    (place / depth).mkdir(parents=True)
    stat_of = Path.stat

    def of_another(path: Path, *, follow_symlinks: bool = True) -> object:
        found = stat_of(path, follow_symlinks=follow_symlinks)
        if path != place / "bin":
            return found
        return SimpleNamespace(st_uid=4711, st_mode=found.st_mode, st_gid=found.st_gid)

    monkeypatch.setattr(Path, "stat", of_another)

    assert why(place / depth) == f"'{place / 'bin'}' belongs to uid 4711"
    assert kept(place / depth, uid=4711) == ([] if ME else [str(place / depth)])  # above it is ours: root's, or not


def test_entry_that_does_not_exist_stays_where_only_we_can_make_it(place: Path) -> None:
    open_to_all = folder(place / "tmp", 0o1777)

    assert kept(place / "new" / "bin") == [str(place / "new" / "bin")]
    assert why(open_to_all / "new" / "bin") == f"everybody can write to '{open_to_all}'"


def test_link_counts_as_what_it_leads_to_and_where_it_is(place: Path) -> None:
    bad, good = folder(place / "bad", 0o777), folder(place / "good")
    (place / "to-bad").symlink_to(bad)
    (good / "to-good").symlink_to(good)
    (bad / "to-good").symlink_to(good)

    assert kept(good / "to-good") == [str(good / "to-good")]
    assert why(place / "to-bad") == why(bad / "to-good") == f"everybody can write to '{bad}'"


def test_link_of_another_user_in_a_sticky_folder_is_dropped(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = folder(place / "tmp", 0o1777) / "bin"
    link.symlink_to("/usr/bin")
    lstat_of = Path.lstat

    def of_another(path: Path) -> object:
        found = lstat_of(path)
        return SimpleNamespace(st_uid=4711, st_mode=found.st_mode, st_gid=0) if path == link else found

    monkeypatch.setattr(Path, "lstat", of_another)

    assert why(link) == f"'{link}' belongs to uid 4711"


def test_entry_that_is_a_file_is_dropped(place: Path) -> None:
    (place / "file").touch()

    assert why(place / "file") == f"'{place / 'file'}' is not a directory"


@pytest.mark.parametrize(
    ("members", "primary", "stays"),
    [([], [], True), (["me"], ["me"], True), (["eve"], [], False), ([], ["eve"], False)],
)
def test_group_that_can_write_is_a_matter_of_who_is_in_it(
    place: Path, monkeypatch: pytest.MonkeyPatch, members: list[str], primary: list[str], stays: bool
) -> None:
    entry = folder(place / "bin", 0o775)
    users = [SimpleNamespace(pw_name=name, pw_gid=entry.stat().st_gid) for name in primary]
    monkeypatch.setattr(search_path, "_user", lambda uid: "me" if uid == ME else "root")
    monkeypatch.setattr(pwd, "getpwall", lambda: users)
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name="team", gr_mem=members))

    if stays:
        assert kept(entry) == [str(entry)]
    else:
        assert why(entry) == f"the group 'team' can write to '{entry}'"


def test_entry_that_cannot_be_looked_at_is_dropped(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", fails)

    assert why(place) == "cannot find out who can change it: Permission denied"


def test_entry_with_a_control_character_is_dropped() -> None:
    assert why("/usr/\nbin") == "it has a control character in it"
