"""Amazon SQS, and services that speak its API.

`producer` defines the producer of a shared stream. The producer imports `stream`, and so the SDK, only when a stream
opens, because importing the SDK takes longer than reading a DAG file. The parts of an open stream:

- `receiving`: polls the queue.
- `received` and `in_flight`: the messages to yield, and all messages that are neither deleted nor given back.
- `visibility`: keeps messages invisible to other receivers, and gives messages back.
- `settle`: decides which messages `deletions` deletes and which messages `dead_letter` sends to another queue.
- `batching`: joins deletions, and renewals of invisibility, into requests for up to ten messages.
"""

from importlib.util import find_spec

from producers.sqs.producer import SqsSharedStreamProducer

if find_spec("aiobotocore") is None:
    # If the SDK is missing, fail now, when the plugin is loaded, instead of when a stream opens.
    raise ModuleNotFoundError("No module named 'aiobotocore'", name="aiobotocore")

__all__ = ["SqsSharedStreamProducer"]
