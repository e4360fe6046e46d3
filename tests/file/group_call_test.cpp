// SPDX-License-Identifier: Apache-2.0
// The CPU machine stops a launch in which the lanes of a group call with different arguments, or with memory that one of them has
// for itself: CUDA would take the leader's word, or read another lane's stack.
#include "file/writing.hpp"
#include "gpufs/par/gather.hpp"
#include "gpufs/par/scatter.hpp"
#include "leftovers.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

template <class Kernel>
std::string error_of(const Kernel& kernel, unsigned threads = 32) {
  try {
    simt::launch({.grid = 1, .block = threads, .schedule = {.seed = 3}}, kernel);
  } catch (const simt::launch_error& e) {
    return e.what();
  }
  return "";
}
void expect_says(const std::string& text, const std::string& part) { EXPECT_NE(text.find(part), std::string::npos) << text; }

enum class verb {
  open,
  pread,
  map_page,
  unmap_page,
  fstat,
  pwrite,
  append,
  append_each,
  fsync,
  ftruncate,
  map_writable,
  msync,
  unmap_writable,
  close,
  unlink,
  rmdir,
  rename,
  mkdir,
  stat,
  read_directory,
  read_extents,
  open_all,
  close_all,
  file_names,
  gather,
  scatter,
};

// What of a call is wrong in lane 5 of the group.
enum class mistake {
  none,
  file,
  own_memory,
  address,
  nbytes,
  offset,
  flags,
  path,
  second_path,
  other_call,
  no_call,
};

constexpr unsigned odd_lane = 5;

struct room {
  std::byte data[2][4096];
  const char* names[8];
  file_number numbers[2][8];
  int results[2][8];
};

template <class Group>
struct call_kernel {
  mount_ref fs;
  mount_ref other_fs;
  verb what;
  mistake how;
  room* global;
  std::int64_t* result;  // of each thread

  GPUFS_DEVICE void operator()() const {
    const Group group{};
    if (simt::thread_rank() >= group.size()) return;
    const bool odd = simt::thread_rank() == odd_lane;
    const auto is = [&](mistake m) { return how == m && odd; };
    const file made = open(group, fs, "file", O_RDWR | O_CREAT);
    const file second = open(group, fs, "second", O_RDWR | O_CREAT);
    const file f = is(mistake::file) ? second : made;
    std::byte own[4096];
    std::byte* data = is(mistake::own_memory) ? own : global->data[is(mistake::address)];
    const std::size_t nbytes = is(mistake::nbytes) ? 64 : 100;
    const std::int64_t offset = is(mistake::offset) ? 512 : 0;
    const int flags = is(mistake::flags) ? O_WRONLY : O_RDWR;
    char own_path[] = "a";
    const char* path = is(mistake::own_memory) ? own_path : is(mistake::path) ? "b" : "a";
    const char* to = is(mistake::second_path) ? "to" : "c";
    pwrite(group, made, global->data[1], 1024, 0);
    group.sync();
    if (is(mistake::no_call)) return;
    if (is(mistake::other_call)) {
      fsync(group, f);
      return;
    }
    result[simt::thread_rank()] = run(group, f, data, nbytes, offset, flags, path, to);
    group.sync();
    if (what != verb::close) close(group, made);
    close(group, second);
  }

  GPUFS_DEVICE std::int64_t run(Group group, const file& f, std::byte* data, std::size_t nbytes, std::int64_t offset, int flags,
                                const char* path, const char* to) const {
    const bool odd = simt::thread_rank() == odd_lane;
    const std::byte own_record[5] = {};
    switch (what) {
      case verb::open: {
        const file opened = open(group, fs, path, flags | O_CREAT);
        return opened.error() != 0 ? opened.error() : close(group, opened);
      }
      case verb::pread:
        return pread(group, f, data, nbytes, offset);
      case verb::map_page:
      case verb::unmap_page: {
        gpufs::mapped_page mapped = map_page(group, f, offset);
        if (what == verb::unmap_page && how == mistake::address) {
          gpufs::mapped_page again = map_page(group, f, 512);
          const int error = unmap_page(group, std::move(odd ? mapped : again));
          return error != 0 ? error : unmap_page(group, std::move(odd ? again : mapped));
        }
        return unmap_page(group, std::move(mapped));
      }
      case verb::fstat:
        return fstat(group, f).error;
      case verb::pwrite:
        return pwrite(group, f, data, nbytes, offset);
      case verb::append:
        return append(group, f, data, nbytes);
      case verb::append_each:  // what lanes have of their own may differ, also where it is
        return append_each(group, f, odd ? own_record : data, odd ? 5 : nbytes);
      case verb::fsync:
        return fsync(group, f, odd && how == mistake::flags ? durability::data : durability::page_cache);
      case verb::ftruncate:
        return ftruncate(group, f, static_cast<std::int64_t>(nbytes));
      case verb::map_writable:
      case verb::msync:
      case verb::unmap_writable: {
        mapped_page mapped = map_page<std::byte>(group, f, offset);
        if (what != verb::map_writable && how == mistake::address) {
          mapped_page again = map_page<std::byte>(group, f, 512);
          mapped_page<std::byte>& one = odd ? mapped : again;
          const int error = what == verb::msync ? msync(group, one) : unmap_page(group, std::move(one));
          return error != 0 ? error : unmap_page(group, std::move(odd ? again : mapped));
        }
        return unmap_page(group, std::move(mapped));
      }
      case verb::close:
        return close(group, f);
      case verb::unlink:
        return unlink(group, fs, path);
      case verb::rmdir:
        return rmdir(group, fs, path);
      case verb::rename:
        return rename(group, fs, path, to);
      case verb::mkdir:
        return mkdir(group, fs, path, odd && how == mistake::flags ? 0700 : 0777);
      case verb::stat:
        return stat(group, fs, path).error;
      case verb::read_directory: {
        return read_directory(group, fs, ".", data, static_cast<std::uint32_t>(nbytes * 40), offset).nbytes;
      }
      case verb::read_extents: {
        return read_extents(group, f, reinterpret_cast<extent*>(data), static_cast<std::uint32_t>(nbytes), offset).n;
      }
      case verb::open_all: {
        const file_number* numbers = global->numbers[odd && how == mistake::address];
        const char* directory = odd && how == mistake::path ? "" : ".";
        const auto n = static_cast<std::uint32_t>(nbytes == 64 ? 1 : 2);
        file_number own[8];
        file_number* to_write = odd && how == mistake::own_memory ? own : const_cast<file_number*>(numbers);
        const bool good = open_all(group, fs, directory, global->names, n, flags | O_CREAT, to_write);
        return good && close_all(group, fs, to_write, n) ? 0 : -1;
      }
      case verb::close_all: {
        open_all(group, fs, ".", global->names, 2, O_RDWR | O_CREAT, global->numbers[0]);
        open_all(group, fs, ".", global->names, 2, O_RDWR | O_CREAT, global->numbers[1]);
        int own[8];
        int* results = odd && how == mistake::own_memory ? own : global->results[odd && how == mistake::address];
        const bool good = close_all(group, fs, global->numbers[odd && how == mistake::file], nbytes == 64 ? 1 : 2, results);
        return close_all(group, fs, global->numbers[1], 2) && good ? 0 : -1;
      }
      case verb::file_names: {
        const std::int64_t n = read_directory(group, fs, ".", global->data[0], 4096).nbytes;
        const char* own[8];
        const char** names = odd && how == mistake::own_memory ? own : global->names;
        return file_names(group, global->data[0], n, names, nbytes == 64 ? 1 : 8);
      }
      case verb::gather:
      case verb::scatter: {
        const std::int32_t* const numbers = global->results[odd && how == mistake::path];
        const row_layout rows{.row_nbytes = nbytes, .nrows = 8, .begin = static_cast<std::uint64_t>(offset)};
        return (what == verb::gather ? gather(group, f, rows, numbers, 2, data) : scatter(group, f, rows, numbers, 2, data)).error;
      }
    }
    return -1;
  }
};

class group_calls : public ::testing::Test {
 protected:
  temp_dir dir_, other_dir_;
  device_buffer<room> room_{1};
  device_buffer<std::int64_t> results_{64};

  template <class Group>
  std::string run(verb what, mistake how, unsigned threads = 32) {
    const mount_options options = writing();
    const mount fs(dir_.path(), options), other(other_dir_.path(), options);
    for (const char* name : {"a", "b", "c", "to"}) std::filesystem::remove_all(dir_ / name);
    if (what == verb::rmdir) {
      std::filesystem::create_directory(dir_ / "a");
    } else if (what == verb::unlink || what == verb::rename || what == verb::stat) {
      dir_.add("a", 10, 1);
    }
    room_.get()->names[0] = "n0";  // the CPU machine's device memory is the host's
    room_.get()->names[1] = "n1";
    return error_of(call_kernel<Group>{fs.ref(), other.ref(), what, how, room_.get(), results_.get()}, threads);
  }
};

TEST_F(group_calls, equal_arguments) {
  for (int v = 0; v <= static_cast<int>(verb::scatter); ++v) {
    const auto what = static_cast<verb>(v);
    EXPECT_EQ(run<simt::warp>(what, mistake::none), "") << v;
    for (const std::int64_t result : std::vector<std::int64_t>(results_.get(), results_.get() + 32)) EXPECT_GE(result, 0) << v;
    EXPECT_EQ(run<simt::tile<8>>(what, mistake::none), "") << v;
    EXPECT_EQ(run<simt::block>(what, mistake::none, 64), "") << v;
  }
}

struct wrong {
  verb what;
  mistake how;
  const char* name;
  const char* argument;
};
const wrong wrongs[] = {
    {verb::open, mistake::path, "open", "path is \"a\" by block 0 warp 0 lane 0, \"b\" by lane 5"},
    {verb::open, mistake::flags, "open", "flags is "},
    {verb::pread, mistake::file, "pread", "file is "},
    {verb::pread, mistake::address, "pread", "dst is 0x"},
    {verb::pread, mistake::nbytes, "pread", "nbytes is 100 by block 0 warp 0 lane 0, 64 by lane 5"},
    {verb::pread, mistake::offset, "pread", "offset is 0 by block 0 warp 0 lane 0, 512 by lane 5"},
    {verb::map_page, mistake::file, "map_page", "file is "},
    {verb::map_page, mistake::offset, "map_page", "offset is 0 "},
    {verb::unmap_page, mistake::address, "unmap_page", "page is 0x"},
    {verb::fstat, mistake::file, "fstat", "file is "},
    {verb::pwrite, mistake::file, "pwrite", "file is "},
    {verb::pwrite, mistake::address, "pwrite", "src is 0x"},
    {verb::pwrite, mistake::nbytes, "pwrite", "nbytes is 100"},
    {verb::pwrite, mistake::offset, "pwrite", "offset is 0 "},
    {verb::append, mistake::file, "append", "file is "},
    {verb::append, mistake::address, "append", "src is 0x"},
    {verb::append, mistake::nbytes, "append", "nbytes is 100"},
    {verb::append_each, mistake::file, "append_each", "file is "},
    {verb::fsync, mistake::file, "fsync", "file is "},
    {verb::fsync, mistake::flags, "fsync", "how is 0 by block 0 warp 0 lane 0, 1 by lane 5"},
    {verb::ftruncate, mistake::file, "ftruncate", "file is "},
    {verb::ftruncate, mistake::nbytes, "ftruncate", "nbytes is 100 "},
    {verb::map_writable, mistake::file, "map_page", "file is "},
    {verb::map_writable, mistake::offset, "map_page", "offset is 0 "},
    {verb::msync, mistake::address, "msync", "page is 0x"},
    {verb::unmap_writable, mistake::address, "unmap_page", "page is 0x"},
    {verb::close, mistake::file, "close", "file is "},
    {verb::unlink, mistake::path, "unlink", "path is \"a\" "},
    {verb::rmdir, mistake::path, "rmdir", "path is \"a\" "},
    {verb::rename, mistake::path, "rename", "from is \"a\" "},
    {verb::rename, mistake::second_path, "rename", "to is \"c\" by block 0 warp 0 lane 0, \"to\" by lane 5"},
    {verb::mkdir, mistake::path, "mkdir", "path is \"a\" "},
    {verb::mkdir, mistake::flags, "mkdir", "mode is 511 by block 0 warp 0 lane 0, 448 by lane 5"},
    {verb::stat, mistake::path, "stat", "path is \"a\" "},
    {verb::read_directory, mistake::address, "read_directory", "out is 0x"},
    {verb::read_directory, mistake::nbytes, "read_directory", "nbytes is 4000"},
    {verb::read_directory, mistake::offset, "read_directory", "position is 0 "},
    {verb::read_extents, mistake::file, "read_extents", "file is "},
    {verb::read_extents, mistake::address, "read_extents", "out is 0x"},
    {verb::read_extents, mistake::nbytes, "read_extents", "n is 100 "},
    {verb::read_extents, mistake::offset, "read_extents", "offset is 0 "},
    {verb::open_all, mistake::path, "open_all", "directory is \".\" by block 0 warp 0 lane 0, \"\" by lane 5"},
    {verb::open_all, mistake::flags, "open_all", "flags is "},
    {verb::open_all, mistake::nbytes, "open_all", "n is 2 "},
    {verb::open_all, mistake::address, "open_all", "numbers is 0x"},
    {verb::close_all, mistake::file, "close_all", "numbers is 0x"},
    {verb::close_all, mistake::nbytes, "close_all", "n is 2 "},
    {verb::close_all, mistake::address, "close_all", "results is 0x"},
    {verb::file_names, mistake::nbytes, "file_names", "most is 8 "},
    {verb::gather, mistake::file, "gather", "file is "},
    {verb::gather, mistake::path, "gather", "numbers is 0x"},
    {verb::gather, mistake::address, "gather", "dst is 0x"},
    {verb::gather, mistake::nbytes, "gather", "row_nbytes is 100 "},
    {verb::gather, mistake::offset, "gather", "begin is 0 "},
    {verb::scatter, mistake::file, "scatter", "file is "},
    {verb::scatter, mistake::path, "scatter", "numbers is 0x"},
    {verb::scatter, mistake::address, "scatter", "src is 0x"},
    {verb::scatter, mistake::nbytes, "scatter", "row_nbytes is 100 "},
    {verb::scatter, mistake::offset, "scatter", "begin is 0 "},
};

TEST_F(group_calls, different_arguments) {
  expect_leftovers("the kernels are stopped");
  for (const wrong& w : wrongs) {
    for (const std::string& text :
         {run<simt::warp>(w.what, w.how), run<simt::tile<8>>(w.what, w.how), run<simt::block>(w.what, w.how, 64)}) {
      expect_says(text, "lanes of one group call gpufs::" + std::string(w.name) + " with different arguments: ");
      expect_says(text, w.argument);
      expect_says(text, "lanes {5}");
      expect_says(text, "seed 3");
    }
  }
}

TEST_F(group_calls, memory_of_one_lane) {
  expect_leftovers("the kernels are stopped");
  const wrong own[] = {
      {verb::open, mistake::own_memory, "open", "(path)"},
      {verb::pread, mistake::own_memory, "pread", "(dst)"},
      {verb::pwrite, mistake::own_memory, "pwrite", "(src)"},
      {verb::append, mistake::own_memory, "append", "(src)"},
      {verb::unlink, mistake::own_memory, "unlink", "(path)"},
      {verb::rmdir, mistake::own_memory, "rmdir", "(path)"},
      {verb::rename, mistake::own_memory, "rename", "(from)"},
      {verb::mkdir, mistake::own_memory, "mkdir", "(path)"},
      {verb::stat, mistake::own_memory, "stat", "(path)"},
      {verb::read_directory, mistake::own_memory, "read_directory", "(out)"},
      {verb::read_extents, mistake::own_memory, "read_extents", "(out)"},
      {verb::open_all, mistake::own_memory, "open_all", "(numbers)"},
      {verb::close_all, mistake::own_memory, "close_all", "(results)"},
      {verb::file_names, mistake::own_memory, "file_names", "(names)"},
      {verb::gather, mistake::own_memory, "gather", "(dst)"},
      {verb::scatter, mistake::own_memory, "scatter", "(src)"},
  };
  for (const wrong& w : own) {
    for (const std::string& text :
         {run<simt::warp>(w.what, w.how), run<simt::tile<8>>(w.what, w.how), run<simt::block>(w.what, w.how, 64)}) {
      expect_says(text,
                  "block 0 warp 0 lane 5 calls gpufs::" + std::string(w.name) + " with an address on its own stack " + w.argument);
    }
  }
}

TEST_F(group_calls, different_calls) {
  expect_leftovers("the kernels are stopped");
  for (const std::string& text :
       {run<simt::warp>(verb::pread, mistake::other_call), run<simt::block>(verb::pread, mistake::other_call, 64)}) {
    expect_says(text,
                "lanes of one group make different calls: gpufs::pread by block 0 warp 0 lane 0, gpufs::fsync by lane 5; "
                "unlike the first: ");
  }
  const std::string gone = run<simt::warp>(verb::pread, mistake::no_call);
  expect_says(gone, "waits in broadcast (gpufs::pread) for lanes {");
  expect_says(gone, "lane 5 has exited");
}

struct map_over_a_page {
  mount_ref fs;
  const char* path;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    mapped_page page = map_page(warp, f, 0);
    page = map_page(warp, f, 512);
  }
};

TEST_F(group_calls, write_over_a_mapped_page) {
  expect_leftovers("the kernel is stopped");
  dir_.add("page", 1024, 1);
  const mount fs(dir_.path());
  const device_buffer<char> path(std::vector<char>{'p', 'a', 'g', 'e', '\0'});
  std::string text;
  try {
    simt::launch({.grid = 1, .block = 32}, map_over_a_page{fs.ref(), path.get()});
  } catch (const simt::launch_error& error) {
    text = error.what();
  }
  expect_says(text, "writes over a page that is still mapped");
}

// A thread's own memory is its own business; so is where a text lies that all lanes have.
struct text {
  char c[8];
};
struct own_memory_kernel {
  mount_ref fs;
  const text* paths;  // of each thread, in the device's memory
  std::int64_t* result;
  GPUFS_DEVICE void operator()() const {
    const unsigned me = simt::thread_rank();
    char path[8], bytes[10];
    for (unsigned i = 0; i < 8; ++i) path[i] = paths[me].c[i];
    const file alone = open(this_thread(), fs, path);
    result[me] = pread(this_thread(), alone, bytes, sizeof bytes, 0);
    close(this_thread(), alone);
    const file together = open(this_warp(), fs, paths[me].c);
    result[me] += together.error();
    close(this_warp(), together);
  }
};
TEST_F(group_calls, what_is_permitted) {
  dir_.add("read", 10, 1);
  device_buffer<text> paths(32);
  for (unsigned i = 0; i < 32; ++i) std::strcpy(paths.get()[i].c, "read");
  const mount fs(dir_.path());
  EXPECT_EQ(error_of(own_memory_kernel{fs.ref(), paths.get(), results_.get()}), "");
  for (unsigned i = 0; i < 32; ++i) EXPECT_EQ(results_.get()[i], 10);
  expect_leftovers("the next kernel is stopped");
  // But not another text, wherever it lies, and be it a beginning of the other's.
  paths.get()[31].c[3] = '\0';
  expect_says(error_of(own_memory_kernel{fs.ref(), paths.get(), results_.get()}),
              "path is \"read\" by block 0 warp 0 lane 0, \"rea\" by lane 31; unlike the first: lanes {31}");
}

struct mounts_kernel {
  mount_ref one, other;
  GPUFS_DEVICE void operator()() const {
    const file f = open(this_warp(), simt::lane_id() < 16 ? one : other, "read");
    close(this_warp(), f);
  }
};
TEST_F(group_calls, two_mounts) {
  const mount fs(dir_.path()), other(other_dir_.path());
  const std::string text = error_of(mounts_kernel{fs.ref(), other.ref()});
  expect_says(text, "gpufs::open with different arguments: mount is 0x");
  expect_says(text, "unlike the first: lanes {16 - 31}");
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
