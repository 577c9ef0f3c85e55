"""The compose file with the brokers: its services, and the settings in the comments above them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from producers.kafka.settings import KafkaSettings
from producers.pubsub.settings import PubSubSettings
from producers.servicebus.settings import ServiceBusSettings
from producers.sqs.settings import SqsSettings
from triggerer.config import load_settings
from triggerer.demo.brokers.source import NAME

FILE = Path(__file__).resolve().parents[2] / "deploy" / "compose.yaml"
SETTINGS: dict[str, Any] = {
    "kafka": KafkaSettings,
    "pubsub": PubSubSettings,
    "servicebus": ServiceBusSettings,
    "sqs": SqsSettings,
}


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text())["services"]
    return found


def test_each_broker_and_the_database_has_a_profile(services: dict[str, dict[str, Any]]) -> None:
    profiles = {profile for service in services.values() for profile in service["profiles"]}
    assert profiles == {"kafka", "sqs", "pubsub", "servicebus", "postgres"}
    for service in services.values():
        for needed in service.get("depends_on", ()):
            assert services[needed]["profiles"] == service["profiles"]


def test_ports_are_bound_to_loopback_and_differ(services: dict[str, dict[str, Any]]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert len({port.split(":")[1] for port in ports}) == len(ports)


def test_images_have_a_tag_and_mounted_files_are_there(
    services: dict[str, dict[str, Any]],
) -> None:
    for service in services.values():
        assert re.search(r"/?[\w-]+:[\w.-]+$", service["image"]), service["image"]
        for volume in service.get("volumes", ()):
            assert (FILE.parent / volume.split(":")[0]).is_file(), volume


def test_the_sections_above_the_services_are_settings(tmp_path: Path) -> None:
    sections = re.findall(r"(?:^  # .*\n)+(?=  \w+:\n)", FILE.read_text(), re.MULTILINE)
    stated = "".join(
        line.removeprefix("  # ") + "\n"
        for section in sections
        for line in section.splitlines()
        if line.startswith(("  # [", "  # ")) and ("=" in line or "[" in line)
    )
    configuration = tomllib.loads(stated)
    assert set(configuration) == {"connections", "database"}
    assert set(configuration["connections"]) == set(SETTINGS)
    for name, connection in configuration["connections"].items():
        SETTINGS[name].from_mapping(name, connection)
    file = tmp_path / "triggerer.toml"
    file.write_text(stated)
    assert load_settings(file).database.url.startswith("postgresql")


def test_the_emulators_namespace_has_what_its_documentation_asks_for() -> None:
    """The emulator of Service Bus has only the entities that `compose/servicebus.json` names."""
    content = json.loads((FILE.parent / "compose" / "servicebus.json").read_text())
    (namespace,) = content["UserConfig"]["Namespaces"]
    assert namespace["Name"] == "sbemulatorns"
    queues = {queue["Name"]: queue["Properties"] for queue in namespace["Queues"]}
    assert {properties["RequiresSession"] for properties in queues.values()} == {True, False}
    # `triggerer demo --broker servicebus` needs this queue, and no client can create it.
    assert NAME in queues
    # Our delivery limit must apply before the limit of the entity.
    assert all(queue["MaxDeliveryCount"] > 10 for queue in queues.values())
