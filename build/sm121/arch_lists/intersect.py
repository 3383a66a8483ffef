"""vLLM's "loose intersection" of architecture lists (cmake/utils.cmake, cuda_archs_loose_intersection).

One list says what sources may be compiled for (offered), the other what a user wants. An exact match of the
number wins and keeps the suffix that either side wrote; a family target takes one wanted target of its major;
whatever is left gets the highest plain offer of its major that is not higher. A wanted target is answered once:
what another answer has used up is dropped without a word, which is how 12.0a;12.1a becomes 12.0a.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sm121.values import ArchSpec


class Matching(StrEnum):
    """The two forms that the function has had."""

    EXACT_FIRST = "exact first"
    """All exact matches before any family match; a plain offer stays while a plain wish for it is open."""
    ONE_PASS = "one pass"  # noqa: S105 -- a form of the function, not a secret
    """Offers in turn, exact or family; a plain offer goes with the first suffixed wish for it."""


@dataclass(frozen=True, slots=True)
class Intersection:
    """Targets in the order in which vLLM finds them, and the wanted targets that none of them answers."""

    targets: tuple[ArchSpec, ...]
    dropped: tuple[ArchSpec, ...]


def loose_intersection(
    offered: Sequence[ArchSpec], wanted: Sequence[ArchSpec], matching: Matching = Matching.EXACT_FIRST
) -> Intersection:
    """Answer each wanted target from the offers. Offers may ask for PTX beside their machine code."""
    table = _Table(offered, wanted)
    if matching is Matching.EXACT_FIRST:
        later = [offer for offer in table.suffixed if not table.exact(offer)]
    else:
        later = []
        for offer in table.suffixed:
            if _base(offer) in wanted:
                table.answer(_base(offer), offer)
            else:
                table.relative(offer)
    for offer in later:
        table.relative(offer)
    table.keep_suffixes(exhaust=matching is Matching.ONE_PASS)
    table.fall_back()
    return Intersection(table.targets(), tuple(table.dropped))


class _Table:
    """Offers and wishes still on the table, and the answers found so far."""

    def __init__(self, offered: Sequence[ArchSpec], wanted: Sequence[ArchSpec]) -> None:
        self._with_ptx = {replace(offer, ptx=False) for offer in offered if offer.ptx}
        # Offers with PTX are looked at last.
        last = sorted(offered, key=lambda offer: offer.ptx)
        offers = _unique(replace(offer, ptx=False) for offer in last)
        self.suffixed = [offer for offer in offers if offer.suffix]
        self._plain = [offer for offer in offers if not offer.suffix]
        self._open = list(wanted)
        self._found: list[ArchSpec] = []
        self.dropped: list[ArchSpec] = []

    def answer(self, wish: ArchSpec, target: ArchSpec) -> None:
        if wish in self._open:
            self._open.remove(wish)
        self._found.append(target)

    def exact(self, offer: ArchSpec) -> bool:
        """A suffixed offer answers the plain wish of its number, and uses up the suffixed ones beside it."""
        base = _base(offer)
        if base not in self._open:
            return False
        self.answer(base, offer)
        for sibling in (replace(base, suffix="a"), replace(base, suffix="f")):
            if sibling in self._open:
                self._open.remove(sibling)
                if sibling != offer:
                    self.dropped.append(sibling)
        return True

    def relative(self, offer: ArchSpec) -> None:
        """A suffixed offer answers a wish of its number under the wish's suffix; a family, one of its major."""
        candidates = [replace(offer, suffix="a"), replace(offer, suffix="f")]
        if offer.suffix == "f":
            candidates += [wish for wish in self._open if wish.major == offer.major]
        for wish in candidates:
            if wish in self._open:
                self.answer(wish, wish)
                return

    def keep_suffixes(self, *, exhaust: bool) -> None:
        """A plain offer answers a suffixed wish of its number under the wish's suffix."""
        for wish in list(self._open):
            base = _base(wish)
            if wish.suffix and base in self._plain:
                self.answer(wish, wish)
                if exhaust or base not in self._open:
                    self._plain.remove(base)

    def fall_back(self) -> None:
        """All other wishes get the highest plain offer not above them, of their major or with PTX."""
        for wish in self._open:
            fitting = [
                offer
                for offer in self._plain
                if offer.number <= wish.number and (offer.major == wish.major or offer in self._with_ptx)
            ]
            if fitting:
                self._found.append(max(fitting))
            else:
                self.dropped.append(wish)

    def targets(self) -> tuple[ArchSpec, ...]:
        return tuple(replace(target, ptx=target in self._with_ptx) for target in _unique(self._found))


def _base(arch: ArchSpec) -> ArchSpec:
    return replace(arch, suffix="")


def _unique(archs: Iterable[ArchSpec]) -> list[ArchSpec]:
    return list(dict.fromkeys(archs))
