// SPDX-License-Identifier: Apache-2.0
// What every name space must do: random programs of its calls by one lane, beside the same calls of POSIX in another directory. And
// name spaces that do something else, which must be found.
#include <dirent.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#include <map>
#include <optional>
#include <set>

#include "file/script.hpp"
#include "gpufs/names/name_space.hpp"
#include "leftovers.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

enum class verb : std::uint32_t {
  open,
  close,
  remove,
  remove_directory,
  rename,
  make_directory,
  stat,
  list,
  sync,
  set_size,
  extents
};

struct name_call {
  verb what;
  std::uint32_t first, second;  // of open, close, sync, set_size and extents, `second` is which of the program's open files
  std::int32_t flags;
  std::int64_t nbytes;
};
struct name_answer {
  std::int32_t error;
  std::uint32_t mode;
  std::int64_t nbytes;
  std::uint64_t inode;
  std::uint32_t known;     // whether somebody has the file open for writing, as the answer says
  std::uint32_t others;    // after a name is lost: 1 whether other paths may lead elsewhere now, 2 whether nothing was done
  std::uint32_t nentries;  // of a listing
  std::uint64_t entries;   // of a listing: the sum of hashes of name and kind
  std::uint64_t begin;     // of what an open has brought along: a hash; 0: nothing
};

constexpr std::uint32_t nfiles = 4;
constexpr const char* all_paths[] = {"a", "b", "d", "d/a", "d/b", "e", "e/d", "none/a", "./a", "d/../b", "link"};
constexpr std::uint32_t npaths = std::size(all_paths);
constexpr std::uint32_t first_nbytes = 512;  // a page: so many bytes of a file's beginning are wanted by opens that read

GPUFS_HOST_DEVICE std::uint64_t hash_of_entry(const char* name, bool is_directory) {
  std::uint64_t hash = is_directory ? 14695981039346656037u : 1099511628211u;
  for (; *name != '\0'; ++name) hash = (hash ^ static_cast<unsigned char>(*name)) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}
GPUFS_HOST_DEVICE std::uint64_t hash_of_begin(const std::byte* bytes, std::uint64_t nbytes) {
  std::uint64_t hash = nbytes;
  for (std::uint64_t i = 0; i < nbytes; ++i) hash = (hash ^ static_cast<unsigned char>(bytes[i])) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

// Its open files are its own: a file that it has open for writing is open under number 1000 + which.
template <gpufs::names::name_space NameSpace>
struct play_names {
  mount_ref fs;
  const char* const* paths;
  const name_call* calls;
  std::uint32_t ncalls;
  name_answer* answers;

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const NameSpace names(*fs.get(), 0);
    std::uint32_t ids[nfiles] = {};
    for (std::uint32_t i = 0; i < ncalls; ++i) answers[i] = play(names, calls[i], ids);
  }

  GPUFS_DEVICE name_answer play(const NameSpace& names, const name_call& c, std::uint32_t* ids) const {
    const char* const path = paths[c.first];
    const char* const other = paths[c.second % npaths];
    name_answer got{};
    switch (c.what) {
      case verb::open: {
        const simt::deadline until(10'000'000'000);
        std::uint32_t length = 0;
        while (path[length] != '\0') ++length;
        const bool reads = (c.flags & O_ACCMODE) == O_RDONLY;
        const gpufs::names::opened f =
            names.open(gpufs::names::path_bytes{path},
                       {length, static_cast<std::uint32_t>(c.flags), 1000 + c.second, reads ? first_nbytes : 0, 0}, until);
        got.error = f.error;
        got.known = f.elsewhere;
        if (f.error != 0) return got;
        if (f.elsewhere != 0) return got;
        if (f.nbytes != 0) {
          got.begin = hash_of_begin(names.bytes_of(f.kept), f.nbytes);
          names.give_back(f.kept);
        }
        got.nbytes = f.file.nbytes;
        got.inode = f.file.inode;
        got.mode = f.file.mode;
        ids[c.second] = f.file.id;
        return got;
      }
      case verb::close: {
        const gpufs::names::closed done = names.close(ids[c.second], 0);
        got.error = done.asked ? done.error : -ETIMEDOUT;
        ids[c.second] = 0;
        return got;
      }
      case verb::remove:
      case verb::remove_directory:
        return lost(names.remove(path, c.what == verb::remove ? 0 : gpufs::names::unlink_directory));
      case verb::rename:
        return lost(names.rename(path, other));
      case verb::make_directory:
        got.error = names.make_directory(path, 0755);
        return got;
      case verb::stat: {
        const gpufs::names::status s = names.stat(path);
        return {s.error, s.mode, s.error == 0 ? s.nbytes : 0, s.inode, s.written != 0, 0, 0, 0, 0};
      }
      case verb::list:
        return list(names, path);
      case verb::sync:
        got.error = names.sync(ids[c.second], 0, 0);
        return got;
      case verb::set_size:
        got.error = names.set_size(ids[c.second], c.nbytes);
        return got;
      case verb::extents:
        return data_nbytes(names, ids[c.second]);
    }
    return got;
  }
  GPUFS_DEVICE static name_answer lost(const gpufs::names::lost_names& names) {
    bool known = false;
    for (const gpufs::names::written_place place : names.places) known |= place != 0;
    const std::uint32_t others = names.others_too | names.nothing << 1;
    return {names.error, 0, 0, 0, names.error == 0 && known, names.error == 0 ? others : 0, 0, 0, 0};
  }
  // How many of the file's bytes its extents have, few of them at a time.
  GPUFS_DEVICE name_answer data_nbytes(const NameSpace& names, std::uint32_t id) const {
    name_answer got{};
    for (std::int64_t offset = 0;;) {
      const gpufs::names::listing some = names.extents(id, offset, 2 * sizeof(extent));
      got.error = some.error;
      if (some.error != 0) return got;
      const auto* const found = reinterpret_cast<const extent*>(names.bytes_of(some.kept));
      for (std::int64_t i = 0; i < some.nbytes / static_cast<std::int64_t>(sizeof(extent)); ++i) {
        if ((found[i].flags & extent_unwritten) == 0) got.nbytes += found[i].nbytes;
      }
      names.give_back(some.kept);
      if (some.nbytes == 0) return got;
      offset = some.position;
    }
  }
  // All of it, few entries at a time.
  GPUFS_DEVICE name_answer list(const NameSpace& names, const char* path) const {
    name_answer got{};
    for (std::int64_t position = 0;;) {
      const gpufs::names::listing some = names.list(path, position, 48);
      got.error = some.error;
      if (some.error != 0) return got;
      const std::byte* at = names.bytes_of(some.kept);
      for (const std::byte* const end = at + some.nbytes; at < end;) {
        const auto& entry = *reinterpret_cast<const directory_entry*>(at);
        ++got.nentries;
        got.entries += hash_of_entry(reinterpret_cast<const char*>(&entry + 1), (entry.mode & S_IFMT) == S_IFDIR);
        at += entry.entry_nbytes;
      }
      names.give_back(some.kept);
      if (some.nbytes == 0) return got;
      position = some.position;
    }
  }
};

// The same by POSIX, below a directory of its own. `known` is what the name space should know of opens for writing.
class posix_names {
 public:
  explicit posix_names(std::string root) : root_(std::move(root)) {}
  ~posix_names() {
    for (const auto& f : open_) {
      if (f) ::close(f->fd);
    }
  }

  name_answer play(const name_call& c) {
    const std::string path = at(c.first), other = at(c.second % npaths);
    name_answer got{};
    switch (c.what) {
      case verb::open: {
        const int fd = ::open(path.c_str(), c.flags | O_CLOEXEC, 0666);
        if (fd < 0) return {-errno, 0, 0, 0, 0, 0, 0, 0, 0};
        struct ::stat s {};
        ::fstat(fd, &s);
        if (S_ISDIR(s.st_mode)) {
          ::close(fd);
          return {-EISDIR, 0, 0, 0, 0, 0, 0, 0, 0};
        }
        const auto writer = writer_of(s.st_ino);
        // Who opens a file that is open for writing joins that, whatever it wants of it.
        if (writer) {
          ::close(fd);
          got.known = 1000 + *writer + 1;
          return got;
        }
        const bool reads = (c.flags & O_ACCMODE) == O_RDONLY;
        open_[c.second] = {fd, s.st_ino, !reads};
        std::byte bytes[first_nbytes];
        const ssize_t n = reads ? ::pread(fd, bytes, first_nbytes, 0) : 0;
        const std::uint64_t begin = n > 0 ? hash_of_begin(bytes, static_cast<std::uint64_t>(n)) : 0;
        return {0, s.st_mode, s.st_size, s.st_ino, 0, 0, 0, 0, begin};
      }
      case verb::close:
        ::close(open_[c.second]->fd);
        open_[c.second].reset();
        return got;
      case verb::remove:
      case verb::remove_directory: {
        const bool known = is_written(path), others = any_written() && is_link(path);
        got.error = (c.what == verb::remove ? ::unlink(path.c_str()) : ::rmdir(path.c_str())) != 0 ? -errno : 0;
        got.known = got.error == 0 && known;
        got.others = got.error == 0 && others;
        return got;
      }
      case verb::rename: {
        const bool same = inode_of(path) != 0 && inode_of(path) == inode_of(other);
        const bool known = !same && (is_written(path) || is_written(other)),
                   others = leads_on(path) || (any_written() && is_link(other));
        got.error = ::rename(path.c_str(), other.c_str()) != 0 ? -errno : 0;
        got.known = got.error == 0 && known;
        got.others = got.error != 0 ? 0 : same ? 2 : others;
        return got;
      }
      case verb::make_directory:
        got.error = ::mkdir(path.c_str(), 0755) != 0 ? -errno : 0;
        return got;
      case verb::stat: {
        struct ::stat s {};
        if (::stat(path.c_str(), &s) != 0) return {-errno, 0, 0, 0, 0, 0, 0, 0, 0};
        return {0, s.st_mode, s.st_size, s.st_ino, writer_of(s.st_ino).has_value(), 0, 0, 0, 0};
      }
      case verb::list: {
        DIR* const directory = ::opendir(path.c_str());
        if (directory == nullptr) return {-errno, 0, 0, 0, 0, 0, 0, 0, 0};
        while (const dirent* entry = ::readdir(directory)) {
          const std::string name = entry->d_name;
          if (name == "." || name == "..") continue;
          struct ::stat s {};
          ::lstat((path + "/" + name).c_str(), &s);
          ++got.nentries;
          got.entries += hash_of_entry(name.c_str(), S_ISDIR(s.st_mode));
        }
        ::closedir(directory);
        return got;
      }
      case verb::sync:
        got.error = ::fsync(open_[c.second]->fd) != 0 ? -errno : 0;
        return got;
      case verb::set_size:
        got.error = ::ftruncate(open_[c.second]->fd, c.nbytes) != 0 ? -errno : 0;
        return got;
      case verb::extents:
        return data_nbytes(open_[c.second]->fd);
    }
    return got;
  }
  bool is_open(std::uint32_t which) const { return open_[which].has_value(); }
  bool is_written(std::uint32_t which) const { return open_[which] && open_[which]->writes; }

 private:
  // Of whole blocks, as SEEK_DATA has them.
  static name_answer data_nbytes(int fd) {
    name_answer got{};
    fiemap probe{};
    probe.fm_length = FIEMAP_MAX_OFFSET;
    if (::ioctl(fd, FS_IOC_FIEMAP, &probe) != 0) return {-errno, 0, 0, 0, 0, 0, 0, 0, 0};
    struct ::stat s {};
    ::fstat(fd, &s);
    for (off_t at = 0; (at = ::lseek(fd, at, SEEK_DATA)) >= 0;) {
      const off_t end = ::lseek(fd, at, SEEK_HOLE), block = s.st_blksize;
      got.nbytes += (end + block - 1) / block * block - at;
      at = end;
    }
    return got;
  }

  struct opened {
    int fd;
    std::uint64_t inode;
    bool writes;
  };
  std::string at(std::uint32_t path) const { return root_ + "/" + all_paths[path]; }
  std::optional<std::uint32_t> writer_of(std::uint64_t inode) const {
    for (std::uint32_t i = 0; i < nfiles; ++i) {
      if (open_[i] && open_[i]->writes && open_[i]->inode == inode) return i;
    }
    return std::nullopt;
  }
  static std::uint64_t inode_of(const std::string& path) {
    struct ::stat s {};
    return ::lstat(path.c_str(), &s) == 0 ? s.st_ino : 0;
  }
  static std::uint32_t type_of(const std::string& path) {
    struct ::stat s {};
    return ::lstat(path.c_str(), &s) == 0 ? s.st_mode & S_IFMT : 0;
  }
  static bool is_link(const std::string& path) { return type_of(path) == S_IFLNK; }
  // Other paths lead through it.
  static bool leads_on(const std::string& path) { return is_link(path) || type_of(path) == S_IFDIR; }
  bool any_written() const {
    return std::any_of(std::begin(open_), std::end(open_), [](const auto& f) { return f && f->writes; });
  }
  bool is_written(const std::string& path) const { return writer_of(inode_of(path)).has_value(); }

  std::string root_;
  std::optional<opened> open_[nfiles];
};

// A directory as both begin with.
void fill(const temp_dir& dir) {
  dir.add("a", 1000, 1);
  dir.add("d/a", 50, 2);
  dir.add("d/c", 0, 3);
  if (::symlink("d", (dir / "link").c_str()) != 0) fail_errno("symlink");
}

// What the name space answers otherwise than POSIX, in some program; or nothing.
template <gpufs::names::name_space NameSpace>
std::optional<std::string> first_difference(std::uint64_t nprograms) {
  device_buffer<char*> paths(npaths);
  std::vector<device_buffer<char>> texts;
  std::vector<char*> places;
  for (const char* path : all_paths) {
    texts.push_back(simt::device_string(path));
    places.push_back(texts.back().get());
  }
  paths.write(places);
  for (std::uint64_t n = 0; n < nprograms; ++n) {
    random_source draw(n);
    const temp_dir real, model;
    fill(real);
    fill(model);
    let_file_times_pass();
    posix_names posix(model.path());
    std::vector<name_call> calls;
    std::vector<name_answer> wanted;
    for (int i = 0; i < 60; ++i) {
      name_call c{};
      c.what = static_cast<verb>(draw.between(0, 10));
      c.first = static_cast<std::uint32_t>(draw.between(0, npaths - 1));
      c.second = static_cast<std::uint32_t>(draw.between(0, npaths - 1));
      c.nbytes = static_cast<std::int64_t>(draw.between(0, 5000));
      if (c.what == verb::open || c.what == verb::close || c.what >= verb::sync) {
        c.second %= nfiles;
        if ((c.what == verb::open) == posix.is_open(c.second)) continue;
        if (c.what >= verb::sync && !posix.is_written(c.second)) continue;
      }
      if (c.what == verb::open) {
        constexpr int flags[] = {O_RDONLY,           O_RDWR, O_RDWR | O_CREAT, O_WRONLY | O_CREAT | O_EXCL, O_RDWR | O_CREAT,
                                 O_RDWR | O_NOFOLLOW};
        c.flags = flags[draw.between(0, std::size(flags) - 1)];
      }
      calls.push_back(c);
      wanted.push_back(posix.play(c));
    }
    for (std::uint32_t which = 0; which < nfiles; ++which) {
      if (!posix.is_open(which)) continue;
      calls.push_back({verb::close, 0, which, 0, 0});
      wanted.push_back(posix.play(calls.back()));
    }
    mount_options o = writing_options(512, 16);
    o.io_timeout = std::chrono::seconds(20);
    const mount m(real.path(), o);
    const std::span<const name_call> program(calls);
    device_buffer<name_call> in(program);
    device_buffer<name_answer> out(calls.size());
    simt::launch({.grid = 1, .block = 32},
                 play_names<NameSpace>{m.ref(), paths.get(), in.get(), static_cast<std::uint32_t>(calls.size()), out.get()});
    const auto got = out.read();
    // Two directories number their files differently: each inode of one is one of the other's.
    std::map<std::uint64_t, std::uint64_t> same, back;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const name_answer &g = got[i], &w = wanted[i];
      const std::string where = ", program " + std::to_string(n) + ", call " + std::to_string(i) + ", verb " +
                                std::to_string(static_cast<int>(calls[i].what)) + " of " + all_paths[calls[i].first];
      if (g.error != w.error) return "error " + std::to_string(g.error) + " for " + std::to_string(w.error) + where;
      if (w.error != 0) continue;
      if (calls[i].what >= verb::close && calls[i].what <= verb::rename) {
        same.clear();  // the number of a file that is gone may be another's from now on
        back.clear();
      }
      if (g.known != w.known)
        return "who writes: " + std::to_string(g.known) + " for " + std::to_string(w.known) + where + ", and " +
               all_paths[calls[i].second % npaths];
      if (g.others != w.others) return "what else leads elsewhere: " + std::to_string(g.others) + where;
      if (g.mode != w.mode) return "mode" + where;
      if (g.begin != 0 && g.begin != w.begin) return "beginning" + where;  // none is brought that is not at hand
      if (!S_ISDIR(w.mode) && g.nbytes != w.nbytes) return "size" + where;
      if (g.nentries != w.nentries || g.entries != w.entries) return "entries" + where;
      if ((g.inode == 0) != (w.inode == 0)) return "inode" + where;
      if (g.inode != 0 &&
          (same.emplace(g.inode, w.inode).first->second != w.inode || back.emplace(w.inode, g.inode).first->second != g.inode)) {
        return "identity" + where;
      }
    }
    if (m.counters().host_opens != m.counters().host_closes) return "files are left open, program " + std::to_string(n);
  }
  return std::nullopt;
}

TEST(each_name_space, does_what_posix_does) {
  const auto difference = first_difference<mount_names>(fewer(24));
  EXPECT_FALSE(difference) << *difference;
}

// As right as the mount's. Its answers' bytes lie in no request slot, but in memory of its own.
class keeps_copies : public mount_names {
 public:
  using mount_names::mount_names;
  template <class Path>
  GPUFS_DEVICE gpufs::names::opened open(const Path& path, const gpufs::names::open_call& how, const simt::deadline& until) const {
    gpufs::names::opened got = mount_names::open(path, how, until);
    if (got.error == 0 && got.nbytes != 0) copy(got.kept, got.nbytes);
    return got;
  }
  GPUFS_DEVICE gpufs::names::listing list(const char* path, std::int64_t position, std::uint32_t nbytes) const {
    return copied(mount_names::list(path, position, nbytes));
  }
  GPUFS_DEVICE gpufs::names::listing extents(std::uint32_t id, std::int64_t offset, std::uint32_t nbytes) const {
    return copied(mount_names::extents(id, offset, nbytes));
  }
  GPUFS_DEVICE const std::byte* bytes_of(gpufs::names::kept_bytes kept) const { return kept.low == count_ ? bytes_ : nullptr; }
  // From now on nobody reads there what was given back, or never kept.
  GPUFS_DEVICE void give_back(gpufs::names::kept_bytes kept) const { count_ += kept.low == count_; }

 private:
  GPUFS_DEVICE gpufs::names::listing copied(gpufs::names::listing got) const {
    if (got.error == 0) copy(got.kept, static_cast<std::uint64_t>(got.nbytes));
    return got;
  }
  GPUFS_DEVICE void copy(gpufs::names::kept_bytes& kept, std::uint64_t nbytes) const {
    const std::byte* const from = mount_names::bytes_of(kept);
    for (std::uint64_t i = 0; i < nbytes && i < first_nbytes; ++i) bytes_[i] = from[i];
    mount_names::give_back(kept);
    kept = {count_, 0};
  }

  alignas(8) mutable std::byte bytes_[first_nbytes];
  mutable std::uint32_t count_ = 7;  // of what was given back
};

TEST(each_name_space, may_keep_its_bytes_where_it_likes) {
  const auto difference = first_difference<keeps_copies>(fewer(24));
  EXPECT_FALSE(difference) << *difference;
}

// --- What is no name space -----------------------------------------------------------------------------------------------

struct gives_nothing_back : mount_names {
  void give_back(gpufs::names::kept_bytes) const = delete;
};
struct takes_no_path_bytes : mount_names {
  void open(gpufs::names::path_bytes, const gpufs::names::open_call&, const simt::deadline&) const = delete;
};
static_assert(!gpufs::names::name_space<gives_nothing_back> && !gpufs::names::name_space<takes_no_path_bytes>);

// --- Name spaces that are wrong ------------------------------------------------------------------------------------------

struct removes_nothing : mount_names {
  using mount_names::mount_names;
  GPUFS_DEVICE gpufs::names::lost_names remove(const char* path, std::uint32_t) const {
    return {stat(path).error, false, false, {}};
  }
};
struct keeps_the_old_name : mount_names {
  using mount_names::mount_names;
  GPUFS_DEVICE gpufs::names::lost_names rename(const char*, const char*) const { return {}; }
};
struct forgets_who_writes : mount_names {
  using mount_names::mount_names;
  GPUFS_DEVICE gpufs::names::lost_names remove(const char* path, std::uint32_t flags) const {
    gpufs::names::lost_names lost = mount_names::remove(path, flags);
    lost.places[0] = lost.places[1] = 0;
    return lost;
  }
};
struct forgets_what_leads_on : mount_names {
  using mount_names::mount_names;
  GPUFS_DEVICE gpufs::names::lost_names rename(const char* from, const char* to) const {
    gpufs::names::lost_names lost = mount_names::rename(from, to);
    lost.others_too = false;
    return lost;
  }
};
struct says_half_the_size : mount_names {
  using mount_names::mount_names;
  GPUFS_DEVICE gpufs::names::status stat(const char* path) const {
    gpufs::names::status s = mount_names::stat(path);
    s.nbytes /= 2;
    return s;
  }
};
struct lists_the_first_part : mount_names {
  using mount_names::mount_names;
  GPUFS_DEVICE gpufs::names::listing list(const char* path, std::int64_t position, std::uint32_t nbytes) const {
    gpufs::names::listing some = mount_names::list(path, position, nbytes);
    if (some.error == 0 && position != 0) some.nbytes = 0;
    return some;
  }
};
struct brings_another_beginning : mount_names {
  using mount_names::mount_names;
  template <class Path>
  GPUFS_DEVICE gpufs::names::opened open(const Path& path, const gpufs::names::open_call& how, const simt::deadline& until) const {
    gpufs::names::opened got = mount_names::open(path, how, until);
    if (got.nbytes > 1) --got.nbytes;
    return got;
  }
};
struct never_cuts : mount_names {
  using mount_names::mount_names;
  GPUFS_DEVICE int set_size(std::uint32_t, std::int64_t) const { return 0; }
};
struct knows_no_extents : mount_names {
  using mount_names::mount_names;
  GPUFS_DEVICE gpufs::names::listing extents(std::uint32_t id, std::int64_t offset, std::uint32_t nbytes) const {
    gpufs::names::listing some = mount_names::extents(id, offset, nbytes);
    if (some.error == 0) some.nbytes = 0;
    return some;
  }
};
struct makes_no_directory : mount_names {
  using mount_names::mount_names;
  GPUFS_DEVICE int make_directory(const char*, std::uint32_t) const { return 0; }
};
struct leaves_files_open : mount_names {
  using mount_names::mount_names;
  GPUFS_DEVICE gpufs::names::closed close(std::uint32_t, std::uint64_t) const { return {true, 0}; }
};

// Whether files of temporary directories have any.
bool has_extents() {
  const temp_dir dir;
  dir.add("a", 1, 1);
  const int fd = ::open((dir / "a").c_str(), O_RDONLY | O_CLOEXEC);
  fiemap probe{};
  probe.fm_length = FIEMAP_MAX_OFFSET;
  const bool has = ::ioctl(fd, FS_IOC_FIEMAP, &probe) == 0;
  ::close(fd);
  return has;
}

template <gpufs::names::name_space NameSpace>
void expect_difference(const char* name) {
  EXPECT_TRUE(first_difference<NameSpace>(20)) << name << " is not found";
}

TEST(each_name_space, that_is_wrong_is_found) {
  expect_leftovers_but_pins("wrong name spaces may close no file");
  expect_difference<removes_nothing>("removes_nothing");
  expect_difference<keeps_the_old_name>("keeps_the_old_name");
  expect_difference<forgets_who_writes>("forgets_who_writes");
  expect_difference<forgets_what_leads_on>("forgets_what_leads_on");
  expect_difference<says_half_the_size>("says_half_the_size");
  expect_difference<lists_the_first_part>("lists_the_first_part");
  expect_difference<brings_another_beginning>("brings_another_beginning");
  expect_difference<never_cuts>("never_cuts");
  if (has_extents()) expect_difference<knows_no_extents>("knows_no_extents");
  expect_difference<makes_no_directory>("makes_no_directory");
  expect_difference<leaves_files_open>("leaves_files_open");
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
