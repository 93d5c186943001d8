"""`unit install` for a user, with a manager that the test plays: what the units name, where they go, what is said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Final

import pytest

from the_loop.supervision import install
from the_loop.supervision.surroundings import mend_of_owners, unseen

COMMAND: Final = Path(sys.executable).with_name("the-loop")
SYSTEMCTL: Final = '#!/bin/sh\ncase "$*" in *UnitPath*) cat "$HOME/unit-path" 2>/dev/null;; esac\n'
LOGINCTL: Final = "#!/bin/sh\necho yes\n"
ANALYZE: Final = '#!/bin/sh\necho "$@" > "$HOME/verified"; cat "$HOME/complaint" >&2 2>/dev/null && exit 1; exit 0\n'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tmp_path / "unit-path").write_text(f"{tmp_path}/.config/systemd/user.control\n")
    for name, text in (("systemctl", SYSTEMCTL), ("loginctl", LOGINCTL), ("systemd-analyze", ANALYZE)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return tmp_path


def call(home: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {"HOME": str(home), "PATH": f"{home / 'tools'}:/usr/bin:/bin", **variables}
    argv = [str(COMMAND), *words]
    return subprocess.run(argv, env=environ, cwd=home, capture_output=True, text=True, timeout=30, check=False)


def unit_install(home: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return call(home, "unit", "install", "--user", *words, **variables)


def service_of(home: Path, folder: str = ".config/systemd/user") -> str:
    return (home / folder / "the-loop-poll.service").read_text()


def line_of(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"{name}="))


# --- metrics ---


def test_install_with_a_directory_for_metrics_then_uninstall_takes_those_units_away_too(home: Path) -> None:
    units = home / ".config/systemd/user"
    metrics = [units / file for file in install.METRICS]
    unit_install(home)
    assert not any(file.exists() for file in metrics)

    done = unit_install(home, "--metrics", str(home))

    assert done.returncode == 0
    assert f"--prometheus {home}/the-loop.prom" in metrics[0].read_text()
    assert "next: run `systemctl --user enable --now the-loop-metrics.timer`" in done.stdout
    call(home, "unit", "uninstall", "--user")
    assert list(units.iterdir()) == []


def test_install_when_the_directory_for_metrics_is_missing_then_2_and_nothing_is_written(home: Path) -> None:
    done = unit_install(home, "--metrics", str(home / "none"))

    assert done.returncode == 2
    assert "does not exist" in done.stderr
    assert not (home / ".config/systemd/user").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_install_when_the_directory_for_metrics_is_not_writable_then_says_what_helps(home: Path) -> None:
    folder = home / "metrics"
    folder.mkdir(0o500)

    done = unit_install(home, "--metrics", str(folder))

    assert f"NOT COMPLETE: the metrics cannot be written into '{folder}' (run `chmod u+w {folder}`)" in done.stderr


# --- what the units name ---


def test_install_with_options_then_the_units_name_them(home: Path) -> None:
    (home / "my loop.yaml").write_text("")

    done = unit_install(home, "--config", "my loop.yaml", "--state-root", "100%")

    text = service_of(home)
    assert done.returncode == 0
    expected = f'poll start --state-root "{home}/100%%" --config "{home}/my loop.yaml" --wait'
    assert line_of(text, "ExecStart").endswith(expected)
    assert line_of(text, "ExecReload").endswith(f'config check --config "{home}/my loop.yaml"')
    assert line_of(text, "Environment") == f'Environment="THE_LOOP_STATE_ROOT={home}/100%%"'


def test_install_when_the_shell_finds_another_file_then_the_units_name_that(home: Path) -> None:
    file = home / "xdg" / "the-loop" / "config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("")

    unit_install(home, XDG_CONFIG_HOME=str(home / "xdg"))

    assert f"--config {file} --wait" in line_of(service_of(home), "ExecStart")


def test_install_without_a_file_then_says_what_to_write(home: Path) -> None:
    done = unit_install(home)

    assert "next: write ~/.config/the-loop/config.yaml" in done.stdout
    assert "--config %h/.config/the-loop/config.yaml --wait" in line_of(service_of(home), "ExecStart")


def test_install_when_the_file_is_a_yml_then_names_it(home: Path) -> None:
    file = home / ".config" / "the-loop" / "config.yml"
    file.parent.mkdir(parents=True)
    file.write_text("")

    done = unit_install(home)

    assert f"'{file}' is not read (run `mv {file} {file.with_suffix('.yaml')}`)" in done.stderr
    checked = call(home, "config", "check")
    assert checked.returncode == 78
    assert "'config.yml' is there, rename it to 'config.yaml'" in checked.stderr


def test_install_of_an_instance_with_options_then_is_wrong_usage_and_writes_nothing(home: Path) -> None:
    done = unit_install(home, "--name", "two", "--config", "x.yaml")

    assert done.returncode == 2
    assert "~/.config/the-loop/two.yaml" in done.stderr
    assert not (home / ".config").exists()


@pytest.mark.parametrize("name", ["a b", "100%", 'a"b', "a'b", "a\\b", "a$b", "ä;b", "a\nb"])
@pytest.mark.parametrize("is_user", [True, False])
def test_units_when_paths_are_odd_then_the_manager_reads_the_same_words(
    tmp_path: Path, name: str, *, is_user: bool
) -> None:
    named = install.Named(f"/etc/{name}.yaml", f"/srv/{name}", is_root_given=True)
    (tmp_path / name).mkdir()
    program = tmp_path / name / "the-loop"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    texts = install.unit_texts(tmp_path / name, is_user=is_user, name=None, named=named)

    for file, text in texts.items():
        (tmp_path / file).write_text(text)
    service = texts["the-loop-poll.service"]
    if "\n" not in name:
        assert f"/srv/{name}" in service.replace("%%", "%").replace("$$", "$").replace("\\\\", "\\").replace('\\"', '"')
    argv = ["systemd-analyze", "--user" if is_user else "--system", "verify", "--man=no", *texts]
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout + done.stderr, done.returncode) == ("", 0)


# --- where they go, and whether they are right ---


def test_install_when_the_manager_reads_elsewhere_than_the_shell_then_writes_there(home: Path) -> None:
    (home / "unit-path").write_text(f"{home}/managers/systemd/user.control /run/x/user.control {home}/managers/y\n")

    done = unit_install(home, XDG_CONFIG_HOME=str(home / "shells"))

    assert f"wrote {home}/managers/systemd/user/the-loop-poll.service" in done.stdout
    assert not (home / "shells").exists()


def test_install_when_done_then_has_verified_what_it_wrote(home: Path) -> None:
    assert unit_install(home, "--name", "two").returncode == 0
    assert "/the-loop-poll@two.service" in (home / "verified").read_text()


def test_install_when_the_manager_would_not_load_it_then_says_why_and_1(home: Path) -> None:
    (home / "complaint").write_text("the-loop-poll.service: bad\n")

    done = unit_install(home)

    assert done.returncode == 1
    assert "the-loop: systemd-analyze verify: the-loop-poll.service: bad" in done.stderr


def test_install_when_nothing_can_verify_then_says_so(home: Path) -> None:
    (home / "tools" / "systemd-analyze").unlink()

    done = unit_install(home, PATH=str(home / "tools") + f":{COMMAND.parent}")

    assert done.returncode == 0, done.stderr
    assert "cannot verify the units: systemd-analyze: No such file" in done.stderr


# --- what a system service cannot see or use ---


def test_unseen_when_a_drop_in_shows_it_to_every_service_then_it_is_not(tmp_path: Path) -> None:
    services = [tmp_path / "a.service", tmp_path / "b.service"]
    places = ["/home/u/venv/bin", "/usr", "/root/x"]
    for service in services:
        assert unseen(places, services) == ["/home/u/venv/bin", "/root/x"]
        drop_in = tmp_path / f"{service.name}.d" / "x.conf"
        drop_in.parent.mkdir()
        drop_in.write_text("[Service]\nBindReadOnlyPaths=-/home/u/venv:/x /opt\n")

    assert unseen(places, services) == ["/root/x"]


def test_mend_of_owners_when_another_user_tried_it_then_names_what_is_not_ours(tmp_path: Path) -> None:
    for folder in ("local/deliveries", "logs", "inbox/a", "notes"):
        (tmp_path / folder).mkdir(parents=True)
    uid = os.geteuid()

    assert mend_of_owners(tmp_path, "u", uid) == ""
    assert mend_of_owners(tmp_path, "u", uid + 1) == (
        f"chown u:u {tmp_path} {tmp_path}/inbox && chown -R u:u {tmp_path}/local {tmp_path}/logs"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away, which takes root")
def test_mend_of_owners_when_one_deep_file_is_foreign_then_names_its_folder(tmp_path: Path) -> None:
    (tmp_path / "local" / "sources").mkdir(parents=True)
    (tmp_path / "local" / "sources" / "x").touch()
    os.chown(tmp_path / "local" / "sources" / "x", 12345, 12345)

    assert mend_of_owners(tmp_path, "root", 0) == f"chown -R root:root {tmp_path}/local"


def test_install_for_the_system_when_the_program_is_hidden_then_nothing_is_written_and_1(tmp_path: Path) -> None:
    script = f"""
        import os, sys
        from pathlib import Path
        from the_loop.cli import unit
        os.geteuid = lambda: 0
        unit._SYSTEM_UNITS = Path({str(tmp_path)!r})
        unit._bindir = lambda: Path("/home/u/venv/bin")
        unit._prepare_system = lambda: sys.exit("prepared")
        from the_loop.cli import main
        sys.argv = ["the-loop", "unit", "install", "--system"]
        main()
    """

    argv = [sys.executable, "-c", dedent(script)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)

    assert done.returncode == 1
    assert "the service sees nothing below /home/" in done.stderr
    assert "BindReadOnlyPaths=/home/u/venv/bin" in done.stderr
    assert list(tmp_path.iterdir()) == []


# --- the path of deliveries ---


def test_install_with_the_path_then_the_services_name_what_is_safe_of_it_and_say_the_rest(home: Path) -> None:
    tools, own, open_to_all = home / "tools", home / "my 100% $bin", home / "open"
    own.mkdir()
    open_to_all.mkdir()
    open_to_all.chmod(0o777)

    done = unit_install(home, "--path", PATH=f"{tools}:bin::{open_to_all}:{own}:/usr/bin:/bin")

    assert done.returncode == 0, done.stderr
    wanted = f"{tools}:{own}:/usr/bin:/bin"
    escaped = wanted.replace("%", "%%")
    units = home / ".config/systemd/user"
    for name in ("the-loop-poll.service", "the-loop-poll-once.service"):
        assert f'\nEnvironment="PATH={escaped}"\n' in (units / name).read_text(), name
    assert "PATH=" not in (units / "the-loop-poll.socket").read_text()
    assert f"path of deliveries: {wanted}\n" in done.stderr
    for entry in ("'bin' (it is relative)", "'' (it is empty", f"'{open_to_all}' (everybody can write to"):
        assert f"not in the path of deliveries: {entry}" in done.stderr


def test_install_without_the_path_then_nothing_is_named_and_an_earlier_one_is_gone(home: Path) -> None:
    unit_install(home, "--path")
    assert "PATH=" in service_of(home)

    done = unit_install(home)

    assert "PATH=" not in service_of(home)
    assert "path of deliveries" not in done.stderr


def test_install_with_a_path_of_which_nothing_is_safe_then_1_and_nothing_is_written(home: Path) -> None:
    done = unit_install(home, "--path", PATH="bin:.")

    assert (done.returncode, "no entry of PATH can be used" in done.stderr) == (1, True)
    assert not (home / ".config").exists()


def test_show_with_the_path_of_an_instance_then_the_template_names_it(home: Path) -> None:
    done = call(home, "unit", "show", "--user", "--name", "two", "--path")

    assert done.stdout.count(f"\nEnvironment=PATH={home / 'tools'}:/usr/bin:/bin\n") == 2
