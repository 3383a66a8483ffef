"""Blobs by digest in a folder, and the OCI layouts that are made of them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sm121.errors import DigestError, StorageError
from sm121.image.documents import Document, image_index
from sm121.progress import size as shown_size
from sm121.sources.disk import sync_folder, writing
from sm121.values import CHUNK, Sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sm121.artifact.imagedocs import Descriptor


class BlobStore:
    """Files below `root/blobs/sha256`, as in an OCI layout: one has its name only when its bytes have that digest."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "blobs" / "sha256"

    def path(self, digest: Sha256) -> Path:
        """Where the blob is, or will be."""
        return self.folder / digest.hex

    def part(self, digest: Sha256) -> Path:
        """Where the bytes of a blob that is being fetched collect."""
        return self.folder / f".{digest.hex}.part"

    def has(self, digest: Sha256, size: int | None = None) -> bool:
        """Whether the blob is there, with `size` bytes where that is known. Its bytes were proven when it came."""
        path = self.path(digest)
        return path.is_file() and (size is None or path.stat().st_size == size)

    def read(self, digest: Sha256) -> bytes:
        """A small blob whole. Raises DigestError if its bytes changed since they were stored."""
        data = self.path(digest).read_bytes()
        if Sha256.of_bytes(data) != digest:
            raise DigestError(
                f"{self.path(digest)} holds {Sha256.of_bytes(data)}.", do="remove that file; it was changed."
            )
        return data

    def add(self, document: Document) -> Document:
        """Store a document, and give it back."""
        with self.writing() as (file, admit):
            file.write(document.data)
            admit(document.digest)
        return document

    @contextmanager
    def writing(self) -> Iterator[tuple[IO[bytes], _Admit]]:
        """A new file, and what gives it its name once its digest is known. Without that call nothing is left."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=".", suffix=".new", dir=self.folder)
            admit = _Admit(self, Path(name))
            try:
                with os.fdopen(descriptor, "w+b") as file:
                    yield file, admit
                    file.flush()
                    os.fchmod(file.fileno(), 0o644)
                    os.fsync(file.fileno())
                admit.finish()
            finally:
                Path(name).unlink(missing_ok=True)

    @contextmanager
    def locked(self, digest: Sha256) -> Iterator[None]:
        """Keep one blob for this process: two that fetch into one store wait for each other."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = self.root / "locks" / digest.hex  # stays: a lock that is removed can be held by two
        lock.parent.mkdir(exist_ok=True)
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def admit_part(self, digest: Sha256, size: int) -> Path:
        """Give fetched bytes their name, or raise DigestError and throw them away."""
        part = self.part(digest)
        found = Sha256.of_file(part)
        if found != digest or part.stat().st_size != size:
            part.unlink()
            raise DigestError(
                f"{digest} of {size} bytes was wanted; the bytes that came are {found}.",
                do="try again; if it stays so, the registry or a proxy on the way changes them.",
            )
        with writing(part):
            part.replace(self.path(digest))
        return self.path(digest)


class _Admit:
    """Says which digest the file that is being written shall have."""

    def __init__(self, store: BlobStore, file: Path) -> None:
        self._store, self._file = store, file
        self._digest: Sha256 | None = None

    def __call__(self, digest: Sha256) -> None:
        self._digest = digest

    def finish(self) -> None:
        if self._digest is not None:
            self._file.replace(self._store.path(self._digest))


@contextmanager
def new_layout(
    folder: Path, store: BlobStore, documents: Iterable[Document], blobs: Iterable[Descriptor]
) -> Iterator[Path]:
    """An OCI layout under a temporary name beside `folder`; it gets its name when the block ends well.

    `documents` are what its index lists; `blobs` all that they name, which are hard links into the store where the
    disk has those. What is in `folder` already is replaced.
    """
    listed = list(documents)
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".", suffix=".partial") as name:
            new = Path(name) / folder.name
            fill_layout(new, store, listed, blobs)
            yield new
            if folder.exists():
                folder.rename(Path(name) / "old")
            new.rename(folder)
        sync_folder(folder.parent)


def fill_layout(
    folder: Path, store: BlobStore, documents: Iterable[Document], blobs: Iterable[Descriptor]
) -> None:
    """Write a layout into a folder that is not there yet."""
    inside = BlobStore(folder)
    inside.folder.mkdir(parents=True)
    listed = list(documents)
    for document in listed:
        inside.add(document)
    for blob in blobs:
        _linked(store.path(blob.digest), inside.path(blob.digest))
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (folder / "index.json").write_bytes(image_index(document.descriptor for document in listed).data)


def _linked(file: Path, name: Path) -> None:
    if name.exists():
        return
    try:
        os.link(file, name)
    except FileNotFoundError:
        raise StorageError(
            f"the blob {file} is missing.", do="run the same command again; it is made anew."
        ) from None
    except OSError:
        shutil.copyfile(file, name)


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raise StorageError if `needed` bytes do not fit."""
    place = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise StorageError(
            f"{what} takes {shown_size(needed)}; {place} has {shown_size(free)} left.",
            do="free space or name another folder with --work.",
        )


def digest_of(path: Path) -> tuple[Sha256, int]:
    """Digest and size of a file in one pass."""
    found, count = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            found.update(piece)
            count += len(piece)
    return Sha256(found.hexdigest()), count
