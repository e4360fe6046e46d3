# SPDX-License-Identifier: Apache-2.0
# gpufs_target_defaults(<target>...): the warnings for gpufs's own code. Call it on every target that is ours.
function(gpufs_target_defaults)
  set(warnings -Wall -Wextra -Wshadow)
  set(cuda_warnings "-Xcompiler=-Wall,-Wextra,-Wshadow")
  if(GPUFS_WERROR)
    list(APPEND warnings -Werror)
    list(APPEND cuda_warnings "-Xcompiler=-Werror" "-Werror=all-warnings")
  endif()
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>"
                                             "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_warnings}>")
  endforeach()
endfunction()
