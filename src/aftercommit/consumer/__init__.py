"""Handle events once: a handler and its inbox row share a transaction, on the log or behind the bus."""

from aftercommit.consumer.dispatcher import Dispatcher
from aftercommit.consumer.log_worker import LogWorker, WorkerSettings
from aftercommit.consumer.outcome import Done, Outcome, Park, Retry

__all__ = ["Dispatcher", "Done", "LogWorker", "Outcome", "Park", "Retry", "WorkerSettings"]
