# SPDX-License-Identifier: Apache-2.0
# gpufs_check_cuda_architectures(<architecture>...): stops, and says what to set, where one of them cannot run gpufs. CMake's own choice
# is the oldest that nvcc knows, which is too old.
function(gpufs_check_cuda_architectures)
  foreach(architecture IN LISTS ARGN)
    if((architecture MATCHES "^([0-9]+)" AND CMAKE_MATCH_1 LESS 80) OR architecture MATCHES "^all(-major)?$")
      string(REPLACE ";" " " all "${ARGN}")
      message(
        FATAL_ERROR
          "gpufs runs on GPUs from sm_80 on, and CMAKE_CUDA_ARCHITECTURES is \"${all}\" (unless it is set, CMake takes the oldest "
          "that nvcc knows). Set it before project() or enable_language(CUDA): "
          "-DCMAKE_CUDA_ARCHITECTURES=native for the GPU of this machine, or numbers, as \"80;90\".")
    endif()
  endforeach()
endfunction()
