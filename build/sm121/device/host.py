"""What a library asks of its host: libraries, symbol versions, symbols.

Read the way the dynamic loader does, from the segments, so that it also works without section headers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sm121.device.elf import (
    ET_REL,
    PT_DYNAMIC,
    PT_NOTE,
    SHT_DYNSYM,
    SHT_NOTE,
    SHT_SYMTAB,
    SYMBOL,
    ElfFile,
    other_layout,
)
from sm121.device.window import Remarks, Strings, Window
from sm121.errors import DamagedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sm121.device.window import Buffer

_DYNAMIC = struct.Struct("<QQ")
_VERNEED = struct.Struct("<HHIII")
_VERNAUX = struct.Struct("<IHHII")
_VERDEF = struct.Struct("<HHHHIII")
_NOTE = struct.Struct("<III")
_HASH = struct.Struct("<II")
_GNU_HASH = struct.Struct("<IIII")
_WORD = struct.Struct("<I")
_HALF = struct.Struct("<H")
_RELA = struct.Struct("<8xII8x")

_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = (
    1,
    4,
    5,
    6,
    10,
    14,
    15,
    29,
)
_DT_RELA, _DT_RELASZ, _DT_PLTRELSZ, _DT_PLTREL, _DT_JMPREL, _DT_BIND_NOW, _DT_FLAGS = 7, 8, 2, 20, 23, 24, 30
_DT_FLAGS_1, _DT_RELACOUNT = 0x6FFFFFFB, 0x6FFFFFF9
_BIND_NOW = {_DT_FLAGS: 8, _DT_FLAGS_1: 1}
"""Bits of these tags that have everything looked up when the library is loaded, as a tag of its own does."""
_JUMPS = {"x86_64": 7, "aarch64": 1026}
"""The relocation of a call, R_..._JUMP_SLOT: of those in a jump table, no other can wait for it."""
_VARIANT_CALL = 0x80
"""In a symbol's st_other on aarch64: a late look-up would not keep the registers that this function's calls rely on."""
_DT_GNU_HASH, _DT_VERSYM, _DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFE, 0x6FFFFFFF
_DT_VERDEF, _DT_VERDEFNUM = 0x6FFFFFFC, 0x6FFFFFFD
_BASE_VERSION = 1
_NT_GNU_BUILD_ID = 3
_STB_LOCAL, _STB_WEAK = 0, 2
_VERSION_INDEX, _FIRST_VERSION = 0x7FFF, 2
_MOST_ROWS = 1 << 16
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class HostLibrary:
    """The dynamic section of a library or program, and its neighbours.

    `version_needs` gives the symbol versions asked of each library (`{"libc.so.6": ("GLIBC_2.17",)}`). `defined` and
    `undefined` are dynamic symbols without versions (of an object file: its global symbols); a weak symbol that
    nobody need define is in neither. `bound` are those undefined ones that a version ties to one of the libraries, with
    library and version; `lazy` those that a call alone needs, looked up when it is first made. `versions` are the
    symbol versions that this library defines, without its own name's. `build_id` is hexadecimal, "" if there is none.
    `comment` names the compilers. `damage` names what could not be read.
    """

    machine: str
    type: str = ""
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    build_id: str = ""
    version_needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defined: frozenset[str] = frozenset()
    undefined: frozenset[str] = frozenset()
    bound: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    lazy: frozenset[str] = frozenset()
    versions: frozenset[str] = frozenset()
    comment: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()


def read_host(buffer: Buffer) -> HostLibrary:
    """Read an ELF file of a host. DamagedError if it is none.

    Of one that is 32-bit or big-endian, no more than the machine is told.
    """
    if machine := other_layout(Window.over(buffer)):
        return HostLibrary(machine)
    elf = ElfFile.parse(buffer)
    damage = Remarks(elf.damage)
    dynamic = _Dynamic(elf, damage)
    needs = dynamic.version_needs()
    definitions = dynamic.version_definitions()
    defined, undefined, bound = dynamic.symbols()
    return HostLibrary(
        machine=elf.machine, type=elf.type, soname="".join(dynamic.texts(_DT_SONAME)[:1]),
        needed=dynamic.texts(_DT_NEEDED), rpath=_folders(dynamic.texts(_DT_RPATH)),
        runpath=_folders(dynamic.texts(_DT_RUNPATH)), build_id=_build_id(elf), version_needs=needs, defined=defined,
        undefined=undefined, bound=bound, lazy=dynamic.lazy(), versions=definitions, comment=_comment(elf),
        damage=damage.all(),
    )  # fmt: skip


class _Dynamic:
    """The dynamic segment's tags, and the tables that they point to. What cannot be read is added to `damage`."""

    def __init__(self, elf: ElfFile, damage: Remarks) -> None:
        self._elf = elf
        self._damage = damage
        self._tags: list[tuple[int, int]] = []
        self._strings = Strings(b"")
        self._versions: dict[int, tuple[str, str]] = {}
        self._asked: dict[int, tuple[str, bool]] = {}
        try:
            self._tags = list(self._read_tags())
            if self._tag(_DT_STRTAB):
                table = self._at(_DT_STRTAB, self._tag(_DT_STRSZ), "dynamic strings")
                self._strings = Strings(table.take(0, table.size, "dynamic strings"))
        except DamagedError as error:
            damage.add(*error.problems)

    def texts(self, tag: int) -> tuple[str, ...]:
        found = [(value, self._strings.at(value)) for kind, value in self._tags if kind == tag]
        self._damage.add(
            *(f"dynamic string at {value:#x} does not exist." for value, text in found if text is None)
        )
        return tuple(text for _, text in found if text is not None)

    def version_definitions(self) -> frozenset[str]:
        """The symbol versions that are defined here; the base version, which is the library's name, is none."""
        found: set[str] = set()
        try:
            if self._tag(_DT_VERDEF):
                self._read_version_definitions(found)
        except DamagedError as error:
            self._damage.add(*error.problems)
        return frozenset(found)

    def version_needs(self) -> dict[str, tuple[str, ...]]:
        """The symbol versions asked of each library; what they are numbered is kept for `symbols`."""
        needs: dict[str, list[str]] = {}
        try:
            if self._tag(_DT_VERNEED):
                self._read_version_needs(needs)
        except DamagedError as error:
            self._damage.add(*error.problems)
        return {library: tuple(sorted(set(versions))) for library, versions in needs.items()}

    def symbols(self) -> tuple[frozenset[str], frozenset[str], dict[str, tuple[str, str]]]:
        """The defined symbols, the undefined ones, and those of them that are bound by a version, with it."""
        defined: set[str] = set()
        undefined: set[str] = set()
        bound: dict[str, tuple[str, str]] = {}
        try:
            for table, names in self._symbol_tables():
                rows = table.take(0, table.size // SYMBOL.size * SYMBOL.size, "symbols")
                versions = self._symbol_versions(len(rows) // SYMBOL.size)
                for number, (name_at, info, other, where, _, _) in enumerate(SYMBOL.iter_unpack(rows)):
                    if info >> 4 == _STB_LOCAL or (info >> 4 == _STB_WEAK and not where):
                        continue
                    name = names.at(name_at)
                    if name is None:
                        raise DamagedError(f"symbol name at {name_at:#x} does not exist.")  # noqa: TRY301
                    (defined if where else undefined).add(name)
                    if not where:
                        self._asked[number] = (name, bool(other & _VARIANT_CALL))
                    if versions and not where and versions[number] & _VERSION_INDEX >= _FIRST_VERSION:
                        bound[name] = self._versions.get(versions[number] & _VERSION_INDEX, ("", ""))
        except DamagedError as error:
            self._damage.add(*error.problems)
        return frozenset(defined), frozenset(undefined), bound

    def lazy(self) -> frozenset[str]:
        """The undefined symbols that calls alone need, once `symbols` found them: none if all are bound at loading."""
        now = any(tag == _DT_BIND_NOW or value & _BIND_NOW.get(tag, 0) for tag, value in self._tags)
        jump = _JUMPS.get(self._elf.machine)
        if now or jump is None or self._tag(_DT_PLTREL) != _DT_RELA or not self._asked:
            return frozenset()
        try:
            uses = self._uses(_DT_JMPREL, self._tag(_DT_PLTRELSZ), jump)
            # Relative ones come first and name no symbol (-z combreloc): a large library has a million of them.
            at_once = self._uses(_DT_RELA, self._tag(_DT_RELASZ), skip=self._tag(_DT_RELACOUNT))
        except DamagedError as error:
            self._damage.add(*error.problems)
            return frozenset()
        waiting = {name for name, waits in uses if waits}
        return frozenset(waiting - {name for name, waits in uses | at_once if not waits})

    def _uses(self, tag: int, size: int, jump: int | None = None, skip: int = 0) -> set[tuple[str, bool]]:
        """The undefined symbols that a table of relocations names, and whether looking them up waits for a call."""
        found: set[tuple[str, bool]] = set()
        if not self._tag(tag):
            return found
        rows = self._at(tag, size, "relocations")
        count = rows.size // _RELA.size
        for start in range(min(skip, count), count, _ROWS_AT_ONCE):
            taken = min(_ROWS_AT_ONCE, count - start) * _RELA.size
            content = rows.take(start * _RELA.size, taken, "relocations")
            for kind, number in {row for row in _RELA.iter_unpack(content) if row[1] in self._asked}:
                name, variant = self._asked[number]
                found.add((name, kind == jump and not variant))
        return found

    def _symbol_versions(self, count: int) -> tuple[int, ...]:
        """The version index of each dynamic symbol; empty if symbols have no versions."""
        if not self._tag(_DT_VERSYM):
            return ()
        table = self._at(_DT_VERSYM, count * _HALF.size, "symbol versions")
        return tuple(index for (index,) in _HALF.iter_unpack(table.take(0, table.size, "symbol versions")))

    def _read_tags(self) -> Iterator[tuple[int, int]]:
        for segment in self._elf.segments:
            if segment.type != PT_DYNAMIC:
                continue
            size = min(segment.size, _MOST_ROWS * _DYNAMIC.size) // _DYNAMIC.size * _DYNAMIC.size
            for tag, value in _DYNAMIC.iter_unpack(
                self._elf.window.take(segment.offset, size, "dynamic segment")
            ):
                if not tag:
                    return
                yield tag, value

    def _tag(self, wanted: int) -> int:
        return next((value for tag, value in self._tags if tag == wanted), 0)

    def _at(self, tag: int, size: int | None, what: str) -> Window:
        """The bytes at the address that a tag holds: `size` of them, or all up to the end of the file."""
        address = self._tag(tag)
        offset = self._elf.offset_of(address)
        if offset is None:
            raise DamagedError(f"{what}: wanted an address inside a segment, found {address:#x}.")
        return self._elf.window.part(offset, self._elf.window.size - offset if size is None else size, what)

    def _read_version_needs(self, needs: dict[str, list[str]]) -> None:
        table = self._at(_DT_VERNEED, None, "version needs")
        offset = rows = 0
        for _ in range(self._tag(_DT_VERNEEDNUM)):
            _, count, file, first, following = table.unpack(_VERNEED, offset, "version need")
            library = self._name(file)
            versions = needs.setdefault(library, [])
            entry = offset + first
            for _ in range(count):
                if (rows := rows + 1) > _MOST_ROWS:
                    raise DamagedError(f"version needs: wanted at most {_MOST_ROWS}, found more.")
                _, _, number, name, after = table.unpack(_VERNAUX, entry, "needed version")
                versions.append(self._name(name))
                self._versions[number & _VERSION_INDEX] = (library, versions[-1])
                if not after:
                    break
                entry += after
            if not following:
                break
            offset += following

    def _read_version_definitions(self, found: set[str]) -> None:
        table = self._at(_DT_VERDEF, None, "version definitions")
        offset = 0
        for _ in range(min(self._tag(_DT_VERDEFNUM), _MOST_ROWS)):
            _, flags, _, count, _, first, following = table.unpack(_VERDEF, offset, "version definition")
            if count and not flags & _BASE_VERSION:
                (name,) = table.unpack(_WORD, offset + first, "defined version")
                found.add(self._name(name))
            if not following:
                break
            offset += following

    def _name(self, offset: int) -> str:
        name = self._strings.at(offset)
        if name is None:
            raise DamagedError(f"versions: the name at {offset:#x} does not exist.")
        return name

    def _symbol_tables(self) -> Iterator[tuple[Window, Strings]]:
        elf = self._elf
        sections = elf.of_type(SHT_SYMTAB if elf.type_number == ET_REL else SHT_DYNSYM)
        for section in sections[:1]:
            yield elf.content(section), elf.strings(elf.linked(section))
        if not sections and self._tag(_DT_SYMTAB):
            yield self._at(_DT_SYMTAB, self._symbol_count() * SYMBOL.size, "dynamic symbols"), self._strings

    def _symbol_count(self) -> int:
        """The hash tables alone tell how many dynamic symbols there are."""
        if self._tag(_DT_HASH):
            _, chains = self._at(_DT_HASH, None, "hash table").unpack(_HASH, 0, "hash table")
            return int(chains)
        if not self._tag(_DT_GNU_HASH):
            raise DamagedError("dynamic symbols: wanted a hash table that tells their number, found none.")
        table = self._at(_DT_GNU_HASH, None, "GNU hash table")
        buckets, first, bloom, _ = table.unpack(_GNU_HASH, 0, "GNU hash table")
        start = _GNU_HASH.size + bloom * 8
        heads = table.take(start, buckets * 4, "GNU hash buckets")
        last = max((head for (head,) in _WORD.iter_unpack(heads)), default=0)
        if last < first:
            raise DamagedError(
                "dynamic symbols: wanted a hash table that tells their number, the hash table is empty."
            )
        chains = start + buckets * 4
        for _ in range(_MOST_ROWS):
            if table.unpack(_WORD, chains + (last - first) * 4, "GNU hash chain")[0] & 1:
                return last + 1
            last += 1
        raise DamagedError(f"GNU hash table: wanted chains of at most {_MOST_ROWS} symbols, found a longer one.")


def _folders(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(folder for text in texts for folder in text.split(":") if folder)


def _build_id(elf: ElfFile) -> str:
    places = [(segment.offset, segment.size) for segment in elf.segments if segment.type == PT_NOTE]
    places += [(section.offset, section.size) for section in elf.of_type(SHT_NOTE)]
    for start, size in places:
        try:
            for kind, owner, value in _notes(elf.window.part(start, size, "note")):
                if kind == _NT_GNU_BUILD_ID and owner == b"GNU\0":
                    return value.hex()
        except DamagedError:
            continue  # a broken note is no build id; the sections' damage is named elsewhere
    return ""


def _notes(content: Window) -> Iterator[tuple[int, bytes, bytes]]:
    offset = 0
    while content.holds(offset, _NOTE.size):
        owner, size, kind = content.unpack(_NOTE, offset, "note")
        offset += _NOTE.size
        name = content.take(offset, owner, "note")
        offset += owner + -owner % 4
        yield kind, name, content.take(offset, size, "note")
        offset += size + -size % 4


def _comment(elf: ElfFile) -> tuple[str, ...]:
    lines: list[str] = []
    for section in elf.named(".comment"):
        if elf.window.holds(section.offset, section.size):
            raw = elf.content(section).head(1 << 16)
            lines += [line.decode("utf-8", "replace") for line in raw.split(b"\0") if line]
    return tuple(dict.fromkeys(lines))
