"""Amazon SQS, and what speaks its API.

`producer` has the shared stream's producer; the other modules are its parts. In an open `stream`, `receiving` polls
(by the names of `attempts`), `in_flight` knows what is held, `visibility` keeps it and gives it back, `deletions` and
`dead_letter` end it, and `settler` decides which; `batching` makes their requests. Neither this package nor its
producer imports the SDK before a stream opens, since that takes longer than to read a DAG file.
"""

from importlib.util import find_spec

from producers.sqs.producer import SqsSharedStreamProducer

if find_spec("aiobotocore") is None:
    # As an import would: a missing SDK is found when the plugin is loaded.
    raise ModuleNotFoundError("No module named 'aiobotocore'", name="aiobotocore")

__all__ = ["SqsSharedStreamProducer"]
