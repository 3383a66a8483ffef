"""Small made-up units, as CMake and ninja spell them."""

from __future__ import annotations

from sm121.compile.edges import Edge, edges

NINJA = """\
# made by CMake
pool heavy
  depth = 1

build CMakeFiles/_C.dir/csrc/a.cu.o: CUDA_COMPILER___C_unscanned_Release ../source/csrc/a.cu || cmake_order
  pool = heavy
  CONFIG = Release
  DEFINES = -DUSE_CUDA -D_C_EXPORTS
  DEP_FILE = CMakeFiles/_C.dir/csrc/a.cu.o.d
  FLAGS = -O3 -std=c++20 -gencode arch=compute_89,code=sm_89 -gencode arch=compute_120f,code=sm_120f
  INCLUDES = -I../source/csrc -isystem ../cuda/include
  LAUNCHER = python3 -I -S ../launcher.py ../tools/bin/ccache\x20
  OBJECT_DIR = CMakeFiles/_C.dir
  OBJECT_FILE_DIR = CMakeFiles/_C.dir/csrc

build CMakeFiles/_C.dir/csrc/b.cpp.o: CXX_COMPILER___C_unscanned_Release ../source/csrc/b.cpp || order
  DEFINES = -DUSE_CUDA
  DEP_FILE = CMakeFiles/_C.dir/csrc/b.cpp.o.d
  FLAGS = -O3 -fPIC
  INCLUDES = -I../source/csrc
  LAUNCHER = python3 -I -S ../launcher.py ../tools/bin/ccache\x20

build _C.abi3.so: CXX_MODULE_LIBRARY_LINKER___C_Release CMakeFiles/_C.dir/csrc/a.cu.o CMakeFiles/_C.dir/csrc/b.cpp.o
  LINK_FLAGS = -s
"""


def unit(name: str = "_C/csrc/a.cu", **flags: str) -> Edge:
    """A unit of an extension, from its name."""
    extension, _, path = name.partition("/")
    return Edge(
        name, f"CMakeFiles/{extension}.dir/{path}.o", "CUDA", f"../source/{path}", "", {"FLAGS": "-O3", **flags}
    )


def both() -> list[Edge]:
    return edges(NINJA)
