// SPDX-License-Identifier: Apache-2.0
// Calls that all lanes of a group make together, with equal arguments: compares them, and says how they differ.
#include <bit>
#include <charconv>
#include <string>
#include <string_view>

#include "cpu_devices.hpp"
#include "cpu_scheduler.hpp"
#include "sanitizer.hpp"

namespace gpufs::simt::runtime {
namespace {

constexpr std::uint64_t longest_text = 4096;
constexpr unsigned max_listed = 8;  // warps

// The lane's call, if it is one of the group that the lane waits for.
GPUFS_NO_TSAN const cpu_call* call_of(const lane& l) { return l.call != nullptr && l.call->mask == l.mask ? l.call : nullptr; }

GPUFS_NO_TSAN bool waits_with(const lane& self, const lane& other) { return other.state == self.state && other.mask == self.mask; }

// Copies the bytes of a text that lie in one page, at most 64: the next page may not exist. Returns how many; 0: they are not
// readable.
GPUFS_NO_TSAN std::uint64_t read_text(std::uint64_t at, char (&out)[64]) {
  const std::uint64_t to_page_end = 4096 - at % 4096;
  const std::uint64_t nbytes = to_page_end < 64 ? to_page_end : 64;
  return cpu_copy_from_host(out, reinterpret_cast<const void*>(at), nbytes) == 0 ? nbytes : 0;
}

GPUFS_NO_TSAN bool equal_texts(std::uint64_t a, std::uint64_t b) {
  if (a == b) return true;
  if (a == 0 || b == 0) return false;
  for (std::uint64_t done = 0; done < longest_text;) {
    char of_a[64], of_b[64];
    const std::uint64_t na = read_text(a + done, of_a), nb = read_text(b + done, of_b);
    const std::uint64_t both = na < nb ? na : nb;
    if (both == 0) return false;
    for (std::uint64_t i = 0; i < both; ++i) {
      if (of_a[i] != of_b[i]) return false;
      if (of_a[i] == '\0') return true;
    }
    done += both;
  }
  return true;
}

// The number of the first argument that differs; nargs: none does.
GPUFS_NO_TSAN unsigned first_difference(const cpu_call& a, const cpu_call& b) {
  for (unsigned i = 0; i < a.nargs; ++i) {
    const cpu_argument &one = a.arguments[i], &other = b.arguments[i];
    const bool equal = one.kind == cpu_argument_kind::text ? equal_texts(one.value, other.value) : one.value == other.value;
    if (!equal) return i;
  }
  return a.nargs;
}

GPUFS_NO_TSAN bool is_same_function(const cpu_call& a, const cpu_call& b) {
  if (a.nargs != b.nargs) return false;
  const char *p = a.signature, *q = b.signature;
  while (p != q && *p == *q && *p != '\0') ++p, ++q;
  return p == q || *p == *q;
}

GPUFS_NO_TSAN bool agree(const cpu_call* a, const cpu_call* b) {
  if (a == nullptr || b == nullptr) return a == b;
  return (a->agreed && b->agreed) || (is_same_function(*a, *b) && first_difference(*a, *b) == a->nargs);
}

std::string name_in(std::string_view signature) { return "gpufs::" + std::string(signature.substr(0, signature.find('('))); }
std::string name_of(const cpu_call* call) { return call == nullptr ? "no call" : name_in(call->signature); }

// ThreadSanitizer must not look: the lane may still be running.
GPUFS_NO_TSAN const char* signature_of(const lane& l) {
  const cpu_call* call = call_of(l);
  return call == nullptr ? nullptr : call->signature;
}

std::string argument_name(const cpu_call& call, unsigned i) {
  std::string_view rest = call.signature;
  rest.remove_prefix(rest.find('(') + 1);
  for (; i > 0; --i) rest.remove_prefix(rest.find(", ") + 2);
  return std::string(rest.substr(0, rest.find_first_of(",)")));
}

std::string value_text(const cpu_argument& argument) {
  switch (argument.kind) {
    case cpu_argument_kind::signed_number:
      return std::to_string(static_cast<std::int64_t>(argument.value));
    case cpu_argument_kind::unsigned_number:
      return std::to_string(argument.value);
    case cpu_argument_kind::text:
      break;
    default: {
      char digits[16];
      const auto end = std::to_chars(digits, digits + sizeof digits, argument.value, 16).ptr;
      return argument.value == 0 ? "null" : "0x" + std::string(digits, end);
    }
  }
  if (argument.value == 0) return "null";
  std::string text = "\"";
  for (char bytes[64];;) {
    const std::uint64_t n = read_text(argument.value + text.size() - 1, bytes);
    if (n == 0) return text.size() == 1 ? "not readable" : text;
    for (std::uint64_t i = 0; i < n; ++i) {
      if (bytes[i] == '\0') return text.append("\"");
      text.push_back(bytes[i] >= ' ' && bytes[i] <= '~' ? bytes[i] : '?');
    }
    if (text.size() > 200) return text.append("...");
  }
}

// The lanes that wait with `self` and do not agree with `first`: "lanes {5, 7}", and of a block "warp 1 lanes {5, 7}, warp 2 lanes
// {0 - 31}".
std::string others(const lane& self, const lane& first, lane* const* lanes, unsigned count) {
  std::string text;
  unsigned nwarps = 0;
  for (unsigned w = 0; w < count / warp_lanes; ++w) {
    std::uint32_t mask = 0;
    for (unsigned i = 0; i < warp_lanes; ++i) {
      const lane& l = *lanes[w * warp_lanes + i];
      if (waits_with(self, l) && !agree(call_of(first), call_of(l))) mask |= 1u << i;
    }
    if (mask == 0 || nwarps++ >= max_listed) continue;
    if (!text.empty()) text.append(", ");
    if (count > warp_lanes) text.append("warp ").append(std::to_string(w)).append(" ");
    text.append("lanes {").append(lane_list(mask)).append("}");
  }
  return nwarps > max_listed ? text.append(" and in ").append(std::to_string(nwarps - max_listed)).append(" more warps") : text;
}

}  // namespace

GPUFS_NO_TSAN unsigned argument_on_stack(const lane& l, const cpu_call& call) {
  for (unsigned i = 0; i < call.nargs; ++i) {
    const cpu_argument& argument = call.arguments[i];
    // Only the beginning: a range that is too long may reach anywhere, and the call itself reports that.
    const bool there = argument.value - l.stack_begin < l.cpu_lane::stack_nbytes;
    if (argument.is_of_all && there) return i;
  }
  return call.nargs;
}

std::string describe_own_memory(const lane& l, const cpu_call& call, unsigned argument) {
  return lane_name(l) + " calls " + name_of(&call) + " with an address on its own stack (" + argument_name(call, argument) +
         "), which the other lanes of its group cannot use on CUDA: all lanes give the same memory, global or shared";
}

GPUFS_NO_TSAN unsigned argument_of_other_device(const lane& l, const cpu_call& call) {
  for (unsigned i = 0; i < call.nargs; ++i) {
    const cpu_argument& argument = call.arguments[i];
    const bool is_address = argument.kind == cpu_argument_kind::address || argument.kind == cpu_argument_kind::text;
    if (is_address && cpu_other_device(reinterpret_cast<const void*>(argument.value), l.device) >= 0) return i;
  }
  return call.nargs;
}

std::string describe_other_device(const lane& l, const cpu_call& call, unsigned argument) {
  const int owner = cpu_other_device(reinterpret_cast<const void*>(call.arguments[argument].value), l.device);
  return lane_name(l) + " runs on device " + std::to_string(l.device) + " and calls " + name_of(&call) + " with what is device " +
         std::to_string(owner) + "'s (" + argument_name(call, argument) + ")";
}

GPUFS_NO_TSAN bool agree_on_call(const lane& self, lane* const* lanes, unsigned count) {
  const cpu_call* mine = call_of(self);
  for (unsigned i = 0; i < count; ++i) {
    if (waits_with(self, *lanes[i]) && !agree(mine, call_of(*lanes[i]))) return false;
  }
  if (mine == nullptr || mine->agreed) return true;
  for (unsigned i = 0; i < count; ++i) {
    if (waits_with(self, *lanes[i])) call_of(*lanes[i])->agreed = true;
  }
  return true;
}

std::string describe_calls(const lane& self, lane* const* lanes, unsigned count) {
  // All lanes have come here: what they wrote before is visible, and so are their arguments.
  sanitizer::acquire(self.mask == 0 ? static_cast<const void*>(&self.home->nexited) : lanes[std::countr_zero(self.mask)]);
  unsigned i = 0;
  while (!waits_with(self, *lanes[i])) ++i;  // self does
  const lane& first = *lanes[i];
  while (i + 1 < count && (!waits_with(self, *lanes[i]) || agree(call_of(first), call_of(*lanes[i])))) ++i;
  const lane& other = *lanes[i];
  const cpu_call *a = call_of(first), *b = call_of(other);
  const std::string of_others = others(self, first, lanes, count);
  if (a == nullptr || b == nullptr || !is_same_function(*a, *b)) {
    return "lanes of one group make different calls: " + name_of(a) + " by " + lane_name(first) + ", " + name_of(b) + " by " +
           short_name(other, first) + "; unlike the first: " + of_others;
  }
  const unsigned at = first_difference(*a, *b);
  return "lanes of one group call " + name_of(a) + " with different arguments: " + argument_name(*a, at) + " is " +
         value_text(a->arguments[at]) + " by " + lane_name(first) + ", " + value_text(b->arguments[at]) + " by " +
         short_name(other, first) + "; unlike the first: " + of_others;
}

std::string call_text(const lane& l) {
  const char* signature = signature_of(l);
  return signature == nullptr ? std::string() : " (" + name_in(signature) + ")";
}

}  // namespace gpufs::simt::runtime
