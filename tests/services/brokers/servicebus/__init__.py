"""A Service Bus for tests: speaks AMQP 1.0 with the vendor's SDK, on loopback, in a process of its own.

- `entities`: queues, locks and sessions, without the network.
- `connection`: speaks AMQP by way of Qpid Proton.
- `claims` and `management`: answer at the addresses `$cbs` and `$management`.
- `control`: executes the commands of tests.
- `service`: starts the process.

docs/reference/brokers.md lists the differences from the vendor's service.
"""

from tests.services.brokers.servicebus.service import ServiceBusServer, open_servicebus

__all__ = ["ServiceBusServer", "open_servicebus"]
