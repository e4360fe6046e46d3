# SPDX-License-Identifier: Apache-2.0
# Compiles CASE of SOURCE as C++ of STANDARD, which must fail with an error that matches MESSAGE; with an empty MESSAGE it must compile.
# OPTIONS: of the compiler, in place of -fsyntax-only.
if(NOT OPTIONS)
  set(OPTIONS -fsyntax-only)
endif()
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env LC_ALL=C ${COMPILER} -std=c++${STANDARD} ${OPTIONS} -I${INCLUDE} -DCASE=${CASE} ${SOURCE}
  RESULT_VARIABLE status
  ERROR_VARIABLE errors)
if(MESSAGE STREQUAL "")
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "case ${CASE} must compile:\n${errors}")
  endif()
  return()
endif()
if(status EQUAL 0)
  message(FATAL_ERROR "case ${CASE} compiles, and must not")
endif()
# Only lines that say "error": a message quotes the source too, and headers are named.
string(REGEX MATCHALL "error: [^\n]*" lines "${errors}")
if(NOT "${lines}" MATCHES "${MESSAGE}")
  message(FATAL_ERROR "case ${CASE} fails, but not with '${MESSAGE}':\n${errors}")
endif()
