// SPDX-License-Identifier: Apache-2.0
// What names mean, and whether calls that overlapped can have come one after another: a search over the orders that their times
// permit, on a plain tree of names. It knows nothing of gpufs.
#pragma once
#include <array>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>

#include "fuzz/program.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace fuzz {

enum class node_kind { file, directory, link };
struct node {
  node_kind kind;
  std::uint64_t inode;      // of a file
  std::string target = {};  // of a link
  std::uint64_t id = 0;     // of a directory, wherever it is moved; the root's is 0
  bool operator==(const node& other) const { return kind == other.kind && inode == other.inode && target == other.target; }
};

// Paths below the root, which is "" and always there.
class name_tree {
 public:
  std::map<std::string, node> nodes;

  bool operator==(const name_tree&) const = default;
  const node* find(const std::string& path) const {
    const auto at = nodes.find(path);
    return at == nodes.end() ? nullptr : &at->second;
  }
  static std::string parent(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    return slash == std::string::npos ? "" : path.substr(0, slash);
  }
  static bool is_within(const std::string& path, const std::string& directory) {
    return path.size() > directory.size() && path.compare(0, directory.size(), directory) == 0 && path[directory.size()] == '/';
  }
  // 0 where the parent is a directory, else -ENOENT or -ENOTDIR.
  int parent_error(const std::string& path) const {
    for (std::size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
      const node* n = find(path.substr(0, slash));
      if (n == nullptr) return -ENOENT;
      if (n->kind != node_kind::directory) return -ENOTDIR;
    }
    return 0;
  }
  // The path that remains when links at its end are followed, or nothing: they go round.
  std::string follow(std::string path) const {
    for (int i = 0; i < 40; ++i) {
      const node* n = find(path);
      if (n == nullptr || n->kind != node_kind::link) return path;
      const std::string directory = parent(path);
      path = directory.empty() ? n->target : directory + "/" + n->target;
    }
    return "";
  }
  bool is_empty(const std::string& directory) const {
    const auto next = nodes.upper_bound(directory + "/");
    return next == nodes.end() || !is_within(next->first, directory);
  }
  void move(const std::string& from, const std::string& to) {
    std::map<std::string, node> moved;
    for (auto at = nodes.begin(); at != nodes.end();) {
      if (at->first == from || is_within(at->first, from)) {
        moved[to + at->first.substr(from.size())] = at->second;
        at = nodes.erase(at);
      } else {
        ++at;
      }
    }
    nodes.erase(to);
    nodes.merge(moved);
  }
  // Which directory a path lies in, or parent_error.
  std::int64_t directory_of(const std::string& path) const {
    const int error = parent_error(path);
    const node* n = find(parent(path));
    return error != 0 || n == nullptr ? error : static_cast<std::int64_t>(n->id);
  }
  // Where a directory is now: "" and a slash less, as names begin; nothing: it is gone.
  std::optional<std::string> path_of(std::int64_t directory) const {
    if (directory == 0) return "";
    for (const auto& [path, n] : nodes) {
      if (n.kind == node_kind::directory && static_cast<std::int64_t>(n.id) == directory) return path + "/";
    }
    return std::nullopt;
  }
  bool has_inode(std::uint64_t inode) const {
    return std::any_of(nodes.begin(), nodes.end(), [inode](const auto& n) { return n.second.inode == inode; });
  }
  std::string key() const {
    std::string text;
    for (const auto& [path, n] : nodes) text.append(path).append(1, ':').append(std::to_string(n.inode + n.id)).append(1, ' ');
    return text;
  }
};

// What a call does at one moment. A call that makes, moves or removes a name finds the directories of its paths first, and then
// does it there, wherever they are by then, as the host's calls do: so beside renames of directories it may be of no one moment.
enum class part { all, find, find_second, act };

// A call on names as it came out.
struct name_call {
  verb what;
  unsigned actor;  // a process's calls come in the order in which they are given
  unsigned mount;  // or no_mount: the kernel of the operating system itself
  std::string path = {}, second = {};
  int flags = 0;
  std::int64_t value = 0;  // 0 or a negative errno
  std::uint64_t inode = 0;
  std::uint32_t mode = 0;
  std::uint64_t begin = 0, end = 0;
  std::string text = {};
  std::uint64_t id = 0;  // that a directory has which it makes
  part which = part::all;
  std::size_t act = 0;  // of what finds: for which of the calls
  // Files that the mount has open under this path, which others may have renamed or removed: it may go on sharing one of them.
  std::set<std::uint64_t> shared;
};
constexpr unsigned no_mount = ~0u;

// Whether the call may come out so, and what it then leaves.
class name_rules {
 public:
  static bool apply(name_tree& tree, const name_call& c, bool shares) {
    if (shares) {
      const bool exclusive = (c.flags & O_CREAT) != 0 && (c.flags & O_EXCL) != 0;
      return !c.shared.empty() && (exclusive ? c.value == -EEXIST : c.value == 0 && c.shared.contains(c.inode));
    }
    switch (c.what) {
      case verb::open:
      case verb::open_all:
        return open(tree, c);
      case verb::stat: {
        const std::string path = tree.follow(c.path);
        if (path.empty()) return c.value == -ELOOP;
        const node* n = tree.find(path);
        if (n == nullptr) return c.value == missing(tree, path);
        const bool is_directory = (c.mode & S_IFMT) == S_IFDIR;
        return c.value == 0 && is_directory == (n->kind == node_kind::directory) && (is_directory || c.inode == n->inode);
      }
      case verb::unlink:
      case verb::rmdir:
        return remove(tree, c);
      case verb::mkdir: {
        const int error = tree.find(c.path) != nullptr ? -EEXIST : tree.parent_error(c.path);
        if (c.value != error) return false;
        if (error == 0) tree.nodes[c.path] = {node_kind::directory, 0, {}, c.id};
        return true;
      }
      case verb::rename:
        return rename(tree, c);
      case verb::list:
        return list(tree, c);
      default:
        return true;
    }
  }
  // Whether a call that came out so leaves the tree as it is, in any state in which it may.
  static bool only_looks(const name_call& c) {
    if (c.which == part::find || c.which == part::find_second) return false;
    return c.value != 0 || c.what == verb::stat || c.what == verb::list || (is_open(c.what) && (c.flags & O_CREAT) == 0) ||
           c.path == c.second;
  }

 private:
  static int missing(const name_tree& tree, const std::string& path) {
    const int error = tree.parent_error(path);
    return error != 0 ? error : -ENOENT;
  }

  static bool open(name_tree& tree, const name_call& c) {
    const bool creates = (c.flags & O_CREAT) != 0, exclusive = creates && (c.flags & O_EXCL) != 0;
    const node* first = tree.find(c.path);
    const bool is_link = first != nullptr && first->kind == node_kind::link;
    if (is_link && exclusive) return c.value == -EEXIST;
    if (is_link && (c.flags & O_NOFOLLOW) != 0) return c.value == -ELOOP;
    const std::string path = tree.follow(c.path);
    if (path.empty()) return c.value == -ELOOP;
    const node* n = tree.find(path);
    if (n == nullptr) {
      const int error = tree.parent_error(path);
      if (error != 0 || !creates) return c.value == (error != 0 ? error : -ENOENT);
      if (c.value != 0 || tree.has_inode(c.inode)) return false;
      tree.nodes[path] = {node_kind::file, c.inode};
      return true;
    }
    if (n->kind == node_kind::directory) return c.value == -EISDIR || (exclusive && c.value == -EEXIST);
    if (exclusive) return c.value == -EEXIST;
    return c.value == 0 && c.inode == n->inode;
  }

  static bool list(const name_tree& tree, const name_call& c) {
    const std::string path = tree.follow(c.path);
    if (path.empty() != c.path.empty()) return c.value == -ELOOP;
    const node* n = tree.find(path);
    if (!path.empty() && n == nullptr) return c.value == missing(tree, path);
    return c.value == (path.empty() || n->kind == node_kind::directory ? 0 : -ENOTDIR);
  }

  static bool remove(name_tree& tree, const name_call& c) {
    const node* n = tree.find(c.path);
    int error = 0;
    if (n == nullptr) {
      error = missing(tree, c.path);
    } else if (c.what == verb::unlink) {
      error = n->kind == node_kind::directory ? -EISDIR : 0;
    } else {
      error = n->kind != node_kind::directory ? -ENOTDIR : tree.is_empty(c.path) ? 0 : -ENOTEMPTY;
    }
    if (c.value != error) return false;
    if (error == 0) tree.nodes.erase(c.path);
    return true;
  }

  static bool rename(name_tree& tree, const name_call& c) {
    std::set<std::int64_t> errors;  // any of those that apply
    const int parents[] = {tree.parent_error(c.path), tree.parent_error(c.second)};
    for (const int error : parents) {
      if (error != 0) errors.insert(error);
    }
    const node *from = tree.find(c.path), *to = tree.find(c.second);
    if (from == nullptr && parents[0] == 0) errors.insert(-ENOENT);
    if (name_tree::is_within(c.second, c.path)) errors.insert(-EINVAL);
    if (name_tree::is_within(c.path, c.second)) errors.insert(-ENOTEMPTY);
    if (from != nullptr && to != nullptr && c.path != c.second) {
      if (from->kind == node_kind::directory) {
        if (to->kind != node_kind::directory) errors.insert(-ENOTDIR);
        if (to->kind == node_kind::directory && !tree.is_empty(c.second)) errors.insert(-ENOTEMPTY);
      } else if (to->kind == node_kind::directory) {
        errors.insert(-EISDIR);
      }
    }
    if (!errors.empty()) return errors.contains(c.value);
    if (c.value != 0) return false;
    const bool one_file = from->kind == node_kind::file && to != nullptr && *from == *to;
    if (c.path != c.second && !one_file) tree.move(c.path, c.second);
    return true;
  }
};

// The calls in parts, those of which split(i) says so.
template <class Split>
std::vector<name_call> in_parts(const std::vector<name_call>& made, Split split) {
  std::vector<name_call> out;
  for (std::size_t i = 0; i < made.size(); ++i) {
    const bool two = made[i].what == verb::rename;
    if (split(i)) {
      const std::size_t act = out.size() + (two ? 2 : 1);
      for (const part which : {part::find, part::find_second}) {
        if (which == part::find_second && !two) continue;
        name_call& c = out.emplace_back(made[i]);
        c.which = which;
        c.act = act;
        c.text = (two ? "what finds the second directory of " : "what finds the directory of ") + c.text;
        if (which == part::find && two) c.text = "what finds the first directory of " + made[i].text;
      }
    }
    out.push_back(made[i]);
    if (split(i)) out.back().which = part::act;
  }
  return out;
}

// Looks for an order of all calls in which each may come out as it did, and which leaves the names as they are.
class order_search {
 public:
  order_search(const name_tree& before, const std::vector<name_call>& made, const name_tree& after)
      : calls_(made), after_(after), placed_(made.size()), found_(made.size()), tree_(before) {}

  // False: there is none. (Where it takes too long, it is taken that there is one: `gave_up`.)
  bool operator()() {
    const bool found = place(calls_.size());
    gave_up_ = steps_ >= most_steps;
    return found || gave_up_;
  }
  bool gave_up() const { return gave_up_; }
  const std::vector<std::size_t>& longest() const { return longest_; }  // as far as an order went, for messages

 private:
  static constexpr std::uint64_t most_steps = 300'000;

  bool may_come_next(std::size_t i) const {
    for (std::size_t k = 0; k < calls_.size(); ++k) {
      if (placed_[k] || k == i) continue;
      if (calls_[k].end < calls_[i].begin || (k < i && calls_[k].actor == calls_[i].actor && calls_[i].mount == no_mount))
        return false;
      if (calls_[i].which == part::act && is_find(k) && calls_[k].act == i) return false;
    }
    return true;
  }
  bool is_find(std::size_t i) const { return calls_[i].which == part::find || calls_[i].which == part::find_second; }

  bool apply(std::size_t i, bool shares) {
    const name_call& c = calls_[i];
    if (is_find(i)) {
      const bool first = c.which == part::find;
      found_[c.act][first ? 0 : 1] = tree_.directory_of(first ? c.path : c.second);
      return !shares;
    }
    if (c.which == part::all || shares) return name_rules::apply(tree_, c, shares);
    bool refused = false;
    name_call there = c;
    for (const std::size_t k : {0, 1}) {
      const std::int64_t directory = found_[i][k];
      std::string& path = k == 0 ? there.path : there.second;
      if (path.empty()) continue;
      if (directory < 0) {
        if (c.value == directory) return true;
        refused = true;
        continue;
      }
      const auto begins = tree_.path_of(directory);
      path = begins.value_or("what is gone/") + path.substr(path.rfind('/') + 1);
    }
    return !refused && name_rules::apply(tree_, there, false);
  }

  bool place(std::size_t left) {
    // What changes nothing may as well come first.
    std::vector<std::size_t> looks;
    for (bool again = true; again;) {
      again = false;
      for (std::size_t i = 0; i < calls_.size(); ++i) {
        if (placed_[i] || !name_rules::only_looks(calls_[i]) || !may_come_next(i)) continue;
        if (!apply(i, false) && !apply(i, true)) continue;
        placed_[i] = again = true;
        order_.push_back(i);
        looks.push_back(i);
      }
    }
    bool found = false;
    if (order_.size() > longest_.size()) longest_ = order_;
    if (left == looks.size()) {
      found = tree_ == after_;
    } else if (++steps_ < most_steps && seen_.insert(key()).second) {
      for (std::size_t i = 0; i < calls_.size() && !found; ++i) {
        if (placed_[i] || name_rules::only_looks(calls_[i]) || !may_come_next(i)) continue;
        for (const bool shares : {false, true}) {
          const name_tree before = tree_;
          if (!found && apply(i, shares)) {
            placed_[i] = true;
            order_.push_back(i);
            found = place(left - looks.size() - 1);
            order_.pop_back();
            placed_[i] = false;
          }
          tree_ = before;
        }
      }
    }
    for (const std::size_t i : looks) placed_[i] = false;
    order_.resize(order_.size() - looks.size());
    return found;
  }

  std::string key() const {
    std::string text(placed_.size(), '0');
    for (std::size_t i = 0; i < placed_.size(); ++i) {
      text[i] = placed_[i] ? '1' : '0';
      if (placed_[i] && is_find(i) && !placed_[calls_[i].act])
        text.append(std::to_string(found_[calls_[i].act][calls_[i].which == part::find ? 0 : 1])).append(1, ' ');
    }
    return text + tree_.key();
  }

  const std::vector<name_call>& calls_;
  const name_tree& after_;
  std::vector<bool> placed_;
  std::vector<std::array<std::int64_t, 2>> found_;  // of a call in parts: the directories, or errnos
  name_tree tree_;
  std::vector<std::size_t> order_, longest_;
  std::unordered_set<std::string> seen_;
  std::uint64_t steps_ = 0;
  bool gave_up_ = false;
};

}  // namespace fuzz
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
