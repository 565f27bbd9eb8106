"""Keys, and where they are kept.

**Invariant:** of all who save a key under one name, one wins, and all are given the winner's. Two processes that begin the same operation
at once send the same key.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import uuid
from pathlib import Path
from typing import Optional, Protocol, Union


def new_key() -> str:
    """A key for one operation: a random UUID."""
    return str(uuid.uuid4())


class KeyStore(Protocol):
    """Keeps keys by the caller's names for its operations. What it has returned is durable."""

    def load(self, name: str) -> Optional[str]:
        """The key under this name, or None."""

    def save(self, name: str, key: str) -> str:
        """Keeps the key unless there is one already; returns the one that is kept."""

    def forget(self, name: str, key: str) -> None:
        """Removes this key from under this name. Another key there is another operation's, and stays."""


class FileKeyStore:
    """A file for each key, in one folder. Threads and processes, also in other languages, may share it."""

    def __init__(self, folder: Union[str, Path]) -> None:
        self._folder = Path(folder)

    def load(self, name: str) -> Optional[str]:
        try:
            key = _read(self._path(name), name)
        except FileNotFoundError:
            return None
        # Who linked it may have been killed before its name was durable: sent before that, and lost with the machine's power, it would be
        # followed by a new key.
        _sync(self._folder)
        return key

    def save(self, name: str, key: str) -> str:
        self._make_folder()
        path = self._path(name)
        draft = _beside(path)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, "key": key}, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            # A rename would replace the key of whoever was first; a link cannot.
            os.link(draft, path)
            _sync(self._folder)
            kept: Optional[str] = key
        except FileExistsError:
            kept = self.load(name)
        finally:
            os.unlink(draft)
        if kept is None:
            # Forgotten in between: somebody has just finished this operation.
            raise RuntimeError(f"{name!r} was settled by another process meanwhile; nothing was sent")
        return kept

    def forget(self, name: str, key: str) -> None:
        if self.load(name) != key:
            return
        path = self._path(name)
        # Nothing removes a file only if it holds this key: so it is taken aside first, and looked at again.
        aside = _beside(path)
        try:
            os.rename(path, aside)
        except FileNotFoundError:
            return
        if _read(aside, name) != key:
            # Forgotten and begun anew in between: put back, by a link, which replaces nobody's.
            os.link(aside, path)
        os.unlink(aside)
        _sync(self._folder)

    def _path(self, name: str) -> Path:
        return self._folder / f"{hashlib.sha256(name.encode()).hexdigest()}.json"

    def _make_folder(self) -> None:
        missing = [path for path in (self._folder, *self._folder.parents) if not path.exists()]
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in missing:
            _sync(path.parent)


def _read(path: Path, name: str) -> str:
    try:
        kept = json.loads(path.read_text("utf-8"))
    except ValueError:
        kept = None
    if isinstance(kept, dict) and kept.get("name") == name and isinstance(kept.get("key"), str) and kept["key"]:
        return str(kept["key"])
    raise ValueError(
        f"{path} should hold the key of {name!r} and cannot be read as such; nothing was sent or removed. "
        "Restore it, or remove it once you have looked up what became of the operation."
    )


def _beside(path: Path) -> Path:
    """A name in the same folder that nobody looks at."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}")


def _sync(folder: Path) -> None:
    """A name is durable, of a file or of a folder, when the folder that it is in is."""
    # Windows has no such thing, and no need of it.
    if os.name == "nt":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
