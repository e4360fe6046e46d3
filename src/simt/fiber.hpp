// SPDX-License-Identifier: Apache-2.0
// One stack with its own control flow. The switch is Boost.Context's jump_fcontext, the primitive under its fiber class: that
// class keeps its state in instrumented inline functions, which ThreadSanitizer would see running between two fibers.
#pragma once
#include <cxxabi.h>
#include <boost/context/detail/fcontext.hpp>
#include <cstddef>

#include "sanitizer.hpp"

namespace gpufs::simt::runtime {

// The Itanium C++ ABI's per-thread list of exceptions being handled; each fiber needs its own.
struct exception_state {
  void* caught = nullptr;
  unsigned uncaught = 0;
};

struct fiber {
  boost::context::detail::fcontext_t context = nullptr;
  const void* stack_bottom = nullptr;
  std::size_t stack_nbytes = 0;
  void* fake_stack = nullptr;  // AddressSanitizer's
  void* tsan = nullptr;
  exception_state exceptions;
};

// The first thing an arriving fiber does: `transfer` is what it was resumed with.
GPUFS_SANITIZER_INLINE void arrive(fiber* self, boost::context::detail::transfer_t transfer) {
  auto* left = static_cast<fiber*>(transfer.data);
  left->context = transfer.fctx;
  sanitizer::finish_switch(self == nullptr ? nullptr : self->fake_stack, &left->stack_bottom, &left->stack_nbytes);
}

// Leaves `from` (the caller) and runs `to`; returns when another fiber switches back to `from`. All state of the OS thread is
// exchanged before the jump: a fiber may come back on another thread between launches.
GPUFS_SANITIZER_INLINE void switch_fiber(fiber& from, fiber& to) {
  auto* exceptions = reinterpret_cast<exception_state*>(abi::__cxa_get_globals());
  from.exceptions = *exceptions;
  *exceptions = to.exceptions;
  sanitizer::start_switch(&from.fake_stack, to.stack_bottom, to.stack_nbytes, to.tsan);
  arrive(&from, boost::context::detail::jump_fcontext(to.context, &from));
}

}  // namespace gpufs::simt::runtime
