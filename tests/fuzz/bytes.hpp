// SPDX-License-Identifier: Apache-2.0
// What a file may have at a place and time. Calls that overlap come in any order, byte by byte; what ended before another began
// came before it. Who shares what is cached is a domain: what one has written, others of its domain see at once, all others from
// its flush on, if they opened the file later. It knows nothing of gpufs.
#pragma once
#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "fuzz/program.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace fuzz {

constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

using domain = std::uint64_t;
constexpr domain host_domain = 0;  // processes: the file itself

// Bytes that were written, or all from `first` on that became zeros, as the file was cut there.
struct change {
  domain by = host_domain;
  unsigned mount = ~0u;                   // whose versions end by it, if any
  std::uint64_t first = 0, last = never;  // [first, last)
  std::uint64_t id = 0, origin = 0;
  std::uint64_t begin = 0, end = 0;  // when
  std::uint64_t flushed = never;     // when the file had it at the latest
  bool cuts = false;
  bool appends = false;
  bool grows = true;    // else what lies beyond the file's end is lost
  bool certain = true;  // else it may have been none: a store of what seemed to be there
  std::string text = {};

  std::byte byte(std::uint64_t x) const { return cuts ? std::byte{0} : content_byte(id, x - origin); }
};

// Who looks, and when.
struct look {
  domain by = host_domain;
  std::uint64_t begin = 0, end = 0;
  std::uint64_t opened = 0;       // what was flushed before this is seen
  unsigned mount = ~0u;           // whose version it is, if it is one: later changes by this mount are not in it
  std::uint64_t version = never;  // when it was that

  bool cannot_see(const struct change& c) const;
};

inline bool look::cannot_see(const change& c) const { return c.begin >= end || (c.mount == mount && c.begin > version); }

class file_history {
 public:
  std::vector<std::byte> base;
  std::vector<change> changes;

  struct bounds {
    std::uint64_t low = never, high = 0;
    bool hold(std::uint64_t n) const { return n >= low && n <= high; }
    std::string text() const { return std::to_string(low) + " to " + std::to_string(high); }
  };
  // How long the file may be.
  bounds nbytes(const look& who) const {
    bounds all;
    bool may_be_first = true;
    for (const change& c : changes) may_be_first &= !(c.cuts && !who.cannot_see(c) && seen_by(who, c) < who.begin);
    if (may_be_first) add_size(all, who, nullptr);
    for (const change& c : changes) {
      if (!c.cuts || who.cannot_see(c)) continue;
      const bool superseded = std::any_of(changes.begin(), changes.end(), [&](const change& later) {
        return later.cuts && comes_before(c, later) && seen_by(who, later) < who.begin;
      });
      if (!superseded) add_size(all, who, &c);
    }
    return all;
  }

  // The first of the bytes from x on that cannot be there, or bytes.size().
  std::size_t first_wrong(const look& who, std::uint64_t x, std::span<const std::byte> bytes) const {
    // Between two ends of changes, the same ones matter.
    std::vector<std::uint64_t> ends{x, x + bytes.size()};
    std::vector<const change*> touching;
    for (const change& c : changes) {
      if (who.cannot_see(c) || c.first >= x + bytes.size() || c.last <= x) continue;
      touching.push_back(&c);
      for (const std::uint64_t at : {c.first, c.last}) {
        if (at > x && at < x + bytes.size()) ends.push_back(at);
      }
    }
    std::sort(ends.begin(), ends.end());
    for (std::size_t i = 0; i + 1 < ends.size(); ++i) {
      std::vector<const change*> here, possible;
      for (const change* c : touching) {
        if (c->first <= ends[i] && c->last > ends[i]) here.push_back(c);
      }
      bool base_possible = true;
      for (const change* c : here) {
        base_possible &= seen_by(who, *c) >= who.begin;
        const bool superseded = std::any_of(here.begin(), here.end(), [&](const change* later) {
          return comes_before(*c, *later) && seen_by(who, *later) < who.begin;
        });
        if (!superseded) possible.push_back(c);
      }
      for (std::uint64_t at = ends[i]; at < ends[i + 1]; ++at) {
        const std::byte b = bytes[at - x];
        bool good = base_possible && b == (at < base.size() ? base[at] : std::byte{0});
        for (const change* c : possible) good |= b == c->byte(at);
        if (!good) return at - x;
      }
    }
    return bytes.size();
  }

  // Appends of one domain that overlap, or lie where the end cannot have been; or nothing.
  std::string wrong_appends() const {
    for (const change& a : changes) {
      if (!a.appends) continue;
      bool good = a.first == base.size();
      for (const change& b : changes) {
        good |= &b != &a && b.begin < a.end && (b.cuts ? b.first : b.last) == a.first;
        // A part of what others write may be there.
        const bool in_part = b.by != a.by || (!b.appends && b.end > a.begin);
        good |= in_part && b.begin < a.end && b.first < a.first && a.first <= b.last;
        if (&b == &a || !b.appends || b.by != a.by || b.last <= a.first || b.first >= a.last) continue;
        const bool cut_between = std::any_of(changes.begin(), changes.end(), [&](const change& c) {
          return c.cuts && !(comes_before(c, a) && comes_before(c, b)) && !(comes_before(a, c) && comes_before(b, c));
        });
        if (!cut_between) return "two appends overlap: " + a.text + " and " + b.text;
      }
      if (!good) return "an append begins where the file did not end: " + a.text;
    }
    return "";
  }

  std::string history(std::uint64_t x) const {
    std::ostringstream text;
    for (const change& c : changes) {
      if (c.first > x || c.last <= x) continue;
      text << "\n    " << c.text << " = " << static_cast<int>(c.byte(x)) << " at " << c.begin << " to " << c.end;
      if (c.flushed != never) text << ", flushed by " << c.flushed;
    }
    return text.str();
  }

 private:
  static std::uint64_t seen_by(const look& who, const change& c) {
    if (!c.certain) return never;
    if (who.by == c.by) return c.end;
    return c.flushed <= who.opened ? c.flushed : never;
  }
  // Of two changes of a byte, that the second one's is what remains. Between domains, the first may reach the file late; and a
  // store of the value that the page has is none, so that it takes nothing back that others have written.
  static bool comes_before(const change& a, const change& b) {
    if (a.by == b.by) return a.end < b.begin;
    return b.grows && a.flushed < b.begin;
  }

  // Where `cut` was the last one, or nobody has cut it.
  void add_size(bounds& all, const look& who, const change* cut) const {
    const std::uint64_t start = cut == nullptr ? base.size() : cut->first;
    std::uint64_t low = start, high = start;
    for (const change& c : changes) {
      if (c.cuts || who.cannot_see(c)) continue;
      // What was stored before others cut the file may come back with its bytes.
      const bool may_grow = c.grows || (cut != nullptr && cut->by != c.by);
      if (may_grow && (cut == nullptr || !comes_before(c, *cut))) high = std::max(high, c.last);
      if (c.grows && seen_by(who, c) < who.begin && (cut == nullptr || comes_before(*cut, c))) low = std::max(low, c.last);
    }
    all.low = std::min(all.low, low);
    all.high = std::max(all.high, high);
  }
};

}  // namespace fuzz
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
