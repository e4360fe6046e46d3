// SPDX-License-Identifier: Apache-2.0
// Calls that all lanes of a group make together, with equal arguments, none of which is memory of another device. The CPU machine
// stops a launch that breaks this; on CUDA all of this does nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpufs/simt/config.hpp"
#include "gpufs/simt/group.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// An argument that is memory for all lanes of the group: none of them may have it on its stack.
struct memory_of_all {
  const void* begin;
  std::size_t nbytes = 1;  // 0: not used
};

// While it lives, its lane is in the call. `signature` is "name(first argument, second, ...)", for messages. Arguments: numbers,
// enumerators, addresses (which must be equal), memory_of_all, and texts (const char*, NUL-terminated, in memory for all lanes),
// whose characters must be equal, wherever they are. It waits for nothing and orders nothing: the group's next collective compares.
#if GPUFS_ON_CUDA
class group_call {
 public:
  template <class Group, class... Arguments>
  GPUFS_DEVICE group_call(Group, const char*, Arguments...) {}
};
#else
template <std::size_t N>
class group_call {
 public:
  template <class Group, class... Arguments>
  group_call([[maybe_unused]] Group group, const char* signature, Arguments... arguments) {
    std::uint32_t mask = 0;
    if constexpr (!std::is_same_v<Group, block>) mask = group.mask();
    call_ = {signature, mask, N, arguments_, nullptr};
    std::size_t i = 0;
    ((arguments_[i++] = argument(arguments)), ...);
    if constexpr (std::is_same_v<Group, thread>) {
      runtime::cpu_check_call(call_);
      call_.signature = nullptr;  // nobody to agree with
    } else {
      runtime::cpu_enter_call(call_);
    }
  }
  ~group_call() {
    if (call_.signature != nullptr) runtime::cpu_leave_call(call_);
  }
  group_call(const group_call&) = delete;
  group_call& operator=(const group_call&) = delete;

 private:
  using kind = runtime::cpu_argument_kind;
  static runtime::cpu_argument argument(memory_of_all memory) {
    return {kind::address, reinterpret_cast<std::uintptr_t>(memory.begin), memory.nbytes != 0};
  }
  static runtime::cpu_argument argument(const char* text) { return {kind::text, reinterpret_cast<std::uintptr_t>(text), true}; }
  static runtime::cpu_argument argument(const void* address) {
    return {kind::address, reinterpret_cast<std::uintptr_t>(address), false};
  }
  template <class T>
  requires(std::is_integral_v<T> || std::is_enum_v<T>) static runtime::cpu_argument argument(T number) {
    if constexpr (std::is_enum_v<T>) {
      return argument(static_cast<std::underlying_type_t<T>>(number));
    } else {
      return {std::is_signed_v<T> ? kind::signed_number : kind::unsigned_number, detail::extend(number), false};
    }
  }

  runtime::cpu_argument arguments_[N];
  runtime::cpu_call call_;
};
template <class Group, class... Arguments>
group_call(Group, const char*, Arguments...) -> group_call<sizeof...(Arguments)>;
#endif

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
