# SPDX-License-Identifier: Apache-2.0
# gpufs_target_defaults(<target>...): the warnings for gpufs's own code. Call it on every target that is ours.
function(gpufs_target_defaults)
  set(warnings -Wall -Wextra -Wshadow)
  set(cuda_warnings "-Xcompiler=-Wall,-Wextra,-Wshadow")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    list(APPEND warnings -Wno-restrict)  # false alarms in std::string: GCC bug 105651
    list(APPEND cuda_warnings "-Xcompiler=-Wno-restrict")
  endif()
  if(GPUFS_WERROR)
    list(APPEND warnings -Werror)
    list(APPEND cuda_warnings "-Xcompiler=-Werror" "-Werror=all-warnings")
  endif()
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>"
                                             "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_warnings}>")
  endforeach()
endfunction()
