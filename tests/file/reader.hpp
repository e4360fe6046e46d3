// SPDX-License-Identifier: Apache-2.0
// A kernel whose groups read random ranges of one file and check every byte on the device.
#pragma once
#include "file/script.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

struct reader_result {
  std::uint32_t wrong;        // bytes
  std::uint32_t failed;       // calls that did not give what they should
  std::int64_t last_failure;  // the result of one of them
  std::uint32_t running;      // groups that have opened the file
  std::uint32_t done;         // groups that have finished
};

struct reader {
  mount_ref fs;
  const char* path;
  std::uint64_t file_nbytes;
  std::uint64_t hole;  // the file is zero up to here, content(content_seed) beyond
  std::uint64_t content_seed;
  std::uint64_t first, end;  // reads begin in [first, end)
  std::uint64_t draw_seed;
  std::uint32_t calls;  // each group's
  std::uint32_t max_nbytes;
  group_kind kind;
  std::byte* scratch;  // max_nbytes for each group
  reader_result* result;

  GPUFS_DEVICE void operator()() const {
    const std::uint32_t me = simt::block_rank() * simt::block_size() + simt::thread_rank();
    switch (kind) {
      case group_kind::thread:
        return work(this_thread(), me);
      case group_kind::tile8:
        return work(this_tile<8>(), me / 8);
      case group_kind::warp:
        return work(this_warp(), me / 32);
      case group_kind::block:
        return work(this_block(), simt::block_rank());
    }
  }

  template <class Group>
  GPUFS_DEVICE void work(Group group, std::uint32_t me) const {
    const file f = open(group, fs, path);
    if (f.error() != 0) {
      if (group.leader()) fail(f.error());
      return;
    }
    if (group.leader()) add(result->running, 1);
    std::byte* mine = scratch + std::size_t{me} * max_nbytes;
    for (std::uint32_t i = 0; i < calls; ++i) {
      const std::uint64_t draw = content_word(draw_seed, std::uint64_t{me} * calls + i);
      const std::uint64_t offset = first + draw % (end - first);
      const std::uint64_t left = file_nbytes - offset;
      const std::uint64_t wanted = 1 + (draw >> 33) % max_nbytes;
      const std::uint64_t nbytes = wanted < left ? wanted : left;
      const std::int64_t got = pread(group, f, mine, wanted, static_cast<std::int64_t>(offset));
      if (got != static_cast<std::int64_t>(nbytes)) {
        if (group.leader()) fail(got);
        continue;
      }
      std::uint32_t wrong = 0;
      for (std::uint64_t k = group.rank(); k < nbytes; k += group.size()) {
        const std::byte expected = offset + k < hole ? std::byte{0} : content_byte(content_seed, offset + k);
        wrong += mine[k] != expected;
      }
      if (wrong != 0) add(result->wrong, wrong);
      group.sync();
    }
    const int error = close(group, f);
    if (group.leader()) {
      if (error != 0) fail(error);
      add(result->done, 1);
    }
  }

  GPUFS_DEVICE static void add(std::uint32_t& counter, std::uint32_t n) {
    simt::atomic_ref<std::uint32_t>(counter).fetch_add(n, std::memory_order_relaxed);
  }
  GPUFS_DEVICE void fail(std::int64_t value) const {
    add(result->failed, 1);
    simt::atomic_ref<std::int64_t>(result->last_failure).store(value, std::memory_order_relaxed);
  }
};

// What a reader needs in memory, and how to run it.
struct reading {
  std::string path;
  std::uint64_t file_nbytes = 0;
  std::uint64_t hole = 0;
  std::uint64_t seed = 0;
  std::uint64_t first = 0, end = 0;  // 0: the whole file
  std::uint32_t calls = 10;
  std::uint32_t max_nbytes = 5000;
  group_kind kind = group_kind::warp;
  simt::launch_config config = {.grid = 2, .block = 64, .schedule = {}};
};

class reading_run {
 public:
  explicit reading_run(const reading& what)
      : what_(what), path_(simt::device_string(what.path)), scratch_(std::size_t{ngroups(what)} * what.max_nbytes), result_(1) {}

  static std::uint32_t ngroups(const reading& what) {
    const unsigned size = what.kind == group_kind::thread  ? 1
                          : what.kind == group_kind::tile8 ? 8
                          : what.kind == group_kind::warp  ? 32
                                                           : what.config.block;
    return what.config.grid * what.config.block / size;
  }
  std::uint32_t ngroups() const { return ngroups(what_); }

  void operator()(const mount_ref& fs, std::uint64_t draw_seed = 1) {
    simt::launch(what_.config, reader{fs, path_.get(), what_.file_nbytes, what_.hole, what_.seed, what_.first,
                                      what_.end == 0 ? what_.file_nbytes : what_.end, draw_seed, what_.calls, what_.max_nbytes,
                                      what_.kind, scratch_.get(), result_.get()});
  }
  // Also while it runs.
  reader_result result() const {
#if GPUFS_ON_CUDA
    return result_.read_one();
#else
    reader_result* r = result_.get();
    const auto word = [](std::uint32_t& w) { return std::atomic_ref<std::uint32_t>(w).load(std::memory_order_relaxed); };
    return {word(r->wrong), word(r->failed), std::atomic_ref<std::int64_t>(r->last_failure).load(std::memory_order_relaxed),
            word(r->running), word(r->done)};
#endif
  }
  void expect_good(const std::string& where = "") const {
    const reader_result r = result();
    EXPECT_EQ(r.wrong, 0u) << where;
    EXPECT_EQ(r.failed, 0u) << where << " last failure " << r.last_failure;
    EXPECT_EQ(r.done, ngroups()) << where;
  }

 private:
  reading what_;
  device_buffer<char> path_;
  device_buffer<std::byte> scratch_;
  device_buffer<reader_result> result_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
