"""Which image of a unit the driver takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sm121.target import LoadsAs, loads_as

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sm121.target import Capability, Kind
    from sm121.values import ArchSpec


class Image(Protocol):
    """An image, as a reader or as facts have it."""

    @property
    def kind(self) -> Kind: ...
    @property
    def arch(self) -> ArchSpec: ...


def choose(
    images: Sequence[Image], capability: Capability, refused: Callable[[int], bool] = lambda _: False
) -> int | None:
    """The index of the image that serves `capability`, None if none does; `refused` rules out some.

    A cubin goes before PTX; of cubins the best by `LoadsAs`, then the highest target, then the most specific.
    What the driver would take of a generic and a family cubin side by side is not documented, and nvcc refuses
    to make such a unit.
    """
    usable = [
        (how.rank, -image.arch.number, _SPECIFIC.index(image.arch.suffix), index)
        for index, image in enumerate(images)
        if (how := loads_as(image.kind, image.arch, capability)) is not LoadsAs.NO and not refused(index)
    ]
    return min(usable)[-1] if usable else None


_SPECIFIC = ("a", "f", "")
