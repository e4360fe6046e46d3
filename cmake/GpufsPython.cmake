# SPDX-License-Identifier: Apache-2.0
# gpufs_add_python_module(): a module of the package gpufs. The target gpufs_python makes them all.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(
  COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
  OUTPUT_VARIABLE nanobind_ROOT
  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED)
add_custom_target(gpufs_python)
# ./dev runs the Python sources where they lie, so the modules go beside them; those under a sanitizer elsewhere.
set(GPUFS_PYTHON_MODULES "${PROJECT_SOURCE_DIR}/python/gpufs" CACHE PATH "Where the Python modules go, if no wheel is built")
mark_as_advanced(GPUFS_PYTHON_MODULES)

# gpufs_add_python_module(NAME SOURCE LIBRARY library CUDA_LIBRARY library): CUDA_LIBRARY is linked where there is CUDA; the source
# sees GPUFS_WITH_CUDA then.
function(gpufs_add_python_module name source)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "LIBRARY;CUDA_LIBRARY" "")
  nanobind_add_module(${name} NB_STATIC NB_SUPPRESS_WARNINGS ${source})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARY})
  if(GPUFS_HAVE_CUDA)
    target_link_libraries(${name} PRIVATE ${arg_CUDA_LIBRARY})
    target_compile_definitions(${name} PRIVATE GPUFS_WITH_CUDA=1)
  endif()
  gpufs_target_defaults(${name})
  set(map "${PROJECT_SOURCE_DIR}/cmake/python_module.map")
  target_link_options(${name} PRIVATE "LINKER:--version-script=${map}")
  set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS "${map}")
  add_dependencies(gpufs_python ${name})
  if(NOT SKBUILD)
    set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${GPUFS_PYTHON_MODULES}")
  endif()
  install(TARGETS ${name} LIBRARY DESTINATION gpufs COMPONENT python)
endfunction()
