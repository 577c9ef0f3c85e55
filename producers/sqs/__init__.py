"""Amazon SQS, and services that speak its API.

`producer` has the shared stream's producer. In an open `stream`, `receiving` polls the queue, `in_flight` has the
messages, and `visibility` keeps them invisible to other receivers and gives them back. `settle` decides which messages
`deletions` deletes and which `dead_letter` sends on. `batching` joins their requests. The SDK is imported when a stream
opens, because its import takes longer than reading a DAG file.
"""

from importlib.util import find_spec

from producers.sqs.producer import SqsSharedStreamProducer

if find_spec("aiobotocore") is None:
    # If the SDK is missing, raise the error of its import here. So the error shows when the plugin is loaded, and not
    # only when a stream opens.
    raise ModuleNotFoundError("No module named 'aiobotocore'", name="aiobotocore")

__all__ = ["SqsSharedStreamProducer"]
