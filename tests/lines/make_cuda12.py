"""Makes cubins and fatbins with the libraries of CUDA 12.9: NVRTC, NVFATBIN, NVJITLINK, OUT, SOURCE.

A program of its own, run by test_line_device_code.py. The calls are those of nvrtc.h, nvFatbin.h and nvJitLink.h.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

ARCHES = ("121a", "121", "121f", "120f", "120a", "120", "90a", "80")
LTOIR = 3
"""nvJitLinkInputType."""


def words(*options: str) -> Any:
    return (ctypes.c_char_p * len(options))(*(each.encode() for each in options))


def done(code: int, what: str) -> None:
    if code:
        raise SystemExit(f"{what} gave {code}")


def filled(size_of: Any, get: Any, handle: ctypes.c_void_p, what: str) -> bytes:
    """The bytes of an object, by the two calls that tell its size and copy it."""
    size = ctypes.c_size_t()
    done(size_of(handle, ctypes.byref(size)), f"size of {what}")
    data = ctypes.create_string_buffer(size.value)
    done(get(handle, data), what)
    return data.raw


class Makers:
    """The three libraries."""

    def __init__(self, nvrtc: Path, nvfatbin: Path, jitlink: Path, source: bytes) -> None:
        self.nvrtc, self.nvfatbin, self.jitlink = (ctypes.CDLL(str(each)) for each in (nvrtc, nvfatbin, jitlink))
        self.source = source

    def compiled(self, arch: str, *options: str, get: str = "CUBIN") -> bytes:
        """The source compiled for `sm_121a` (a cubin) or `compute_121a` (PTX, LTO-IR)."""
        program = ctypes.c_void_p()
        done(
            self.nvrtc.nvrtcCreateProgram(ctypes.byref(program), self.source, b"k.cu", 0, None, None),
            "nvrtcCreateProgram",
        )
        flags = words(f"--gpu-architecture={arch}", *options)
        if self.nvrtc.nvrtcCompileProgram(program, len(flags), flags):
            log = filled(self.nvrtc.nvrtcGetProgramLogSize, self.nvrtc.nvrtcGetProgramLog, program, "the log")
            raise SystemExit(f"{arch}: {log.decode()}")
        return filled(
            getattr(self.nvrtc, f"nvrtcGet{get}Size"), getattr(self.nvrtc, f"nvrtcGet{get}"), program, get
        )

    def bound(self, *entries: tuple[str, bytes, str], options: tuple[str, ...] = ()) -> bytes:
        """A fatbin of (Cubin | PTX | LTOIR, data, arch)."""
        handle = ctypes.c_void_p()
        done(
            self.nvfatbin.nvFatbinCreate(ctypes.byref(handle), words(*options), ctypes.c_size_t(len(options))),
            "nvFatbinCreate",
        )
        for kind, data, arch in entries:
            more = () if kind == "Cubin" else (b"",)
            add = getattr(self.nvfatbin, f"nvFatbinAdd{kind}")
            done(add(handle, data, ctypes.c_size_t(len(data)), arch.encode(), b"k", *more), f"{kind} for {arch}")
        data = filled(self.nvfatbin.nvFatbinSize, self.nvfatbin.nvFatbinGet, handle, "the fatbin")
        self.nvfatbin.nvFatbinDestroy(ctypes.byref(handle))
        return data

    def linked(self, lto: bytes, arch: str) -> bytes:
        """LTO-IR linked to a cubin."""
        handle = ctypes.c_void_p()
        options = words(f"-arch={arch}", "-lto")
        done(
            self.jitlink.__getattr__("__nvJitLinkCreate_12_9")(ctypes.byref(handle), len(options), options),
            "create",
        )
        add, complete, size, get = (
            self.jitlink.__getattr__(f"__nvJitLink{call}_12_9")
            for call in ("AddData", "Complete", "GetLinkedCubinSize", "GetLinkedCubin")
        )
        done(add(handle, LTOIR, lto, ctypes.c_size_t(len(lto)), b"k"), "nvJitLinkAddData")
        done(complete(handle), "nvJitLinkComplete")
        return filled(size, get, handle, "the linked cubin")


def main() -> None:
    nvrtc, nvfatbin, jitlink, out, source = map(Path, sys.argv[1:])
    make = Makers(nvrtc, nvfatbin, jitlink, source.read_bytes())
    cubins = {arch: make.compiled(f"sm_{arch}") for arch in ARCHES}
    ptx = {arch: make.compiled(f"compute_{arch}", get="PTX") for arch in ("121a", "120f", "80")}
    lto = make.compiled("compute_121a", "-dlto", get="LTOIR")
    native = ("Cubin", cubins["121a"], "121a")
    fatbins = {
        "native": make.bound(native),
        "all": make.bound(
            *(("Cubin", data, arch) for arch, data in cubins.items()),
            *(("PTX", data, arch) for arch, data in ptx.items()),
        ),
        "wrong": make.bound(("Cubin", cubins["120a"], "120a"), ("Cubin", cubins["90a"], "90a")),
        "jit": make.bound(("PTX", ptx["80"], "80")),
        "lto": make.bound(("LTOIR", lto, "121a")),
        "small": make.bound(native, options=("-compress=true", "-compress-all")),
    }
    for name, data in {**cubins, "jitlink": make.linked(lto, "sm_121a")}.items():
        (out / f"{name}.cubin").write_bytes(data)
    for name, data in fatbins.items():
        (out / f"{name}.fatbin").write_bytes(data)


if __name__ == "__main__":
    main()
