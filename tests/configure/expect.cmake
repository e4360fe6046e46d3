# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=... -DTREE=... -DHAS=a,b -DLACKS=c -DREFUSED=words -P expect.cmake -- OPTIONS...: configures SOURCE in TREE, which is
# made anew, and looks which targets there are, or whether it is refused with those words.
set(options "")
set(rest FALSE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  if(rest)
    list(APPEND options "${CMAKE_ARGV${i}}")
  elseif(CMAKE_ARGV${i} STREQUAL "--")
    set(rest TRUE)
  endif()
endforeach()

file(REMOVE_RECURSE "${TREE}")
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${TREE} -G Ninja ${options}
  RESULT_VARIABLE result
  OUTPUT_VARIABLE said
  ERROR_VARIABLE said)
if(REFUSED)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  if(result EQUAL 0)
    message(FATAL_ERROR "was not refused")
  elseif(NOT said MATCHES "${REFUSED}")
    message(FATAL_ERROR "was refused with other words than '${REFUSED}': ${said}")
  endif()
  return()
endif()
if(NOT result EQUAL 0)
  message(FATAL_ERROR "does not configure: ${said}")
endif()

execute_process(
  COMMAND ${CMAKE_COMMAND} --build ${TREE} -- -t targets all
  OUTPUT_VARIABLE targets COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "," ";" HAS "${HAS}")
string(REPLACE "," ";" LACKS "${LACKS}")
foreach(target IN LISTS HAS)
  if(NOT targets MATCHES "[\n/]${target}: ")
    message(FATAL_ERROR "there is no target ${target}")
  endif()
endforeach()
foreach(target IN LISTS LACKS)
  if(targets MATCHES "[\n/]${target}: ")
    message(FATAL_ERROR "there is a target ${target}, which nobody has asked for")
  endif()
endforeach()
