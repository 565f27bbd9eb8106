"""Sends an operation so that it takes effect once, and says whether it did. See clients/README.md for the contract."""

from .backoff import Backoff
from .client import Client, DidNotHappen, Happened, Limits, MayHaveHappened, Result
from .judge import Answer, Headers
from .keys import FileKeyStore, KeyStore, new_key

__all__ = [
    "Answer",
    "Backoff",
    "Client",
    "DidNotHappen",
    "FileKeyStore",
    "Happened",
    "Headers",
    "KeyStore",
    "Limits",
    "MayHaveHappened",
    "Result",
    "new_key",
]
