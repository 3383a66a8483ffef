# Read by CMake right after upstream's project() command (CMAKE_PROJECT_<name>_INCLUDE), so that upstream's own
# files stay untouched. Variables SM121_* come from the command line.

# External projects of upstream that are not compiled here: their sources are not had, or hold no SM12x code.
macro(include)
  get_filename_component(sm121_included "${ARGV0}" NAME_WE)
  if("${ARGV0}" MATCHES "cmake/external_projects/" AND NOT sm121_included IN_LIST SM121_EXTERNAL_PROJECTS)
    message(STATUS "sm121: external project ${sm121_included} is not part of this build")
  else()
    _include(${ARGV})
  endif()
endmacro()

# Upstream demands GCC 13 for <format> in the host code of DeepGEMM and DeepSelect alone
# (https://github.com/vllm-project/vllm/issues/58158).
if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13
   AND NOT deepgemm IN_LIST SM121_EXTERNAL_PROJECTS
   AND NOT deepselect IN_LIST SM121_EXTERNAL_PROJECTS)
  set(CMAKE_CXX_COMPILER_VERSION 13.0)
endif()

if(SM121_TARGET_CPU)
  # spinloop asks for -mmwaitx on x86_64.
  set(CMAKE_SYSTEM_PROCESSOR ${SM121_TARGET_CPU})
  # CMake's cross mode breaks FindPython and torch's FindCUDA, so CMake is not told. The one program that torch's
  # module wants to run prints the CUDA version of cuda.h, which was read when the toolkit was checked.
  function(try_run run_result compile_result)
    cmake_parse_arguments(PARSE_ARGV 2 sm121 "" "RUN_OUTPUT_VARIABLE" "")
    if(NOT sm121_RUN_OUTPUT_VARIABLE STREQUAL "cuda_version_from_header")
      message(FATAL_ERROR "sm121: a program of the target CPU would be run here to learn "
                          "'${sm121_RUN_OUTPUT_VARIABLE}'; build natively, or teach hook.cmake the answer")
    endif()
    set(${run_result} 0 PARENT_SCOPE)
    set(${compile_result} TRUE PARENT_SCOPE)
    set(cuda_version_from_header ${SM121_CUDA_RELEASE} PARENT_SCOPE)
  endfunction()
endif()
