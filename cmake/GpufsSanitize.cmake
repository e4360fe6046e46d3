# SPDX-License-Identifier: Apache-2.0
# GPUFS_SANITIZE: everything in the build is instrumented, because a program that mixes both reports nonsense.
# -Og: most of a run is compiling, which takes a third less than with -O1 (with -O2 twice that), and tests a tenth longer at most.
if(GPUFS_SANITIZE STREQUAL "address")
  set(gpufs_sanitize_flags -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(GPUFS_SANITIZE STREQUAL "thread")
  set(gpufs_sanitize_flags -fsanitize=thread)
elseif(GPUFS_SANITIZE STREQUAL "fuzzer")  # clang's; tests/trust/service_fuzz has its main()
  set(gpufs_sanitize_flags -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
elseif(GPUFS_SANITIZE)
  message(FATAL_ERROR "GPUFS_SANITIZE is '${GPUFS_SANITIZE}'; it can be address, thread or fuzzer")
endif()
if(GPUFS_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${gpufs_sanitize_flags};-fno-omit-frame-pointer;-g1;-Og>")
  add_link_options("$<$<LINK_LANGUAGE:CXX>:${gpufs_sanitize_flags}>")
endif()
