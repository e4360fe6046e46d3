// SPDX-License-Identifier: Apache-2.0
// Whether there is an order of a round's calls on names in which each came out as it did.
#pragma once
#include "fuzz/history.hpp"
#include "fuzz/posix.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace fuzz {

class name_checks {
 public:
  name_checks(const program& p, const history& past, const std::string& root) : program_(p), past_(past), root_(root) {}

  // The error of flags that no open takes, whatever there is; or 0.
  static int refused(int flags) {
    const bool writes = (flags & O_GWRONCE) != 0 || (flags & O_ACCMODE) != O_RDONLY;
    if ((flags & O_ACCMODE) == O_ACCMODE) return -EINVAL;
    return !writes && (flags & (O_CREAT | O_EXCL | O_TRUNC | O_APPEND)) != 0 ? -EINVAL : 0;
  }

  // What there is at first.
  const name_tree& begin() { return names_ = names_below(root_); }
  // After the last round that was checked.
  const name_tree& now() const { return names_; }
  std::uint64_t given_up() const { return given_up_; }

  // Processes, or other mounts: a mount does not know of it.
  bool others_change_names() const {
    return std::any_of(past_.events().begin(), past_.events().end(), [&](const event& e) {
      return changes_names(e.made.what) && e.got.value == 0 && (e.by_process() || program_.mounts.size() > 1);
    });
  }

  // What is wrong with the events from this one on, or nothing.
  std::string wrong_since(std::size_t first) {
    const name_tree after = names_below(root_);
    std::vector<name_call> made;
    const bool others = others_change_names();
    for (std::size_t i = first; i < past_.events().size(); ++i) {
      const event& e = past_.events()[i];
      if (!e.was_made() || !names_paths(e.made.what)) continue;
      if (is_open(e.made.what) && refused(e.made.flags) != 0) continue;
      if (e.made.what == verb::list && e.got.value == -ENOENT && replaced_beside(e)) continue;
      name_call c{.what = e.made.what,
                  .actor = e.actor,
                  .mount = e.by_process() ? no_mount : e.made.mount,
                  .path = e.made.path,
                  .second = e.made.second,
                  .flags = e.made.flags,
                  .value = std::min<std::int64_t>(e.got.value, 0),
                  .inode = e.got.inode,
                  .mode = e.got.mode,
                  .begin = e.got.begin,
                  .end = e.got.end,
                  .text = e.text(program_.mounts.size() > 1),
                  .id = std::uint64_t{1} << 62 | i,
                  .shared = {}};
      // Who reads knows a path by its spelling: by another one, or a link, a removed file may still be shared.
      const bool only_reads = (e.made.flags & (O_ACCMODE | O_GWRONCE)) == O_RDONLY;
      const bool by_spelling = !program_.links.empty() && only_reads;
      if (is_open(e.made.what) && (others || by_spelling || removed_meanwhile(e))) {
        for (const opened_file& o : past_.opens()) {
          if (&o == past_.handle(i) || o.mount != c.mount || o.spelling != c.path || o.begin >= c.end) continue;
          for (const opened_file& holder : past_.opens()) {
            const bool same = holder.mount == o.mount && holder.inode == o.inode && &holder != past_.handle(i);
            if (same && holder.begin < c.end && holder.close_end > c.begin) c.shared.insert(o.inode);
          }
          if (tried_beside(i)) c.shared.insert(o.inode);  // who tried to open it may have held it for a moment
        }
      }
      made.push_back(std::move(c));
    }
    std::string wrong = wrong_order(made, after);
    const auto split = [&](std::size_t i) { return is_under_rename(made, made[i]); };
    if (!wrong.empty()) {
      const std::vector<name_call> parts = in_parts(made, split);
      if (parts.size() != made.size()) wrong = wrong_order(parts, after);
    }
    names_ = after;
    return wrong;
  }

 private:
  // Until a call that removes or replaces what a path names has returned, opens may go on sharing that file, also where others have
  // found it gone already.
  bool removed_meanwhile(const event& open) const {
    return std::any_of(past_.events().begin(), past_.events().end(), [&](const event& e) {
      return changes_names(e.made.what) && e.got.value == 0 && e.got.begin < open.got.end && e.got.end > open.got.begin &&
             (is_at_or_above(e.made.path, open.made.path) || is_at_or_above(e.made.second, open.made.path));
    });
  }

  // Whether a rename puts another directory in the place of the one that is listed, which, once it is open, has nothing more.
  bool replaced_beside(const event& list) const {
    return std::any_of(past_.events().begin(), past_.events().end(), [&](const event& e) {
      return e.made.what == verb::rename && e.got.value == 0 && e.got.begin < list.got.end && e.got.end > list.got.begin &&
             is_at_or_above(e.made.second, list.made.path);
    });
  }

  // Whether an open of this path by this mount has failed beside it.
  bool tried_beside(std::size_t open) const {
    const event& e = past_.events()[open];
    return std::any_of(past_.events().begin(), past_.events().end(), [&](const event& other) {
      return is_open(other.made.what) && other.was_made() && other.got.value < 0 && other.made.path == e.made.path &&
             other.made.mount == e.made.mount && other.got.begin < e.got.end && other.got.end > e.got.begin;
    });
  }

  // Whether a call that makes, moves or removes a name runs beside a rename that moves or replaces a directory on its paths.
  static bool is_under_rename(const std::vector<name_call>& made, const name_call& c) {
    if (!changes_names(c.what) && !is_open(c.what)) return false;
    return std::any_of(made.begin(), made.end(), [&](const name_call& other) {
      if (&other == &c || other.what != verb::rename || other.value != 0) return false;
      if (other.begin >= c.end || other.end <= c.begin) return false;
      const auto lies_in = [&](const std::string& path) {
        return name_tree::is_within(path, other.path) || name_tree::is_within(path, other.second);
      };
      return lies_in(c.path) || lies_in(c.second);
    });
  }

  std::string wrong_order(const std::vector<name_call>& made, const name_tree& after) {
    order_search search(names_, made, after);
    const bool found = search();
    given_up_ += search.gave_up();
    return found ? "" : no_order(made, search.longest(), after);
  }

  static std::string no_order(const std::vector<name_call>& made, const std::vector<std::size_t>& longest, const name_tree& after) {
    std::ostringstream text;
    text << "no order of these calls gives what came of them; as far as one went:";
    std::vector<bool> placed(made.size());
    const auto line = [&](std::size_t i) {
      text << "\n    " << made[i].text << " (" << made[i].begin << " to " << made[i].end;
      if (made[i].inode != 0) text << ", inode " << made[i].inode;
      text << ')';
    };
    for (const std::size_t i : longest) {
      placed[i] = true;
      line(i);
    }
    text << "\n  and not:";
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (!placed[i]) line(i);
    }
    text << "\n  then there is: " << after.key();
    return text.str();
  }

  const program& program_;
  const history& past_;
  const std::string& root_;
  name_tree names_;
  std::uint64_t given_up_ = 0;
};

}  // namespace fuzz
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
