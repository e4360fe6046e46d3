// SPDX-License-Identifier: Apache-2.0
// Whether what came of a round's calls is as promised.
#pragma once
#include "fuzz/name_checks.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace fuzz {

class checks {
 public:
  checks(const program& p, std::string root) : program_(p), root_(std::move(root)) {}

  void begin() {
    for (const auto& [path, n] : names_.begin().nodes) {
      if (n.kind == node_kind::file) past_.add_file(n.inode, bytes_of(path));
    }
  }

  // What is wrong, or nothing. `now`: after all of them. all_closed: nothing is open any more.
  std::string after_round(std::vector<event> made, std::uint64_t now, bool all_closed) {
    all_closed_ = all_closed;
    const std::size_t first = past_.events().size();
    for (event& e : made) past_.add(std::move(e));
    past_.work_out();
    for (std::size_t i = first; i < past_.events().size(); ++i) {
      const std::string wrong = check(i);
      if (!wrong.empty()) return past_.events()[i].text(names_mount()) + ": " + wrong;
    }
    for (const auto& [inode, file] : past_.files()) {
      const std::string wrong = file.wrong_appends();
      if (!wrong.empty()) return wrong;
    }
    std::string wrong = names_.wrong_since(first);
    if (wrong.empty()) wrong = check_files(now);
    if (wrong.empty()) wrong = check_counts();
    return wrong;
  }
  const std::vector<event>& events() const { return past_.events(); }
  std::uint64_t searches_given_up() const { return names_.given_up(); }
  // Whether a call through pointers has told of an error.
  bool accesses_failed() const {
    return std::any_of(past_.events().begin(), past_.events().end(),
                       [](const event& e) { return by_pointer(e.made.what) && e.was_made() && e.got.value < 0; });
  }

 private:
  bool names_mount() const { return program_.mounts.size() > 1; }

  std::vector<std::byte> bytes_of(const std::string& path) const {
    std::ifstream in(root_ + "/" + path, std::ios::binary);
    const std::string all((std::istreambuf_iterator<char>(in)), {});
    const auto* first = reinterpret_cast<const std::byte*>(all.data());
    return {first, first + all.size()};
  }

  static std::string not_what(const std::string& expected) { return "not " + expected; }

  std::string check(std::size_t i) {
    const event& e = past_.events()[i];
    if (!e.was_made() || e.by_process()) return "";
    if (e.got.end <= e.got.begin) return "the clock stood still";
    const verb what = e.made.what;
    if (is_open(what)) return check_open(e);
    if (what == verb::list) return check_list(e);
    if (what == verb::stat) return check_stat(e);
    if (names_paths(what)) return "";
    const opened_file* o = past_.handle(i);
    if (o == nullptr) return "the handle was not open, by what came before";
    const bool maps = by_pointer(what) && what != verb::load;
    const bool writes =
        (takes_bytes(what) && what != verb::scratch) || what == verb::cut || what == verb::sync || what == verb::add;
    const bool reads =
        what == verb::read || what == verb::look || what == verb::load || what == verb::gather || what == verb::ahead || maps;
    if ((writes && !o->writes()) || (reads && !o->reads())) {
      const bool also = (what == verb::store && e.got.value == -ENXIO) || (maps && o->reads() && e.got.value == -EACCES);
      return e.got.value == -EBADF || also ? "" : not_what("-EBADF");
    }
    const bool failing = program_.mounts[o->mount].store == store_choice::failing;
    if (program_.may_starve && e.got.value == -ENOMEM && wants_frames(what)) return "";
    if (failing && e.got.value == -EIO && (wants_frames(what) || what == verb::load)) return "";
    switch (what) {
      case verb::close:
      case verb::close_all:
      case verb::sync:
        if (no_page(e.got.value) && lost_by_pointer(e, *o)) return "";
        return e.got.value == 0 ? "" : not_what("0");
      case verb::cut:
      case verb::ahead:
        return e.got.value == 0 ? "" : not_what("0");
      case verb::write:
      case verb::scatter:
        if ((program_.may_starve || failing) && e.got.value > 0 && e.got.value < static_cast<std::int64_t>(e.made.nbytes))
          return "";
        return e.got.value == static_cast<std::int64_t>(e.made.nbytes) ? "" : not_what("all bytes");
      case verb::append:
      case verb::append_each:
        return e.got.value >= 0 ? "" : not_what("an offset");
      case verb::status:
        return check_status(e, *o);
      case verb::read:
      case verb::look:
      case verb::store:
      case verb::load:
      case verb::poke:
      case verb::store_at:
        return check_bytes(e, *o);
      case verb::gather:
        return check_rows(e, *o);
      case verb::scratch:
        return check_scratch(e, *o);
      case verb::add:
        return e.got.value >= 0 ? "" : not_what("a count");
      default:
        return "";
    }
  }

  // Where all frames are pinned. Loads go past the cache then.
  static bool wants_frames(verb v) {
    return v == verb::read || v == verb::look || v == verb::write || v == verb::store || is_batch(v) ||
           (by_pointer(v) && v != verb::load);
  }

  // Whether a write through a pointer to the file got no page, which is told once more by who syncs or closes it.
  bool lost_by_pointer(const event& e, const opened_file& o) const {
    for (std::size_t i = 0; i < past_.events().size(); ++i) {
      const event& other = past_.events()[i];
      const opened_file* theirs = past_.handle(i);
      const bool may_lose = other.made.what == verb::poke || other.made.what == verb::add || other.made.what == verb::store_at;
      if (!may_lose || other.got.value != e.got.value) continue;
      if (theirs != nullptr && theirs->inode == o.inode && theirs->mount == o.mount && other.got.begin < e.got.end) return true;
    }
    return false;
  }

  static std::string check_open(const event& e) {
    if (const int error = name_checks::refused(e.made.flags); error != 0)
      return e.got.value == error ? "" : not_what(std::to_string(error));
    if (e.got.value == 0 && !S_ISREG(e.got.mode)) return "it is no file";
    return "";
  }

  static look look_of(const event& e, const opened_file& o) {
    look who{o.by, e.got.begin, e.got.end, o.baseline};
    if (o.version) {
      who.mount = o.mount;
      who.version = o.end;
    }
    return who;
  }

  // Who opened a file for reading alone has a version of it, which may be gone.
  bool may_be_stale(const event& e, const opened_file& o) {
    if (o.coherent) return false;
    const auto& changes = past_.file(o.inode).changes;
    const bool changed = std::any_of(changes.begin(), changes.end(), [&](const change& c) {
      return c.begin < e.got.end && (c.flushed > o.baseline || c.end > o.baseline);
    });
    // An open for writing ends the versions of its mount, and may move mtime where the file is in memory.
    const bool opened = std::any_of(past_.opens().begin(), past_.opens().end(), [&](const opened_file& other) {
      return other.inode == o.inode && other.writes() && other.begin < e.got.end && other.close_end > o.baseline;
    });
    return changed || opened || renamed_by_others(o, e.got.end);
  }

  // Whether others than its mount may have changed names on its path since it was opened.
  bool renamed_by_others(const opened_file& o, std::uint64_t end) const {
    return std::any_of(past_.events().begin(), past_.events().end(), [&](const event& e) {
      if (!changes_names(e.made.what) || e.got.value != 0 || (!e.by_process() && e.made.mount == o.mount)) return false;
      if (e.got.begin >= end || e.got.end <= o.baseline) return false;
      return is_at_or_above(e.made.path, o.spelling) || is_at_or_above(e.made.second, o.spelling);
    });
  }

  std::string check_status(const event& e, const opened_file& o) {
    if (e.got.value != 0) return not_what("0");
    if (e.got.inode != o.inode) return "inode " + std::to_string(e.got.inode) + ", not " + std::to_string(o.inode);
    const auto size = past_.file(o.inode).nbytes(look_of(e, o));
    return size.hold(static_cast<std::uint64_t>(e.got.nbytes)) ? "" : std::to_string(e.got.nbytes) + " bytes, not " + size.text();
  }

  std::string check_bytes(const event& e, const opened_file& o) {
    if (e.got.value == -ESTALE && may_be_stale(e, o)) return "";
    const look who = look_of(e, o);
    const auto size = past_.file(o.inode).nbytes(who);
    const auto clipped = [&](std::uint64_t n) {
      std::uint64_t most = e.made.nbytes;
      if (e.made.what == verb::look || e.made.what == verb::store) {  // one page
        const std::uint64_t page = program_.mounts[o.mount].options.page_nbytes;
        most = std::min(most, page - e.made.begin % page);
      }
      const std::uint64_t bytes = e.made.begin >= n ? 0 : std::min(most, n - e.made.begin);
      return e.made.what == verb::store_at ? bytes - bytes % (4u << e.made.flags) : bytes;  // whole elements
    };
    const std::uint64_t low = clipped(size.low), high = clipped(size.high);
    if (e.made.what != verb::read && e.got.value == -ENXIO) return low == 0 ? "" : not_what("bytes");
    if (e.got.value < 0) return not_what("an error");
    const auto n = static_cast<std::uint64_t>(e.got.value);
    if (n < low || n > high) return not_what(std::to_string(low) + " to " + std::to_string(high));
    return takes_bytes(e.made.what) ? "" : wrong_byte(o.inode, who, e.made.begin, std::span(e.bytes).first(n));
  }

  // A row is whole and right, or it is zeros, and an error says so of the first one.
  std::string check_rows(const event& e, const opened_file& o) {
    const batch_of rows(e.made);
    const look who = look_of(e, o);
    const auto size = past_.file(o.inode).nbytes(who);
    const std::int64_t error = e.got.value < 0 ? e.got.value : 0;
    const bool is_stale = error != 0 && may_be_stale(e, o);
    if (error != 0 && error != -ENXIO && !(error == -ESTALE && is_stale)) return not_what("an error");
    // Of later places that failed otherwise the answer says nothing.
    const bool failing = program_.mounts[o.mount].store == store_choice::failing;
    const bool any_may_be_lost = is_stale || (error != 0 && (failing || program_.may_starve));
    for (std::uint64_t place = 0; place < rows.nplaces(); ++place) {
      const std::uint64_t at = rows.offset(place), end = at + rows.row_nbytes;
      const auto failed = static_cast<std::uint64_t>(e.got.nbytes);
      const bool may_fail = end > size.low || any_may_be_lost;
      if ((error == 0 || place < failed) && end > size.high) return "row at " + std::to_string(at) + " is beyond the end";
      if (error == -ENXIO && place == failed && end <= size.low) return "row at " + std::to_string(at) + " is in the file";
      const auto bytes = std::span(e.bytes).subspan(place * rows.row_nbytes, rows.row_nbytes);
      const bool is_zeros = std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
      if (error != 0 && place == failed && !is_zeros) return "the row that failed is not zeros";
      if (error != 0 && may_fail && is_zeros) continue;
      const std::string wrong = wrong_byte(o.inode, who, at, bytes);
      if (!wrong.empty()) return "place " + std::to_string(place) + ": " + wrong;
    }
    return "";
  }

  // Nothing is written, and what the group has written for itself it reads.
  std::string check_scratch(const event& e, const opened_file& o) {
    if (e.got.value == -ESTALE && may_be_stale(e, o)) return "";
    if (e.got.value == -EBUSY) return others_scratch(e, o) ? "" : not_what("busy: nobody else has private pages of it");
    if (e.got.value == -ENXIO) {
      return past_.file(o.inode).nbytes(look_of(e, o)).low < e.made.begin ? "" : not_what("0");
    }
    return e.got.value == 0 ? "" : not_what("0");
  }

  // Whether another group has pointers to private pages of this file meanwhile, by the same mount.
  bool others_scratch(const event& e, const opened_file& o) const {
    for (std::size_t i = 0; i < past_.events().size(); ++i) {
      const event& other = past_.events()[i];
      const opened_file* theirs = past_.handle(i);
      if (other.made.what != verb::scratch || !other.was_made() || other.actor == e.actor || theirs == nullptr) continue;
      if (theirs->inode == o.inode && theirs->mount == o.mount && other.got.begin < e.got.end && other.got.end > e.got.begin)
        return true;
    }
    return false;
  }

  // Who adds 1 to a word gets what all before have made of it.
  std::string check_counts() const {
    std::map<std::uint64_t, std::vector<const event*>> words;
    for (const event& e : past_.events()) {
      if (e.made.what == verb::add && e.was_made() && e.got.value >= 0) words[e.made.begin].push_back(&e);
    }
    const std::vector<std::byte> bytes = words.empty() ? std::vector<std::byte>() : bytes_of(counters_name);
    for (auto& [word, adds] : words) {
      std::sort(adds.begin(), adds.end(), [](const event* a, const event* b) { return a->got.value < b->got.value; });
      for (std::size_t i = 0; i < adds.size(); ++i) {
        if (adds[i]->got.value != static_cast<std::int64_t>(i)) return adds[i]->text(names_mount()) + ": not " + std::to_string(i);
        for (std::size_t k = i + 1; k < adds.size(); ++k) {
          if (adds[k]->got.end < adds[i]->got.begin) return adds[i]->text(names_mount()) + ": another was before it, and gave more";
        }
      }
      std::uint64_t count = 0;
      std::memcpy(&count, bytes.data() + word, sizeof count);
      if (count > adds.size()) return "a word has been counted to " + std::to_string(count);
      if (all_closed_ && count != adds.size()) {
        return "a word has been counted to " + std::to_string(count) + ", not " + std::to_string(adds.size());
      }
    }
    return "";
  }

  std::string wrong_byte(std::uint64_t inode, const look& who, std::uint64_t begin, std::span<const std::byte> bytes) {
    const file_history& file = past_.file(inode);
    const std::size_t at = file.first_wrong(who, begin, bytes);
    if (at == bytes.size()) return "";
    const std::uint64_t x = begin + at;
    std::ostringstream text;
    text << "byte " << x << " is " << static_cast<int>(bytes[at]) << ", looked at " << who.begin << " to " << who.end
         << ", opened by " << who.opened << "; it was " << (x < file.base.size() ? static_cast<int>(file.base[x]) : 0)
         << file.history(x);
    return text.str();
  }

  std::string check_stat(const event& e) {
    if (e.got.value != 0 || !S_ISREG(e.got.mode)) return "";
    // As the host has it; or where somebody in this mount writes it, as they have it.
    look who{host_domain, e.got.begin, e.got.end, e.got.begin};
    std::set<domain> writers;
    bool coherent = false;
    for (const opened_file& o : past_.opens()) {
      if (o.inode != e.got.inode || !o.writes()) continue;
      writers.insert(o.by);
      if (o.mount != e.made.mount || o.once()) continue;
      if (o.end < e.got.begin && o.close_begin > e.got.end) {
        coherent = true;
        who = {o.by, e.got.begin, e.got.end, o.baseline};
      }
    }
    auto size = past_.file(e.got.inode).nbytes(who);
    if (!coherent && writers.size() > 1) size.low = 0;
    for (const opened_file& o : past_.opens()) {
      if (o.inode != e.got.inode || o.mount != e.made.mount || o.version) continue;
      if (o.begin >= e.got.end || o.close_end <= e.got.begin) continue;
      const auto theirs = past_.file(o.inode).nbytes({o.writers, e.got.begin, e.got.end, o.baseline});
      size.high = std::max(size.high, theirs.high);
      // Who reads may be the last to hold what was opened for writing. With O_GWRONCE, it ends where the farther of the two says.
      if (!coherent && !o.once()) size.low = std::min(size.low, theirs.low);
    }
    return size.hold(static_cast<std::uint64_t>(e.got.nbytes)) ? "" : std::to_string(e.got.nbytes) + " bytes, not " + size.text();
  }

  // A name that was there all the time is listed once; none that never was there is.
  std::string check_list(const event& e) const {
    if (e.got.value < 0) return "";  // name_checks says whether it may be
    std::map<std::string, int> listed;
    for (std::int64_t at = 0; at < e.got.value;) {
      directory_entry entry;
      std::memcpy(&entry, e.bytes.data() + at, sizeof entry);
      const std::string name(reinterpret_cast<const char*>(e.bytes.data() + at + sizeof entry), entry.name_nbytes);
      if (entry.entry_nbytes == 0) return "an entry of no bytes";
      at += entry.entry_nbytes;
      ++listed[name];
    }
    std::set<std::string> moved;  // that somebody may have changed in this round
    bool directory_moved = false;
    for (const event& other : past_.events()) {
      if (other.round != e.round || !other.was_made() || other.got.value != 0) continue;
      const bool creates = is_open(other.made.what) && (other.made.flags & O_CREAT) != 0;
      if (!changes_names(other.made.what) && !creates) continue;
      for (const std::string& path : {other.made.path, other.made.second}) {
        if (path.empty()) continue;
        if (!e.made.path.empty() && is_at_or_above(path, e.made.path)) directory_moved = true;
        if (name_tree::parent(path) == e.made.path) moved.insert(path);
      }
    }
    if (directory_moved) return "";
    const std::string prefix = e.made.path.empty() ? "" : e.made.path + "/";
    for (const auto& [path, n] : names_.now().nodes) {
      if (name_tree::parent(path) != e.made.path || moved.contains(path)) continue;
      const std::string name = path.substr(prefix.size());
      if (listed[name] != 1) return "'" + name + "' is listed " + std::to_string(listed[name]) + " times";
    }
    for (const auto& [name, count] : listed) {
      if (count != 0 && names_.now().find(prefix + name) == nullptr && !moved.contains(prefix + name))
        return "no '" + name + "' was there";
    }
    return "";
  }

  // What is in the files now.
  std::string check_files(std::uint64_t now) {
    for (const auto& [path, n] : names_.now().nodes) {
      if (n.kind != node_kind::file || path == counters_name) continue;
      const look who{host_domain, now, now + 1, now};
      const auto bytes = bytes_of(path);
      const auto size = past_.file(n.inode).nbytes(who);
      if (!size.hold(bytes.size())) return "'" + path + "' has " + std::to_string(bytes.size()) + " bytes, not " + size.text();
      const std::string wrong = wrong_byte(n.inode, who, 0, bytes);
      if (!wrong.empty()) return "'" + path + "': " + wrong;
    }
    return "";
  }

  const program& program_;
  const std::string root_;
  history past_;
  name_checks names_{program_, past_, root_};
  bool all_closed_ = false;
};

}  // namespace fuzz
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
