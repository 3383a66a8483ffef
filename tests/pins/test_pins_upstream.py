"""Third-party sources out of build files, written as upstream writes them."""

from __future__ import annotations

import pytest

from sm121.errors import PinsError
from sm121.pins.upstream import Fetched, fetched, is_build_file

TOP = """
set(CUTLASS_REVISION "v4.7.1")
if (DEFINED ENV{VLLM_CUTLASS_SRC_DIR})
  set(VLLM_CUTLASS_SRC_DIR $ENV{VLLM_CUTLASS_SRC_DIR})
endif()
FetchContent_Declare(
  cutlass
  GIT_REPOSITORY https://github.com/nvidia/cutlass.git
  # Please keep this in sync with the line above.
  GIT_TAG ${CUTLASS_REVISION}
  # Important: if GIT_SHALLOW is enabled then GIT_TAG works only with names.
  # So if the GIT_TAG above is updated to a commit hash, change that
  GIT_SHALLOW TRUE
)
define_extension_target(_C)
"""

CHOICE = """
if (DEFINED ENV{TRITON_KERNELS_SRC_DIR})
else()
  if (VLLM_TARGET_DEVICE STREQUAL "rocm")
    set(TRITON_GIT "https://github.com/ROCm/triton.git")
    set(TAG "669b31acc1dd1b3fd93286afd5db67f65d9f7557")
  else()
    set(TRITON_GIT "https://github.com/triton-lang/triton.git")
    set(TAG "v3.5.1")
  endif()
  FetchContent_Declare(triton_kernels GIT_REPOSITORY ${TRITON_GIT} GIT_TAG ${TAG})
endif()
"""

OWN = """
if(DEFINED ENV{QUTLASS_SRC_DIR})
endif()
set(_TAG "e74319e3405ce6d71965732880f5dc1f52371f64")
FetchContent_Populate(qutlass
  GIT_REPOSITORY "https://github.com/IST-DASLab/qutlass.git"
  GIT_TAG "${_TAG}" )
define_extension_target(
  _qutlass_C
  DESTINATION vllm)
"""


def test_tags_commits_and_choices() -> None:
    texts = {
        "CMakeLists.txt": TOP,
        "cmake/external_projects/triton_kernels.cmake": CHOICE,
        "cmake/external_projects/qutlass.cmake": OWN,
        "cmake/external_projects/none.cmake": "set(X 1)\n",
    }
    assert fetched(texts) == [
        Fetched("cutlass", "https://github.com/nvidia/cutlass.git", "v4.7.1", "VLLM_CUTLASS_SRC_DIR", ()),
        Fetched(
            "qutlass", "https://github.com/IST-DASLab/qutlass.git", "e74319e3405ce6d71965732880f5dc1f52371f64",
            "QUTLASS_SRC_DIR", ("_qutlass_C",),
        ),
        Fetched("triton_kernels", "https://github.com/triton-lang/triton.git", "v3.5.1", "TRITON_KERNELS_SRC_DIR", ()),
    ]  # fmt: skip


def test_what_cannot_be_understood_is_named_with_its_file() -> None:
    texts = {
        "cmake/external_projects/a.cmake": "FetchContent_Declare(a GIT_REPOSITORY https://x.example/a GIT_TAG v1)",
        "cmake/external_projects/b.cmake": "ENV{B_SRC_DIR} GIT_REPOSITORY https://x.example/b GIT_TAG ${UNSET}",
    }
    with pytest.raises(PinsError) as caught:
        fetched(texts)
    assert len(caught.value.problems) == 2
    assert "without an override variable" in caught.value.problems[0]
    assert "uses ${UNSET}" in caught.value.problems[1]


def test_build_files() -> None:
    assert is_build_file("CMakeLists.txt")
    assert is_build_file("cmake/external_projects/qutlass.cmake")
    assert not is_build_file("csrc/CMakeLists.txt")
    assert not is_build_file("cmake/utils.cmake")
