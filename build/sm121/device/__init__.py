"""Readers of CUDA device code: what is in a file, by its bytes, without CUDA and without a GPU."""

from sm121.device.cubin import Cubin, Kernel, Toolkit, read_cubin
from sm121.device.elf import ElfFile, Section, Segment
from sm121.device.fatbin import Container, DeviceCode, DeviceImage, UnknownEntry
from sm121.device.host import HostLibrary, read_host
from sm121.device.mark import Mark, read_mark
from sm121.device.payload import payload
from sm121.device.ptx import ptx_kernels
from sm121.device.reader import read_device_code
from sm121.device.sass import Code
from sm121.device.window import Buffer
from sm121.errors import DamagedError

__all__ = [
    "Buffer",
    "Code",
    "Container",
    "Cubin",
    "DamagedError",
    "DeviceCode",
    "DeviceImage",
    "ElfFile",
    "HostLibrary",
    "Kernel",
    "Mark",
    "Section",
    "Segment",
    "Toolkit",
    "UnknownEntry",
    "payload",
    "ptx_kernels",
    "read_cubin",
    "read_device_code",
    "read_host",
    "read_mark",
]
