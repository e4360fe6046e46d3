# SPDX-License-Identifier: Apache-2.0
# With GPUFS_PYTHON=ON: finds Python and nanobind; the folder that has the module calls nanobind_add_module(_native ...) and
# install(TARGETS _native LIBRARY DESTINATION gpufs COMPONENT python).
if(GPUFS_PYTHON)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
  execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir OUTPUT_VARIABLE nanobind_ROOT
                  OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE gpufs_nanobind_error)
  if(gpufs_nanobind_error)
    message(FATAL_ERROR "GPUFS_PYTHON=ON needs nanobind in ${Python_EXECUTABLE}: pip install nanobind")
  endif()
  find_package(nanobind CONFIG REQUIRED)
endif()
