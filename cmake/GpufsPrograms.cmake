# SPDX-License-Identifier: Apache-2.0
# One source, two machines: programs whose kernels g++ compiles for the CPU machine, and nvcc for the GPU. Also for projects that use
# gpufs.
#
#   gpufs_add_programs(<name> SOURCES <file>... [LIBS <library>...])
#       the programs <name>_cpu and <name>_cuda: of them what can be built here. Files are .cpp or .cu; both compilers get each.
#   gpufs_add_cpu_program(<target> SOURCES <file>... [LIBS <library>...])
#   gpufs_add_cuda_program(<target> SOURCES <file>... [LIBS <library>...])
#       one of the two, linked with gpufs::gpufs or gpufs::cuda.
# The project enables CUDA itself, before: project(... LANGUAGES CXX CUDA), or check_language and enable_language.
include("${CMAKE_CURRENT_LIST_DIR}/GpufsCudaArchitectures.cmake")

# Sets <out> to files with that extension: those that have it, and for others new ones that include them.
function(gpufs_sources_as_ out extension target)
  set(sources "")
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/${target}.sources")
  foreach(source IN LISTS ARGN)
    if(NOT source MATCHES "\\.${extension}$")
      get_filename_component(absolute "${source}" ABSOLUTE)
      file(RELATIVE_PATH stem "${CMAKE_CURRENT_SOURCE_DIR}" "${absolute}")
      string(MAKE_C_IDENTIFIER "${stem}" name)
      if(NOT stem MATCHES "^[A-Za-z0-9][A-Za-z0-9_]*\\.[A-Za-z0-9]+$")  # others would get the same name, as a/b.cu and a_b.cu
        string(SHA256 hash "${stem}")
        string(SUBSTRING "${hash}" 0 8 hash)
        string(APPEND name "_${hash}")
      endif()
      # By a relative path, so that a compiler cache knows it again in another clone.
      file(RELATIVE_PATH relative "${folder}" "${absolute}")
      set(source "${folder}/${name}.${extension}")
      file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${relative}\"\n")
    endif()
    list(APPEND sources "${source}")
  endforeach()
  set(${out} "${sources}" PARENT_SCOPE)
endfunction()

function(gpufs_add_cpu_program target)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBS" ${ARGN})
  gpufs_sources_as_(sources cpp ${target} ${arg_SOURCES})
  add_executable(${target} ${sources})
  target_link_libraries(${target} PRIVATE gpufs::gpufs ${arg_LIBS})
endfunction()

function(gpufs_add_cuda_program target)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBS" ${ARGN})
  gpufs_check_cuda_architectures(${CMAKE_CUDA_ARCHITECTURES})
  gpufs_sources_as_(sources cu ${target} ${arg_SOURCES})
  add_executable(${target} ${sources})
  target_link_libraries(${target} PRIVATE gpufs::cuda ${arg_LIBS})
endfunction()

function(gpufs_add_programs name)
  get_target_property(definitions gpufs::gpufs INTERFACE_COMPILE_DEFINITIONS)
  if(definitions MATCHES "GPUFS_HAVE_CPU_MACHINE")
    gpufs_add_cpu_program(${name}_cpu ${ARGN})
  endif()
  if(TARGET gpufs::cuda AND CMAKE_CUDA_COMPILER_LOADED)
    gpufs_add_cuda_program(${name}_cuda ${ARGN})
  endif()
  if(NOT TARGET ${name}_cpu AND NOT TARGET ${name}_cuda)
    message(FATAL_ERROR "gpufs_add_programs(${name}): there is no CPU machine, as gpufs was built without Boost.Context, and no GPU's, "
                        "as gpufs was built without CUDA or this project has not enabled the language CUDA")
  endif()
endfunction()
