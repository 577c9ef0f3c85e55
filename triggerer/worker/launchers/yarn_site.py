"""Finds the addresses of YARN's resource managers in Hadoop's own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from triggerer.errors import ConfigurationError

_PREFIX: Final = "spark.hadoop."
_MANAGER: Final = "yarn.resourcemanager"
_IDS: Final = f"{_MANAGER}.ha.rm-ids"


def resource_managers(conf: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    """Return the addresses of the resource managers' REST API: one, or several if YARN is highly available.

    A setting `spark.hadoop.NAME` in `conf` overrides the setting `NAME` in `yarn-site.xml`.

    Raises:
        ConfigurationError: Neither `conf` nor `yarn-site.xml` has an address.
    """
    settings = {key.removeprefix(_PREFIX): value for key, value in conf.items()}
    for variable in ("YARN_CONF_DIR", "HADOOP_CONF_DIR"):
        if folder := environ.get(variable):
            settings = _site(Path(folder) / "yarn-site.xml") | settings
            break
    ids = [one.strip() for one in settings.get(_IDS, "").split(",") if one.strip()]
    suffixes = [f".{one}" for one in ids] or [""]
    found = [address for suffix in suffixes if (address := _address(settings, suffix))]
    if not found:
        raise ConfigurationError(
            "nothing says where YARN's resource manager is",
            hint=f"set YARN_CONF_DIR, or {_PREFIX}{_MANAGER}.webapp.address in [spark] conf",
        )
    return found


def _address(settings: Mapping[str, str], suffix: str) -> str | None:
    is_secure = settings.get("yarn.http.policy") == "HTTPS_ONLY"
    key, port = ("webapp.https.address", 8090) if is_secure else ("webapp.address", 8088)
    address = settings.get(f"{_MANAGER}.{key}{suffix}")
    if address is None or "${" in address:
        host = settings.get(f"{_MANAGER}.hostname{suffix}")
        address = None if host is None else f"{host}:{port}"
    if not address or "://" in address:
        return address
    return f"{'https' if is_secure else 'http'}://{address}"


def _site(file: Path) -> dict[str, str]:
    try:
        root = ET.parse(file).getroot()
    except (OSError, ET.ParseError):
        return {}
    return {
        one.findtext("name", "").strip(): one.findtext("value", "").strip()
        for one in root.iter("property")
    }
