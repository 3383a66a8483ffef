"""An OCI layout on another machine, over ssh: only what is missing there is sent, each blob verified there.

The other machine needs a POSIX shell and coreutils (mkdir, cat, sha256sum, mv, find), nothing of ours.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from sm121 import process
from sm121.artifact.imagedocs import Descriptor
from sm121.artifact.jsondoc import JsonReader
from sm121.errors import ImageError, UsageError
from sm121.image.documents import REF_NAME, Document, image_index

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sm121.values import Sha256

_MARK = b'{"imageLayoutVersion":"1.0.0"}'


class NodeFolder:
    """A layout at `ssh://[USER@]HOST[:PORT]/PATH`, made there if it is missing. Raises ImageError if ssh fails.

    It can be copied to; verbs that read are run on that machine."""

    def __init__(self, host: str, port: int | None, folder: str) -> None:
        self._target, self._port, self._folder = host, port, folder
        self._program = process.find("ssh") or "ssh"
        self._present: set[str] | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        do = "write ssh://[USER@]HOST[:PORT]/PATH of a layout there."
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"{text!r} is no node: {error}.", do=do) from error
        host = f"{parts.username}@{parts.hostname}" if parts.username else parts.hostname or ""
        # A host that begins with a dash would be an option of ssh.
        good = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]*", host)
        folder = posixpath.normpath(parts.path)
        if not good or folder in {"", "/", "."} or not folder.isprintable() or parts.password:
            raise UsageError(f"{text!r} is no node.", do=do)
        return cls(host, port, folder)

    @property
    def name(self) -> str:
        port = f":{self._port}" if self._port else ""
        return f"ssh://{self._target}{port}{self._folder}"

    def close(self) -> None:
        """Every command is a connection of its own; ssh's ControlMaster makes that cheap."""

    def digest_of(self, tag: str) -> Sha256 | None:
        """What a name stands for there, None if nothing has it."""
        return next((each.digest for each in self._listed() if each.annotations.get(REF_NAME) == tag), None)

    def has_document(self, name: Sha256 | str) -> bool:  # noqa: ARG002 -- as for a layout in a folder
        return False

    def has_blob(self, digest: Sha256) -> bool:
        if self._present is None:
            made = f"mkdir -p {self._path('blobs/sha256')} && ls {self._path('blobs/sha256')}"
            self._present = set(self._run(made).split())
        return digest.hex in self._present

    def push_blob(self, digest: Sha256, path: Path, moved: Callable[[int], None]) -> int:
        """Send a blob; the other side computes its digest before it gets its name."""
        size = path.stat().st_size
        if self.has_blob(digest):
            moved(size)
            return 0
        target = self._path(f"blobs/sha256/{digest.hex}")
        part = self._path(f"blobs/sha256/.{digest.hex}.part")
        check = f"printf '%s  %s\\n' {digest.hex} {part} | sha256sum -c --status"
        self._run(f"cat >{part} && {check} && mv {part} {target} || {{ rm -f {part}; exit 65; }}", stdin=path)
        assert self._present is not None
        self._present.add(digest.hex)
        moved(size)
        return size

    def push_document(self, document: Document) -> None:
        self._put(f"blobs/sha256/{document.digest.hex}", document.data)

    def name_document(self, document: Document, tag: str) -> None:
        """List a manifest; with a tag in place of what had that name."""
        bare = document.descriptor
        if tag:
            named = Descriptor(bare.media_type, bare.digest, bare.size, annotations={REF_NAME: tag})
            self._list(named, lambda each: each.annotations.get(REF_NAME) == tag)
        else:
            self._list(bare, lambda each: REF_NAME not in each.annotations and each.digest == bare.digest)

    def attach(self, subject: Sha256, document: Document) -> None:  # noqa: ARG002 -- it stands in the document
        self.push_document(document)
        self._list(document.descriptor, lambda each: each.digest == document.digest)

    def _listed(self) -> list[Descriptor]:
        """What the layout's index lists; nothing if there is no layout yet."""
        held = self._run(f"cat {self._path('index.json')} 2>/dev/null || true")
        if not held.strip():
            return []
        reader = JsonReader(f"index.json of {self.name}")
        tables = reader.tables(reader.top(held.encode()), "manifests")
        listed = [Descriptor.of_table(reader, each, "manifests") for each in tables]
        reader.finish()
        return listed

    def _list(self, descriptor: Descriptor, replaced: Callable[[Descriptor], bool]) -> None:
        kept = [each for each in self._listed() if not replaced(each)]
        self._put("index.json", image_index([*kept, descriptor]).data)
        self._put("oci-layout", _MARK)

    def _put(self, name: str, data: bytes) -> None:
        path = self._path(name)
        part = self._path(f"{name}.part")
        self._run(f"mkdir -p {self._path('blobs/sha256')} && cat >{part} && mv {part} {path}", data=data)

    def _path(self, name: str) -> str:
        return shlex.quote(f"{self._folder}/{name}")

    def _run(self, command: str, *, stdin: Path | None = None, data: bytes | None = None) -> str:
        port = ["-p", str(self._port)] if self._port else []
        argv = [self._program, "-o", "BatchMode=yes", *port, "--", self._target, command]
        # ssh is the user's own: agent, configuration and jump hosts are found through the environment.
        done = process.feed(argv, stdin or data or b"", env=dict(os.environ))
        if done.returncode:
            said = (done.stderr.strip().splitlines() or [f"ssh ended with {done.returncode}"])[-1]
            reason = "the bytes that arrived were others, or its disk is full" if done.returncode == 65 else said
            raise ImageError(
                f"{self.name}: {reason}.",
                do="check `ssh HOST true`, space and permissions there; then run this again.",
            )
        return done.stdout
