"""Planted bugs: each puts a wrong function or method into the product, or into a model of the simulation."""

from tests.simulation.mutations import (
    advancing,
    catching_up,
    falling_behind,
    files,
    flow,
    hosting,
    leases,
    members,
    parking,
    partitions,
    queues,
    scheduling,
)
from tests.simulation.mutations import handover as handover
from tests.simulation.mutations.registry import MUTATIONS, Mutation

__all__ = [
    "MUTATIONS",
    "Mutation",
    "advancing",
    "catching_up",
    "falling_behind",
    "files",
    "flow",
    "handover",
    "hosting",
    "leases",
    "members",
    "parking",
    "partitions",
    "queues",
    "scheduling",
]
