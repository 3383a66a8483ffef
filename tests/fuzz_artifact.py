"""Archives with random damage, for every reader of the room `artifact`.

The readers may answer with members, findings, or an error of ours; anything else is a fault.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "build"), str(HERE), str(HERE / "artifact")]

from image_maker import ImageMaker, docker_save, index, layer, oci_layout, tar_of  # noqa: E402
from wheel_maker import wheel  # noqa: E402

from sm121.artifact import Limits, Wheel, survey  # noqa: E402
from sm121.artifact.imagedocs import LINUX_ARM64  # noqa: E402
from sm121.artifact.layout import open_layout  # noqa: E402
from sm121.errors import Sm121Error  # noqa: E402

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from sm121.artifact.member import Artifact

LIMITS = Limits(member=1 << 24, total=1 << 26, entries=10_000, document=1 << 20, record=1 << 20)
LAYERS = [
    layer(
        ("usr", None), ("usr/lib", None), ("lib", "-> usr/lib"), ("usr/lib/a.so", bytes(range(256)) * 8),
        ("usr/lib/b.so", "= usr/lib/a.so"), (f"usr/{'long' * 40}/x", b"long name"), ("usr/é", b"pax"),
    ),
    layer(("usr", None), ("usr/.wh.lib", b""), ("lib/c.so", b"through a link"), ("d", None), ("d/.wh..wh..opq", b"")),
]  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A reader, and right input to start from."""

    name: str
    seed: bytes
    read: Callable[[Path], None]


def exhaust(artifact: Artifact) -> None:
    """Ask for all that there is to ask."""
    for member in artifact.members():
        try:
            with member.buffer() as data:
                assert len(data) == member.size
        except Sm121Error:
            continue
    assert all(finding.message.isprintable() for finding in artifact.problems)
    artifact.find("usr/lib/a.so")
    survey(artifact).distributions()


def read_wheel(path: Path) -> None:
    """Open as a wheel."""
    with Wheel(path, LIMITS) as opened:
        exhaust(opened)
        opened.identify()


def read_image(path: Path) -> None:
    """Open as an image archive."""
    with open_layout(path, LINUX_ARM64, limits=LIMITS) as opened:
        exhaust(opened)


def read_layer(path: Path) -> None:
    """Open as the layer of an image whose documents are right."""
    data = path.read_bytes()
    image = ImageMaker([LAYERS[0], data], compression="")
    with tempfile.TemporaryDirectory() as folder:
        read_image(oci_layout(Path(folder) / "oci", index(image), image))


def targets() -> list[Target]:
    """All readers with their seeds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stored = folder / "stored.whl"
        with zipfile.ZipFile(stored, "w") as archive:
            archive.writestr("a.so", bytes(range(256)) * 4)
            archive.writestr("b-1.dist-info/RECORD", b"a.so,sha256=x,1024\n")
        found = [
            Target("wheel", wheel(folder).read_bytes(), read_wheel),
            Target("stored wheel", stored.read_bytes(), read_wheel),
            Target("save", docker_save(folder / "save.tar", ImageMaker(LAYERS)).read_bytes(), read_image),
            *[Target(f"layer {number}", data, read_layer) for number, data in enumerate(LAYERS)],
        ]
        for how in ("", "gzip", "zstd"):
            image = ImageMaker(LAYERS, compression=how)
            path = tar_of(oci_layout(folder / f"oci{how}", index(image), image), folder / f"oci{how}.tar")
            found.append(Target(f"oci {how}".strip(), path.read_bytes(), read_image))
    return found


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Change, cut, repeat or move some bytes; offsets and sizes are the likeliest to matter."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        if not out:
            break
        at = chance.randrange(len(out))
        match chance.randrange(7):
            case 0:
                out[at] = chance.randrange(256)
            case 1:
                out[at] ^= 1 << chance.randrange(8)
            case 2:
                out[at : at + 4] = chance.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f"))
            case 3:
                del out[at : at + chance.choice((1, 3, 512, len(out)))]
            case 4:
                out[at:at] = out[at : at + chance.choice((1, 30, 512))]
            case 5:
                other = chance.randrange(len(out))
                out[at : at + 30] = out[other : other + 30]
            case _:
                out[at : at + 12] = chance.choice((b"00000000000\0", b"77777777777\0", b"\x80" + b"\xff" * 11))
    return bytes(out)


def fault_of(target: Target, data: bytes, folder: Path) -> str:
    """What a reader did wrong with this input, "" if nothing."""
    path = folder / "input.whl"
    path.write_bytes(data)
    try:
        target.read(path)
    except Sm121Error as error:
        if not str(error).replace("\n", "").isprintable():
            return f"an unprintable message: {error!r}"
    except Exception:  # noqa: BLE001 -- what is looked for
        return traceback.format_exc()
    return ""


def inputs(chance: random.Random) -> Iterator[tuple[Target, bytes]]:
    """Endless damaged inputs."""
    every = targets()
    while True:
        target = chance.choice(every)
        yield target, damaged(target.seed, chance)
