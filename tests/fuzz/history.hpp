// SPDX-License-Identifier: Apache-2.0
// From calls and what came of them: who had which file open when, who shared what was cached, and what was changed.
#pragma once
#include <map>

#include "fuzz/bytes.hpp"
#include "fuzz/interpreter.hpp"
#include "fuzz/names.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace fuzz {

constexpr unsigned host_actor = 1000, peer_actor = 1001;

// No frame, or it was not read in.
inline bool no_page(std::int64_t value) { return value == -ENOMEM || value == -EIO; }

// A call that was made.
struct event {
  call made;  // of open_all, and close_all, one for each file
  unsigned round = 0, actor = 0;
  device_result got{};
  std::vector<std::byte> bytes = {};  // all the room it had

  bool by_process() const { return actor >= host_actor; }
  bool was_made() const { return got.value != skipped; }
  std::string text(bool names_mount = true) const {
    const std::string who = actor == host_actor   ? "this process"
                            : actor == peer_actor ? "the second process"
                                                  : numbered("group ", actor);
    return "round " + std::to_string(round) + " " + who + ": " + to_text(made, names_mount) + " gave " + std::to_string(got.value);
  }
};

// An open that went well, and until when it may have been open.
struct opened_file {
  unsigned mount = 0, actor = 0;
  std::string spelling = {};
  int flags = 0;
  std::uint64_t inode = 0;
  std::uint64_t begin = 0, end = 0, close_begin = never, close_end = never;
  domain by = 0;
  domain writers = 0;          // of those who may share what they write with it
  bool coherent = false;       // shares what is written
  bool version = false;        // what of the file was there as it was opened, or -ESTALE
  std::uint64_t baseline = 0;  // what had been flushed before is seen

  bool once() const { return (flags & O_GWRONCE) != 0; }
  bool writes() const { return once() || (flags & O_ACCMODE) != O_RDONLY; }
  bool reads() const { return !once() && (flags & O_ACCMODE) != O_WRONLY; }
};

inline bool is_at_or_above(const std::string& directory, const std::string& path) {
  return path == directory || name_tree::is_within(path, directory);
}

class history {
 public:
  void add_file(std::uint64_t inode, std::vector<std::byte> bytes) { files_[inode].base = std::move(bytes); }
  void add(event e) { events_.push_back(std::move(e)); }

  // After events were added.
  void work_out() {
    opens_.clear();
    handle_of_.assign(events_.size(), none);
    for (auto& [inode, file] : files_) file.changes.clear();
    follow_handles();
    find_domains();
    note_changes();
  }

  const std::vector<event>& events() const { return events_; }
  // The open whose handle the i-th event used, or nullptr.
  const opened_file* handle(std::size_t i) const { return handle_of_[i] == none ? nullptr : &opens_[handle_of_[i]]; }
  const std::vector<opened_file>& opens() const { return opens_; }
  const std::map<std::uint64_t, file_history>& files() const { return files_; }
  file_history& file(std::uint64_t inode) { return files_[inode]; }

 private:
  static constexpr std::size_t none = ~std::size_t{0};

  void follow_handles() {
    std::map<std::pair<unsigned, unsigned>, std::size_t> now;  // [actor, handle]
    for (std::size_t i = 0; i < events_.size(); ++i) {
      const event& e = events_[i];
      if (e.by_process() || !e.was_made()) continue;
      const std::pair key{e.actor, e.made.handle};
      if (is_open(e.made.what)) {
        if (e.got.value != 0) continue;
        now[key] = handle_of_[i] = opens_.size();
        opens_.push_back({.mount = e.made.mount,
                          .actor = e.actor,
                          .spelling = e.made.path,
                          .flags = e.made.flags,
                          .inode = e.got.inode,
                          .begin = e.got.begin,
                          .end = e.got.end});
      } else if (!names_paths(e.made.what)) {
        const auto at = now.find(key);
        if (at == now.end()) continue;
        handle_of_[i] = at->second;
        if (!is_close(e.made.what)) continue;
        opens_[at->second].close_begin = e.got.begin;
        opens_[at->second].close_end = e.got.end;
        now.erase(at);
      }
    }
  }

  // A chain: opens of one file in one mount, in one mode, that may have held it one after another without a gap.
  void find_domains() {
    std::map<std::tuple<unsigned, std::uint64_t, bool>, std::vector<std::size_t>> of_file;
    for (std::size_t i = 0; i < opens_.size(); ++i) of_file[{opens_[i].mount, opens_[i].inode, opens_[i].once()}].push_back(i);
    domain next = host_domain + 1;
    for (auto& [key, which] : of_file) {
      std::sort(which.begin(), which.end(), [&](std::size_t a, std::size_t b) { return opens_[a].begin < opens_[b].begin; });
      for (std::size_t first = 0; first < which.size();) {
        std::size_t end = first;
        std::uint64_t held_until = 0;
        while (end < which.size() && (end == first || opens_[which[end]].begin <= held_until)) {
          held_until = std::max(held_until, opens_[which[end++]].close_end);
        }
        name_chain({which.begin() + std::ptrdiff_t(first), which.begin() + std::ptrdiff_t(end)}, next);
        first = end;
      }
    }
  }

  // Who opens for writing shares what is written, and who opens while it surely is open so. Who opens for reading while it surely
  // is not has a version.
  void name_chain(const std::vector<std::size_t>& chain, domain& next) {
    const domain common = next++;
    for (std::size_t n = 0; n < chain.size(); ++n) {
      opened_file& o = opens_[chain[n]];
      o.baseline = opens_[chain.front()].begin;
      o.coherent = o.writes();
      o.version = !o.coherent;
      for (std::size_t k = 0; k < chain.size(); ++k) {
        const opened_file& other = opens_[chain[k]];
        if (k == n || other.begin >= o.end || other.close_end <= o.begin) continue;
        o.coherent |= k < n && other.coherent && other.end < o.begin && other.close_begin > o.end;
        o.version &= !other.writes() && (k > n || other.version);
      }
      o.by = o.coherent ? common : next++;
      o.writers = common;
    }
  }

  void note_changes() {
    for (std::size_t i = 0; i < events_.size(); ++i) {
      const event& e = events_[i];
      const opened_file* o = handle(i);
      const bool may_grow = e.made.what == verb::write || e.made.what == verb::scatter;
      const bool writes = may_grow || e.made.what == verb::store || e.made.what == verb::poke || e.made.what == verb::store_at;
      const bool in_part = !e.by_process() && writes && no_page(e.got.value);  // some pages were not to be had
      if (!e.was_made() || (e.got.value < 0 && !in_part)) continue;
      const auto value = static_cast<std::uint64_t>(e.got.value);
      change c{.id = e.made.id, .begin = e.got.begin, .end = e.got.end, .text = e.text()};
      if (e.by_process()) {
        if (e.made.what != verb::write) continue;
        c.first = c.origin = e.made.begin;
        c.last = c.first + e.made.nbytes;
        c.flushed = c.end;
        files_[e.got.inode].changes.push_back(c);
        continue;
      }
      if (o == nullptr) continue;
      c.by = o->by;
      c.mount = o->once() ? no_mount : o->mount;
      if (is_open(e.made.what)) {
        if ((e.made.flags & O_TRUNC) == 0) continue;
        c.cuts = true;
      } else if (e.made.what == verb::cut) {
        c.cuts = true;
        c.first = e.made.begin;
      } else if (appends(e.made.what)) {
        c.first = c.origin = value;
        c.last = value + e.made.nbytes;
        c.appends = true;
      } else if (writes) {
        c.first = c.origin = e.made.begin;
        c.last = c.first + (in_part ? 0 : value);
        c.grows = may_grow;
        c.certain = c.grows || !o->once();  // of a page that was not read in, a zero may be none
      } else {
        continue;
      }
      c.flushed = c.cuts ? c.end : flushed_by(*o, c.end);
      auto& changes = files_[o->inode].changes;
      if (c.first != c.last) changes.push_back(c);
      if (!in_part && (e.made.what != verb::write || value == e.made.nbytes)) continue;
      c.certain = false;
      c.first = c.last;
      c.last = e.made.begin + e.made.nbytes;
      changes.push_back(c);
    }
  }

  // When a sync or close that began after `end` was over.
  std::uint64_t flushed_by(const opened_file& writer, std::uint64_t end) const {
    std::uint64_t first = never;
    for (std::size_t i = 0; i < events_.size(); ++i) {
      const event& e = events_[i];
      const opened_file* o = handle(i);
      if (o == nullptr || o->by != writer.by || !o->writes() || e.got.begin < end) continue;
      if (e.got.value != 0 && !no_page(e.got.value)) continue;  // a write that got no page is told; all others are flushed
      if (is_close(e.made.what) || e.made.what == verb::sync) first = std::min(first, e.got.end);
    }
    return first;
  }

  std::vector<event> events_;
  std::vector<opened_file> opens_;
  std::vector<std::size_t> handle_of_;
  std::map<std::uint64_t, file_history> files_;
};

}  // namespace fuzz
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
