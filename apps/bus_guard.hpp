// SPDX-License-Identifier: Apache-2.0
// Reading a mapped file that somebody may truncate. Host code.
#pragma once
#include <setjmp.h>

namespace gpufs::apps {

namespace detail {
extern thread_local sigjmp_buf* bus_return;  // where SIGBUS goes in this thread; nullptr: to who had it before
void install_bus_handler();
}  // namespace detail

// Runs work() and gives true; false when it touched a page of a mapping that lies beyond the end of its file. Then work() was
// left where it was: it must own nothing that has a destructor. A loop that shall be fast goes into a function of its own that is
// not inlined: around sigsetjmp() the compiler keeps variables in memory. Not nested.
template <class Work>
bool bus_guarded(const Work& work) {
  detail::install_bus_handler();
  sigjmp_buf here;
  if (sigsetjmp(here, 1) != 0) {  // with the signal mask, in which the handler blocks SIGBUS
    detail::bus_return = nullptr;
    return false;
  }
  detail::bus_return = &here;
  work();
  detail::bus_return = nullptr;
  return true;
}

}  // namespace gpufs::apps
