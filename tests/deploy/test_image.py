"""The container image. The tests build its base from Debian packages, and need no container engine and no registry."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.services.availability import skip_or_fail

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("mmdebstrap", "buildah", "apt-get")
BASE_PACKAGES = "python3,python3-venv,libstdc++6,ca-certificates"
NOBODY = 65534
LARGEST_MB = 300

DAG_FILE = """
import os
from triggerer import DAG, Asset, task

orders = Asset("x-orders", name="orders")

with DAG("on_orders", schedule=orders):
    @task
    def who(log):
        log.info("executed by %s", os.getuid())
    who()
"""


class Images:
    """Runs buildah, with a storage of its own."""

    def __init__(self, folder: Path) -> None:
        self._buildah = [
            "buildah",
            "--root",
            str(folder / "root"),
            "--runroot",
            str(folder / "run"),
        ]

    def command(self, *arguments: str | Path) -> list[str]:
        return [*self._buildah, *map(str, arguments)]

    def __call__(self, *arguments: str | Path) -> str:
        done = subprocess.run(
            self.command(*arguments), capture_output=True, text=True, cwd=ROOT, check=False
        )
        assert done.returncode == 0, f"{arguments}:\n{done.stdout}{done.stderr}"
        return done.stdout.strip()


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    if os.geteuid() != 0:
        skip_or_fail("images are built as root here")
    for tool in TOOLS:
        if shutil.which(tool) is None:
            skip_or_fail(f"{tool} is not installed")
    # Images are large, and pytest would keep the temporary folders of the last three sessions.
    with tempfile.TemporaryDirectory(prefix="triggerer-images-", dir="/var/tmp") as folder:
        images = Images(Path(folder))
        yield images
        images("rm", "--all")
        images("rmi", "--all", "--force")


@pytest.fixture(scope="module")
def base(images: Images, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of this machine's Debian, with Python and little else."""
    return debian(images, tmp_path_factory, "base", BASE_PACKAGES)


@pytest.fixture(scope="module")
def build_base(images: Images, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image like `base` that also has `strip`."""
    return debian(images, tmp_path_factory, "build-base", f"{BASE_PACKAGES},binutils")


def debian(
    images: Images, tmp_path_factory: pytest.TempPathFactory, name: str, packages: str
) -> str:
    folder = tmp_path_factory.mktemp(name)
    started = time.monotonic()
    subprocess.run(
        [
            "mmdebstrap",
            "--quiet",
            "--variant=essential",
            f"--include={packages}",
            "--keyring=/usr/share/keyrings",
            *(f"--aptopt={option}" for option in apt_options()),
            *(
                f"--dpkgopt=path-exclude=/usr/share/{unread}/*"
                for unread in ("doc", "locale", "man")
            ),
            debian_release(),
            folder / "base.tar",
            *debian_sources(),
        ],
        check=True,
    )
    container = images("from", "scratch")
    images("add", "--quiet", container, folder / "base.tar", "/")
    images("commit", "--quiet", "--rm", container, name)
    print(f"{name}: {size_mb(images, name):.0f} MB in {time.monotonic() - started:.0f} s")
    return f"localhost/{name}"


@pytest.fixture(scope="module")
def image(
    images: Images, base: str, build_base: str, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The image, built with this machine's settings of pip."""
    config, paths = pip_settings()
    secret = tmp_path_factory.mktemp("pip") / "pip.conf"
    with secret.open("w") as file:
        config.write(file)
    started = time.monotonic()
    images(
        "build",
        "--isolation=chroot",
        "--format=docker",
        "--file=deploy/Containerfile",
        f"--build-arg=BASE={base}",
        f"--build-arg=BUILD_BASE={build_base}",
        f"--secret=id=pip.conf,src={secret}",
        *(f"--volume={path}:{path}:ro" for path in paths),
        "--tag=triggerer",
        ".",
    )
    print(f"image: {size_mb(images, 'triggerer'):.0f} MB in {time.monotonic() - started:.0f} s")
    return "localhost/triggerer"


def debian_release() -> str:
    return dict(
        line.split("=", 1)
        for line in Path("/etc/os-release").read_text().split("\n")
        if "=" in line
    )["VERSION_CODENAME"].strip('"')


def debian_sources() -> list[str]:
    """Return the lines of a sources.list with the places that this machine gets Debian's packages from."""
    listed = subprocess.run(
        [
            "apt-get",
            "indextargets",
            "--format=$(CREATED_BY) $(ORIGIN): deb $(REPO_URI) $(RELEASE) $(COMPONENT)",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    ours = "Packages Debian: "
    lines = {line.removeprefix(ours) for line in listed if line.startswith(ours)}
    if not lines:
        skip_or_fail("apt knows no packages of Debian; did `apt-get update` run?")
    return sorted(lines)


def apt_options() -> list[str]:
    """Return apt's HTTP and HTTPS options of this machine, such as proxies and certificates."""
    dumped = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True)
    return [
        line.removesuffix(";")
        for line in dumped.stdout.splitlines()
        if line.startswith(("Acquire::http::", "Acquire::https::"))
    ]


def pip_settings() -> tuple[ConfigParser, list[Path]]:
    """Return this machine's settings of pip as one configuration, and the existing paths in it."""
    listed = subprocess.run(
        ["python3", "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    config = ConfigParser(interpolation=None)
    config.add_section("global")
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        config["global"][name.rpartition(".")[2]] = value.strip("'")
    values = {Path(value) for value in config["global"].values() if value.startswith("/")}
    return config, sorted(path for path in values if path.exists())


def size_mb(images: Images, name: str) -> float:
    (found,) = json.loads(images("images", "--json", name))
    amount, unit = found["size"].split()
    assert unit == "MB", found
    return float(amount)


def test_it_is_small_and_its_configuration_says_how_to_run_it(images: Images, image: str) -> None:
    assert size_mb(images, image) < LARGEST_MB
    config = json.loads(images("inspect", "--type=image", image))["Docker"]["config"]
    assert config["User"] == f"{NOBODY}:{NOBODY}"
    assert config["Entrypoint"] == ["triggerer"]
    assert config["Cmd"] == ["standalone"]
    assert config["StopSignal"] == "SIGTERM"
    assert config["Volumes"] == {"/var/lib/triggerer": {}}


class Container:
    """A container of the image, with a DAGs folder; several commands may run in it at once."""

    def __init__(self, images: Images, image: str, dags: Path) -> None:
        self._images = images
        self._volume = f"{dags}:/srv/dags:ro"
        self.name = images("from", image)

    def run(self, *command: str) -> str:
        return self._images(*self._arguments(command))

    def start(self, *command: str, log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            return subprocess.Popen(
                self._images.command(*self._arguments(command)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _arguments(self, command: tuple[str, ...]) -> list[str]:
        # `buildah run` ignores the entry point of the image.
        options = ["--isolation=chroot", f"--volume={self._volume}"]
        return ["run", *options, self.name, "--", "triggerer", *command]


@pytest.fixture
def container(images: Images, image: str, tmp_path: Path) -> Iterator[Container]:
    dags = tmp_path / "dags"
    dags.mkdir(mode=0o755)
    (dags / "orders.py").write_text(DAG_FILE)
    container = Container(images, image, dags)
    yield container
    images("rm", container.name)


def wait_for(condition: Callable[[], Any], *, what: str, log: Path) -> Any:
    deadline = time.monotonic() + 60
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}:\n{log.read_text()}"
        time.sleep(0.2)
    return value


def service_below(process: subprocess.Popen[bytes]) -> psutil.Process:
    """Return the process of the service that buildah started."""
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            command = child.cmdline()
            # The processes of buildah end their command lines with the same words, so compare the program too.
            if command[0].startswith("/opt/triggerer/bin/python") and command[2:] == ["standalone"]:
                return child
    raise AssertionError("no service below buildah")


def test_it_shows_its_help(container: Container) -> None:
    assert "Turns broker messages into durable asset events" in container.run("--help")


def test_a_standalone_executes_a_run_as_nobody_and_stops_in_order(
    container: Container, tmp_path: Path
) -> None:
    log = tmp_path / "service.log"
    process = container.start("standalone", log=log)
    try:
        wait_for(lambda: '"started"' in log.read_text(), what="it did not start", log=log)
        service = service_below(process)
        for one in (service, *service.children(recursive=True)):
            assert set(one.uids()) == {NOBODY}
            assert set(one.gids()) == {NOBODY}
        wait_for(
            lambda: json.loads(container.run("assets", "list", "--state", "declared", "--json")),
            what="its DAG file was not read",
            log=log,
        )
        container.run("assets", "emit", "orders")

        def ended() -> list[dict[str, Any]]:
            runs = json.loads(container.run("runs", "list", "--json"))
            return [run for run in runs if run["state"] in ("success", "failed")]

        (run,) = wait_for(ended, what="its run did not end", log=log)
        assert run["state"] == "success"
        assert f"executed by {NOBODY}" in container.run("runs", "logs", "on_orders", run["run_id"])
        service.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            process.wait()


def test_nothing_of_the_build_is_left_in_it(container: Container, images: Images) -> None:
    root = Path(images("mount", container.name))
    try:
        assert not (root / "etc/pip.conf").exists()
        assert not (root / "build").exists()
        assert not list((root / "opt/triggerer/lib").glob("*/site-packages/pip"))
        installed = [*(root / "opt/triggerer").rglob("*")]
        assert installed
        assert {path.lstat().st_uid for path in installed} == {0}
        home = (root / "var/lib/triggerer").stat()
        assert (home.st_uid, home.st_gid, home.st_mode & 0o777) == (NOBODY, NOBODY, 0o700)
    finally:
        images("umount", container.name)
