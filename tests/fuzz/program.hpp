// SPDX-License-Identifier: Apache-2.0
// Random programs of all verbs, as data: what a few groups of one kernel call on a few mounts of one directory, round by round, and
// what this process and a second one do beside them.
#pragma once
#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "file/schedules.hpp"
#include "file/script.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace fuzz {

enum class verb : std::uint32_t {
  open,      // path, flags -> 0 or an errno; whose file it is: the inode
  open_all,  // as many opens as `count` says: this and the next ones' paths, which lie in one directory
  close,
  close_all,  // as many handles as `count` says, from `handle` on
  read,       // pread
  look,       // map_page, its bytes, unmap_page
  load,       // through pointers: each lane every group.size()-th byte, or with flags a stretch of its own, in a page of its own
  write,      // pwrite
  append,
  append_each,  // each lane its piece of the bytes, cut as flags say
  store,        // map_page<std::byte>, stores, unmap_page
  poke,         // through pointers, as load
  add,          // fetch_add of 1 on a word of 8 bytes, through a pointer, or with flags without a link, by the group's leader
  store_at,     // elements of 4, 8 or 16 bytes (flags: 0 to 2), through a pointer without a link: each lane its own
  gather,       // rows, in an order and size that flags say: batch_of
  scatter,
  scratch,  // a private mapping: writes bytes, reads them back, gives them up
  cut,      // ftruncate
  sync,     // fsync, how far: flags
  status,   // fstat
  ahead,    // prefetch, a read_async that nobody waits for, or advise: flags
  stat,     // path
  unlink,
  rmdir,
  mkdir,
  rename,  // path to second
  list,    // read_directory
};
inline constexpr const char* verb_names[] = {"open",   "open_all", "close",       "close_all", "read",   "look",   "load",
                                             "write",  "append",   "append_each", "store",     "poke",   "add",    "store_at",
                                             "gather", "scatter",  "scratch",     "cut",       "sync",   "status", "ahead",
                                             "stat",   "unlink",   "rmdir",       "mkdir",     "rename", "list"};

inline bool is_open(verb v) { return v == verb::open || v == verb::open_all; }
inline bool is_close(verb v) { return v == verb::close || v == verb::close_all; }
inline bool names_paths(verb v) { return is_open(v) || v >= verb::stat; }
inline bool changes_names(verb v) { return v >= verb::unlink && v <= verb::rename; }
inline bool is_batch(verb v) { return v == verb::gather || v == verb::scatter; }
inline bool by_pointer(verb v) {
  return v == verb::load || v == verb::poke || v == verb::add || v == verb::store_at || v == verb::scratch;
}
inline bool gives_bytes(verb v) {
  return v == verb::read || v == verb::look || v == verb::load || v == verb::gather || v == verb::list;
}
inline bool appends(verb v) { return v == verb::append || v == verb::append_each; }
inline bool takes_bytes(verb v) {
  return v == verb::write || appends(v) || v == verb::store || v == verb::poke || v == verb::store_at || v == verb::scatter ||
         v == verb::scratch;
}

struct call {
  verb what;
  unsigned mount = 0;
  unsigned handle = 0;  // which of the group's
  unsigned count = 1;
  int flags = 0;
  bool spelled = false;  // its path begins with "./", which changes nothing
  std::string path = {}, second = {};
  std::uint64_t begin = 0, nbytes = 0;
  std::uint64_t id = 0;  // of what takes bytes: byte x of the file becomes content_byte(id, x - begin)
};
using calls = std::vector<call>;

// A gather or scatter: all rows of [begin, begin + nbytes), of equal size, in some order, and some of them once more. What a place
// brings to its row is the same as what any other does, since a group smaller than a block writes them one after another, and
// others may see each. flags: the size, and how they are mixed.
struct batch_of {
  std::uint64_t row_nbytes, nrows, mix, begin;

  explicit batch_of(const call& c)
      : row_nbytes(static_cast<std::uint64_t>(c.flags) & 0xffff),
        nrows(c.nbytes / row_nbytes),
        mix(static_cast<std::uint64_t>(c.flags) >> 16),
        begin(c.begin) {}
  static int flags(std::uint64_t row_nbytes, std::uint64_t mix) { return static_cast<int>(row_nbytes | mix << 16); }
  std::uint64_t nplaces() const { return nrows + nrows / 3; }
  std::uint64_t nbytes() const { return nplaces() * row_nbytes; }
  // The row that a place names.
  std::uint64_t row(std::uint64_t place) const {
    const std::uint64_t step = mix % 3 == 2 && nrows % 7 != 0 ? 7 : 1, at = (place * step + mix) % nrows;
    return mix % 2 == 0 ? at : nrows - 1 - at;
  }
  std::uint64_t offset(std::uint64_t place) const { return begin + row(place) * row_nbytes; }
};

constexpr unsigned handles_per_group = 4;
// A file of words that are counted up, and not touched otherwise.
inline constexpr const char* counters_name = "counters";
inline constexpr std::uint64_t counters_nbytes = 1040;

// This process and the second one write by path, opening the file themselves, and change names.
struct round {
  std::vector<calls> groups;  // of the active groups
  calls host, peer;           // while the kernel runs
};

enum class root_kind { memory, disk };
enum class store_choice { automatic, posix, direct, mapped_all, slow, failing, nvme, qemu };
inline constexpr const char* store_names[] = {
    "auto", "posix", "posix O_DIRECT", "auto that maps all", "calls that are slow", "reads that fail", "NVMe", "QEMU's NVMe"};

struct fuzz_mount {
  mount_options options;
  store_choice store = store_choice::automatic;
};

// What the one file of a program over NVMe lies on: parts, which are namespaces or partitions of controllers by turns.
struct nvme_shape {
  unsigned ncolumns = 1, ncopies = 1;  // units of the file go to columns by turns, each of which has equal copies
  bool in_partitions = false;
  unsigned ncontrollers = 1;
  std::uint64_t unit_nbytes = 4096;

  unsigned nparts() const { return ncolumns * ncopies; }
  bool is_namespace() const { return nparts() == 1 && !in_partitions; }
  // The fewest bytes that the file can have, of nbytes and more.
  std::uint64_t whole(std::uint64_t nbytes) const {
    const std::uint64_t step = ncolumns == 1 ? 4096 : ncolumns * unit_nbytes;
    return std::max((nbytes + step - 1) / step * step, ncolumns == 1 ? unit_nbytes : step);
  }
  std::string text() const {
    std::ostringstream text;
    text << ncolumns << " columns of " << ncopies << " copies by units of " << unit_nbytes << ", in "
         << (in_partitions ? "partitions" : "namespaces") << " of " << ncontrollers << " controllers";
    return text.str();
  }
};

// A further name of a file, or a symbolic link to its path.
struct first_link {
  std::string path, target;
  bool hard = false;
};

struct first_file {
  std::string path;
  std::uint64_t nbytes = 0, id = 0;
};

struct program {
  std::uint64_t seed = 0;
  root_kind root = root_kind::memory;
  std::vector<fuzz_mount> mounts;
  nvme_shape shape;
  formation how;
  std::vector<std::uint32_t> active;  // which groups of the formation do anything
  std::vector<std::string> directories;
  std::vector<first_file> files;
  std::vector<first_link> links;
  std::vector<round> rounds;
  std::map<unsigned, given_schedule> schedules;  // by round; the others are drawn
  std::string kept;                              // of its calls; nothing: all
  bool may_starve = false;                       // more pages may be pinned than there are frames: -ENOMEM, but of loads

  // Whether the store's one file lies on controllers.
  bool is_over_nvme() const {
    return !mounts.empty() && (mounts[0].store == store_choice::nvme || mounts[0].store == store_choice::qemu);
  }
  // Whether some group says that it reads each byte once.
  bool advises_noreuse() const {
    const auto says = [](const call& c) { return c.what == verb::ahead && c.flags == 2 + static_cast<int>(advice::noreuse); };
    return std::any_of(rounds.begin(), rounds.end(), [&](const round& r) {
      return std::any_of(r.groups.begin(), r.groups.end(),
                         [&](const calls& of) { return std::any_of(of.begin(), of.end(), says); });
    });
  }
};

inline std::string flags_text(int flags) {
  std::string text = (flags & O_ACCMODE) == O_RDWR     ? "RDWR"
                     : (flags & O_ACCMODE) == O_WRONLY ? "WRONLY"
                     : (flags & O_ACCMODE) == O_RDONLY ? "RDONLY"
                                                       : "ACCMODE";
  if ((flags & O_GWRONCE) != 0) text += "|GWRONCE";
  if ((flags & O_CREAT) != 0) text += "|CREAT";
  if ((flags & O_EXCL) != 0) text += "|EXCL";
  if ((flags & O_TRUNC) != 0) text += "|TRUNC";
  if ((flags & O_APPEND) != 0) text += "|APPEND";
  if ((flags & O_NOFOLLOW) != 0) text += "|NOFOLLOW";
  return text;
}

inline std::string to_text(const call& c, bool names_mount) {
  std::ostringstream text;
  text << verb_names[static_cast<int>(c.what)];
  if (names_mount) text << " m" << c.mount;
  if (!c.path.empty()) text << (c.spelled ? " './" : " '") << c.path << '\'';
  if (!c.second.empty()) text << " '" << c.second << '\'';
  if (is_open(c.what)) text << ' ' << flags_text(c.flags);
  if (!names_paths(c.what) || is_open(c.what)) text << " h" << c.handle;
  if (c.count != 1) text << " x" << c.count;
  if (c.nbytes != 0) text << " [" << c.begin << ", +" << c.nbytes << ')';
  if (c.what == verb::ahead || c.what == verb::append_each || c.what == verb::store_at || (c.what == verb::add && c.flags != 0))
    text << " how " << c.flags;
  if (is_batch(c.what)) text << " by " << batch_of(c).row_nbytes << " mixed " << batch_of(c).mix;
  if (c.what == verb::cut) text << " to " << c.begin;
  if (c.id != 0) text << " #" << c.id;
  return text.str();
}

inline std::string to_text(const program& p) {
  constexpr const char* kinds[] = {"thread", "tile8", "warp", "block"};
  std::ostringstream text;
  text << "GPUFS_TEST_SEED=" << p.seed;
  if (!p.kept.empty()) text << " GPUFS_TEST_KEEP='" << p.kept << '\'';
  given_schedules given;
  for (const auto& [r, s] : p.schedules) given[{r, 0}] = s;
  if (!given.empty()) text << " GPUFS_TEST_SCHEDULE='" << gpufs::test::to_text(given) << '\'';
  text << "\nfiles " << (p.root == root_kind::memory ? "in memory" : "on disk") << ':';
  for (const std::string& d : p.directories) text << ' ' << d << '/';
  for (const first_file& f : p.files) text << ' ' << f.path << " (" << f.nbytes << ')';
  for (const first_link& l : p.links) text << ' ' << l.path << (l.hard ? " = " : " -> ") << l.target;
  text << '\n';
  if (p.is_over_nvme() && !p.shape.is_namespace()) text << "  on " << p.shape.text() << '\n';
  for (std::size_t m = 0; m < p.mounts.size(); ++m) {
    const mount_options& o = p.mounts[m].options;
    text << "mount " << m << ": " << store_names[static_cast<int>(p.mounts[m].store)] << ", page " << o.page_nbytes << ", "
         << o.cache_nbytes / o.page_nbytes << " frames, dirty_nbytes " << o.dirty_nbytes << ", " << o.nworkers << " workers, "
         << o.internals.nrings << " rings, " << o.internals.request_rings << " x " << o.internals.request_slots << " requests\n";
  }
  text << p.how.grid << " x " << p.how.block << " threads, " << describe(p.how.schedule)
       << (p.may_starve ? ", may starve\n" : "\n");
  std::map<std::uint32_t, group_kind> kind_of;
  for (const membership& who : p.how.members()) kind_of[who.group] = who.kind;
  const auto line = [&](const std::string& who, const calls& what) {
    if (what.empty()) return;
    text << "  " << who << ": ";
    for (std::size_t i = 0; i < what.size(); ++i) text << (i == 0 ? "" : "; ") << to_text(what[i], p.mounts.size() > 1);
    text << '\n';
  };
  for (std::size_t r = 0; r < p.rounds.size(); ++r) {
    text << "round " << r << '\n';
    for (std::size_t g = 0; g < p.rounds[r].groups.size(); ++g) {
      line(numbered("group ", g) + " (" + kinds[static_cast<int>(kind_of[p.active[g]])] + ")", p.rounds[r].groups[g]);
    }
    line("this process", p.rounds[r].host);
    line("second process", p.rounds[r].peer);
  }
  return text.str();
}

}  // namespace fuzz
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
