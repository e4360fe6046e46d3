# SPDX-License-Identifier: Apache-2.0
# Which lists of architectures are refused: this script calls itself with each.
set(check "${CMAKE_CURRENT_LIST_DIR}/../../cmake/GpufsCudaArchitectures.cmake")
if(DEFINED ARCHITECTURES)
  include("${check}")
  string(REPLACE "," ";" ARCHITECTURES "${ARCHITECTURES}")
  gpufs_check_cuda_architectures(${ARCHITECTURES})
  return()
endif()

function(expect refused)
  foreach(architectures IN LISTS ARGN)
    execute_process(
      COMMAND ${CMAKE_COMMAND} -DARCHITECTURES=${architectures} -P ${CMAKE_CURRENT_LIST_FILE}
      RESULT_VARIABLE result
      ERROR_VARIABLE said)
    if(refused AND (result EQUAL 0 OR NOT said MATCHES "CMAKE_CUDA_ARCHITECTURES=native"))
      message(FATAL_ERROR "'${architectures}' was taken, or refused without saying what to set: ${said}")
    elseif(NOT refused AND NOT result EQUAL 0)
      message(FATAL_ERROR "'${architectures}' was refused: ${said}")
    endif()
  endforeach()
endfunction()
expect(TRUE 75 52-real 79 75,80 80,75 75-virtual,90 all all-major)
expect(FALSE 80 80-real 90a 90-real,90-virtual 100 120f-real native OFF)
