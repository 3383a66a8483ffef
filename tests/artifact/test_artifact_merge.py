"""The merged view against a second opinion: the same layers applied to a real folder."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from image_maker import ImageMaker, index, layer, oci_layout

from sm121.artifact import Image, open_artifact

Entry = tuple[str, bytes | str | None]


def made_up(chance: random.Random) -> list[list[Entry]]:
    """Layers as builders could make them: a tree, then changes to what is there, also through links."""
    folders = ["a", "b", "a/b", "a/c", "b/c"][: chance.randint(2, 5)]
    known = [f"{folder}/{name}" for folder in folders for name in "xy" if chance.random() < 0.7]
    links = [(name, f"-> {chance.choice(folders)}") for name in ("l", "m") if chance.random() < 0.6]
    base: list[Entry] = [*[(path, None) for path in folders], *[(path, path.encode()) for path in known], *links]
    folders += [name for name, _ in links]
    made = [base]
    for number in range(chance.randint(1, 3)):
        changes: dict[str, bytes | str | None] = {}
        for _ in range(chance.randint(1, 4)):
            folder, file = chance.choice(folders), chance.choice(known or ["a/x"])
            match chance.randrange(9):
                case 0 | 1 | 2:
                    changes[f"{folder}/{chance.choice('xyz')}"] = b"new %d" % number
                case 3:
                    changes[f"{folder}/.wh.{chance.choice('xyzbc')}"] = b""
                case 4:
                    changes[f"{folder}/.wh..wh..opq"] = b""
                case 5:
                    changes[f".wh.{chance.choice('ablm')}"] = b""
                case 6:
                    changes[chance.choice((folder, file))] = chance.choice((b"file", "-> a", "-> b", None))
                case 7:
                    changes[f"{folder}/h"] = f"= {file}"
                case _:
                    changes[file] = b"changed %d" % number
        above = {path.rsplit("/", depth)[0] for path in changes for depth in range(1, path.count("/") + 1)}
        listed = [(path, None) for path in sorted(above - set(changes)) if chance.random() < 0.8]
        made.append([*listed, *changes.items()])
    return made


def applied(root: Path, made: list[list[Entry]]) -> dict[str, bytes]:
    """What an engine does that unpacks layers one over the other. OSError where the system itself says no."""
    for entries in made:
        written = {path for path, _ in entries if "/.wh." not in f"/{path}"}
        for path, _ in entries:
            folder, _, name = path.rpartition("/")
            if name.startswith(".wh."):
                hide(root, folder, name, written)
        for path, content in entries:
            if "/.wh." not in f"/{path}":
                place(root / path, content, root)
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            file = Path(folder) / name
            if not file.is_symlink():
                found[file.relative_to(root).as_posix()] = file.read_bytes()
    return found


def hide(root: Path, folder: str, name: str, written: set[str]) -> None:
    parts = folder.split("/") if folder else []
    above = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    if any((root / path).is_symlink() and path in written for path in above) or not (root / folder).is_dir():
        return
    gone = (
        list((root / folder).iterdir()) if name == ".wh..wh..opq" else [root / folder / name.removeprefix(".wh.")]
    )
    for path in gone:
        remove(path)


def place(path: Path, content: bytes | str | None, root: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None and path.is_dir() and not path.is_symlink():
        return
    mark, _, named = content.partition(" ") if isinstance(content, str) else ("", "", "")
    inode = root / named
    if mark == "=" and (inode.is_symlink() or not inode.is_file() or inode == path or path in inode.parents):
        raise OSError("a hard link to nothing, to itself, to a link, or into what it replaces")
    remove(path)
    if content is None:
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif mark == "->":
        path.symlink_to(named)
    else:
        path.hardlink_to(inode)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def replaced_in_place(made: list[list[Entry]]) -> set[str]:
    """Paths that a later entry of the same layer may replace, by its name or through a link.

    No builder makes such layers, and a stream cannot foresee it.
    """
    found = set()
    for entries in made:
        for number, (path, _) in enumerate(entries):
            for later, content in entries[number + 1 :]:
                same_name = later.rpartition("/")[2] == path.rpartition("/")[2]
                if same_name or (path.startswith(f"{later}/") and content is not None):
                    found.add(path)
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32).map(random.Random).map(made_up))
@example([[("a", None), ("a/b", b"old"), ("c", "-> a")], [("c/b", b"new")]])
@example([[("a", None), ("a/b", b"old"), ("c", "-> a")], [("c", None), ("c/b", b"new"), ("c/.wh.b", b"")]])
@example([[("a", b"1"), ("b", "= a")], [(".wh.a", b""), ("c", "= b")]])
@example([[("a", None), ("a/b", b"old"), ("c", "-> a")], [("c/.wh..wh..opq", b"")]])
@example([[("a/b", b"1")], [("a", "-> c")], [("a/b", b"2")]])
def test_members_are_what_an_engine_would_unpack(made: list[list[Entry]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "root").mkdir()
        try:
            wanted = applied(folder / "root", made)
        except OSError:
            assume(False)
        image = ImageMaker([layer(*entries) for entries in made], compression="")
        with open_artifact(oci_layout(folder / "oci", index(image), image)) as artifact:
            assert isinstance(artifact, Image)
            passing: dict[str, bytes] = {}
            for member in artifact.members():
                passing[member.path] = member.read()
            assert {member.path: member.read() for member in artifact.members()} == wanted
            odd = {finding.subject for finding in artifact.problems if "was read, but" in finding.got}
            assert odd <= replaced_in_place(made)
            assert {path: data for path, data in passing.items() if path in wanted or path not in odd} == wanted
