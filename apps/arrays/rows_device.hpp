// SPDX-License-Identifier: Apache-2.0
// Rows by kernels, for the machine that the including source is compiled for.
#pragma once
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/arrays/rows.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/par/row_batch.hpp"

namespace gpufs::apps::arrays {
inline namespace GPUFS_MACHINE {

enum class row_verb : std::uint32_t { read, write, prefetch };

// What calls in streams tell: of each file, in the device's memory, and in pinned memory, which kernels alone write and the host
// only reads, so that nothing that is told is lost.
struct stream_words {
  std::uint64_t failed;  // a row_failure's word, of calls since the last one that ended
  std::uint64_t ended;   // calls
  std::uint64_t ntold;
};
struct told_words {
  std::uint64_t failed;
  std::uint64_t ntold;  // another than before: `failed` is new
};

// Behind a call in its stream. One block.
struct end_call {
  stream_words* words;
  told_words* told;
  std::uint64_t* batch_ended;  // of a batch that the call used; else nullptr

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const std::uint64_t failed =
        simt::atomic_ref<std::uint64_t>(words->failed).exchange(row_failure::none, std::memory_order_relaxed);
    if (failed != row_failure::none) {
      const std::uint64_t n = simt::atomic_ref<std::uint64_t>(words->ntold).fetch_add(1, std::memory_order_relaxed) + 1;
      simt::atomic_ref<std::uint64_t, simt::scope::system>(told->failed).store(failed, std::memory_order_relaxed);
      // Meets check()'s acquire.
      simt::atomic_ref<std::uint64_t, simt::scope::system>(told->ntold).store(n, std::memory_order_release);
    }
    // Meets the copies that `ended` and `is_free` make: what the call did comes before.
    simt::fence(std::memory_order_release, simt::scope::system);
    if (batch_ended != nullptr) simt::atomic_ref<std::uint64_t>(*batch_ended).fetch_add(1, std::memory_order_release);
    simt::atomic_ref<std::uint64_t>(words->ended).fetch_add(1, std::memory_order_release);
  }
};

// Each warp moves rows, or of those that are larger parts.
template <row_verb Verb>
struct move_rows {
  static constexpr std::uint64_t part_nbytes = 64 << 10;
  static std::uint64_t parts_of(std::uint64_t row_nbytes) { return (row_nbytes + part_nbytes - 1) / part_nbytes; }

  file of;
  row_place place;
  std::uint64_t end;    // of the bytes of all rows: the last one is shorter, if it reaches beyond
  std::uint64_t parts;  // of a row
  row_list rows;
  std::byte* memory;      // of row i at i * place.row_nbytes; reads write it, writes read it
  std::uint64_t* failed;  // a row_failure's word

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    for (std::uint64_t i = simt::global_warp_rank(); i < rows.n * parts; i += simt::global_warp_count()) {
      std::uint64_t row = i, from = 0;
      if (parts != 1) {
        row = i / parts;
        from = i % parts * part_nbytes;
      }
      move(warp, row, from);
    }
  }

 private:
  // What row i has from its byte `begin` on, as far as a part goes.
  GPUFS_DEVICE void move(simt::warp warp, std::uint64_t i, std::uint64_t begin) const {
    std::int64_t id = static_cast<std::int64_t>(rows.first + i);
    if (rows.ids != nullptr) id = rows.ids[i];
    if (id < 0) id += static_cast<std::int64_t>(place.nrows);
    std::byte* const at = memory + i * place.row_nbytes + begin;
    std::uint64_t nbytes = place.row_nbytes - begin < part_nbytes ? place.row_nbytes - begin : part_nbytes;
    std::int64_t got = -EDOM;
    if (id >= 0 && static_cast<std::uint64_t>(id) < place.nrows) {
      const std::uint64_t offset = place.begin + static_cast<std::uint64_t>(id) * place.row_nbytes + begin;
      if (end - offset < nbytes) nbytes = end - offset;
      const auto from = static_cast<std::int64_t>(offset);
      if constexpr (Verb == row_verb::read) got = pread(warp, of, at, nbytes, from);
      if constexpr (Verb == row_verb::write) got = pwrite(warp, of, at, nbytes, from);
      if constexpr (Verb == row_verb::prefetch) {
        prefetch(warp, of, from, nbytes);
        return;
      }
    }
    if (got == static_cast<std::int64_t>(nbytes)) return;
    if constexpr (Verb == row_verb::read) {
      for (std::uint64_t k = warp.rank(); k < nbytes; k += warp.size()) at[k] = std::byte{0};
    }
    if (warp.leader()) {
      const simt::atomic_ref<std::uint64_t, simt::scope::system> word(*failed);
      word.fetch_min(row_failure::word(i, got < 0 ? static_cast<int>(got) : -ESTALE), std::memory_order_relaxed);
    }
  }
};

struct sync_rows {
  file of;
  durability how;
  std::uint64_t* error;  // pinned

  GPUFS_DEVICE void operator()() const {
    const int result = fsync(this_block(), of, how);
    if (this_block().leader()) *error = static_cast<std::uint64_t>(-result);
  }
};

// A block opens, reads and closes `a_block` of the files.
struct read_whole_files {
  static constexpr std::uint32_t a_block = 64;
  struct one {
    const char* path;
    std::uint64_t nbytes;
    std::byte* out;
  };

  mount_ref fs;
  const one* files;
  const char* const* paths;
  std::uint32_t n;
  file_number* numbers;
  std::int32_t* errors;

  GPUFS_DEVICE void operator()() const {
    const auto block = this_block();
    const auto warp = this_warp();
    for (std::uint32_t first = simt::block_rank() * a_block; first < n; first += simt::grid_size() * a_block) {
      const std::uint32_t here = n - first < a_block ? n - first : a_block;
      open_all(block, fs, nullptr, paths + first, here, O_RDONLY, numbers + first);
      for (std::uint32_t i = first + simt::warp_rank(); i < first + here; i += block.nwarps()) {
        const int error = read(warp, files[i], file(fs, numbers[i]));
        if (warp.leader()) errors[i] = error;
      }
      close_all(block, fs, numbers + first, here);
    }
  }

 private:
  // 0 or a negative errno.
  static GPUFS_DEVICE int read(simt::warp warp, const one& from, const file& opened) {
    const file_status status = fstat(warp, opened);
    if (status.error != 0) return status.error;
    if (static_cast<std::uint64_t>(status.nbytes) != from.nbytes) return -ESTALE;
    const std::int64_t got = pread(warp, opened, from.out, from.nbytes, 0);
    return got < 0 ? static_cast<int>(got) : static_cast<std::uint64_t>(got) == from.nbytes ? 0 : -ESTALE;
  }
};

constexpr std::uint64_t most_sorted = 1u << 20;  // rows at once: larger batches go by pieces

// Device memory for one call from the host at a time, kept from one to the next: CUDA's free waits for all kernels.
struct row_scratch {
  explicit row_scratch(simt::platform& device) : ids(0, device), bytes(0, device), word(1, device) {}
  static row_scratch& grown(row_scratch& scratch, std::size_t nids, std::size_t nbytes) {
    simt::platform& device = scratch.ids.device();
    if (scratch.ids.size() < nids) scratch.ids = simt::device_array<std::int64_t>(nids, device);
    if (scratch.bytes.size() < nbytes) scratch.bytes = simt::device_array<std::byte>(nbytes, device);
    return scratch;
  }

  // For reads of up to n rows.
  row_batch& batch(const mount& fs, std::uint64_t n) {
    const std::uint64_t wanted = std::min(std::bit_ceil(n), most_sorted);
    if (batch_ == nullptr || batched_nrows < wanted) {
      batched_nrows = wanted;
      batch_ = std::make_unique<row_batch>(fs, static_cast<std::uint32_t>(batched_nrows));
      turns_ = std::make_unique<simt::stream>(ids.device());
    }
    return *batch_;
  }
  const simt::stream& turns() const { return *turns_; }

  simt::device_array<std::int64_t> ids;
  simt::device_array<std::byte> bytes;
  simt::pinned_array<std::uint64_t> word;

 private:
  std::uint64_t batched_nrows = 0;
  std::unique_ptr<row_batch> batch_;
  std::unique_ptr<simt::stream> turns_;
};

class scratch_pool {
 public:
  explicit scratch_pool(simt::platform& device) : device_(device) {}

  // Calls work(scratch).
  template <class Work>
  void with(std::size_t nids, std::size_t nbytes, const Work& work) {
    std::unique_ptr<row_scratch> scratch = take();
    row_scratch& grown = row_scratch::grown(*scratch, nids, nbytes);
    grown.word[0] = 0;
    work(grown);
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::unique_ptr<row_scratch> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<row_scratch> last = std::move(free_.back());
        free_.pop_back();
        return last;
      }
    }
    return std::make_unique<row_scratch>(device_);
  }

  simt::platform& device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<row_scratch>> free_;
};

constexpr std::uint64_t piece_nbytes = GPUFS_ON_CUDA ? 64 << 20 : 4 << 20;  // of device memory, where more goes in parts

// Launch bounds: without, the registers of rare paths count, and an SM has one block. With 48 of them, as reads of pages want.
constexpr unsigned most_threads = 256, least_blocks = 5;

inline simt::launch_config config_for(std::uint64_t nwarps) {
  constexpr unsigned block = GPUFS_ON_CUDA ? most_threads : 64;
  constexpr std::uint64_t most_blocks = GPUFS_ON_CUDA ? 4096 : 4;
  const std::uint64_t blocks = (nwarps + block / simt::warp_lanes - 1) / (block / simt::warp_lanes);
  simt::launch_config config{};
  config.grid = static_cast<unsigned>(std::min(blocks, most_blocks));
  config.block = block;
  config.schedule.timeout_ns = 0;  // many rows may take long; what waits inside has its own deadline
  return config;
}

template <class Kernel>
void launch_on(const simt::launch_config& config, const Kernel& kernel, stream_handle stream) {
#if GPUFS_ON_CUDA
  simt::launch<most_threads, least_blocks>(config, kernel, reinterpret_cast<CUstream_st*>(stream));
#else
  simt::launch<most_threads, least_blocks>(config, kernel, *reinterpret_cast<const simt::stream*>(stream));
#endif
}

// Throws what became of a list's row.
[[noreturn]] inline void throw_failure(const row_failure& failure, const std::string& whence, const char* what,
                                       const std::string& path) {
  const int error = -failure.error;
  if (error == EDOM) throw std::out_of_range("index " + std::to_string(failure.place) + whence + " names no row");
  if (error == ESTALE || error == ENXIO)
    throw file_error(ESTALE, std::string("it was truncated, replaced or written by others ") + what, path);
  throw file_error(error, std::strerror(error), path);
}

// The files that a mount has open, as they were then: who opens a path joins those, whose version may be an older one.
class open_versions {
 public:
  // file_error, ESTALE: it is open as it was before it was replaced or, in a mount that does not write, written.
  void join(const std::string& path, const guarded_file& guard, bool writes) {
    struct stat now {};
    if (::fstat(guard.descriptor(), &now) != 0) guard.fail(errno, std::strerror(errno));
    const std::lock_guard lock(mutex_);
    const auto [at, is_new] = open_.try_emplace(path, version{now.st_dev, now.st_ino, now.st_size, now.st_mtim, 0});
    version& first = at->second;
    const bool is_same = now.st_dev == first.device && now.st_ino == first.inode;
    const bool is_written =
        now.st_size != first.nbytes || now.st_mtim.tv_sec != first.mtime.tv_sec || now.st_mtim.tv_nsec != first.mtime.tv_nsec;
    if (!is_new && (!is_same || (is_written && !writes)))
      guard.fail(ESTALE, "this mount has it open as it was before it was replaced or written");
    ++first.nopen;
  }
  void leave(const std::string& path) noexcept {
    const std::lock_guard lock(mutex_);
    const auto at = open_.find(path);
    if (--at->second.nopen == 0) open_.erase(at);
  }

 private:
  struct version {
    dev_t device;
    ino_t inode;
    off_t nbytes;
    timespec mtime;
    std::uint64_t nopen;
  };
  std::mutex mutex_;
  std::map<std::string, version> open_;
};

// One of them, from before its open to after its close.
class joined_version {
 public:
  joined_version(open_versions& all, std::string path, const guarded_file& guard, bool writes) : all_(all), path_(std::move(path)) {
    all_.join(path_, guard, writes);
  }
  ~joined_version() { all_.leave(path_); }
  joined_version(const joined_version&) = delete;
  joined_version& operator=(const joined_version&) = delete;

 private:
  open_versions& all_;
  std::string path_;
};

class device_rows final : public row_file {
 public:
  device_rows(const mount& fs, scratch_pool& scratch, open_versions& versions, const std::string& root, const std::string& path,
              const row_place& place, bool writable)
      : fs_(fs),
        device_(fs.device()),
        scratch_(scratch),
        place_(place),
        guard_(root + "/" + path, writable ? O_RDWR : O_RDONLY, end()),
        version_(versions, path, guard_, fs.options().writable),
        file_(opened(fs, path, writable)),
        words_(1, device_),
        told_(1, device_) {
    words_.write_one({row_failure::none, 0, 0});
  }
  ~device_rows() override {
    // Kernels in streams use all of this.
    try {
      for (int tried = 0; !ended(); ++tried) {
        if (tried == 10'000)
          std::fprintf(stderr, "gpufs: '%s' is open until a stream that uses it goes on\n", guard_.path().c_str());
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    } catch (const std::exception& error) {  // the device is lost, and its kernels
      std::fprintf(stderr, "gpufs: '%s': %s\n", guard_.path().c_str(), error.what());
    }
  }

  void read(const row_list& rows, std::byte* out) override { move<row_verb::read>(rows, out); }
  void write(const row_list& rows, const std::byte* src) override {
    guard_.check();
    move<row_verb::write>(rows, const_cast<std::byte*>(src));
  }
  void prefetch(const row_list& rows, const std::atomic<bool>& stop) override {
    const simt::on_device here(device_);
    constexpr std::uint64_t most = 4096;  // so that stopping does not take long
    for (std::uint64_t first = 0; first < rows.n && !stop.load(std::memory_order_relaxed); first += most) {
      const std::uint64_t n = std::min(most, rows.n - first);
      scratch_.with(n, 0, [&](row_scratch& mine) {
        const row_list part = on_device_part(rows, first, n, mine);
        simt::launch<most_threads, least_blocks>(config_for(n), kernel<row_verb::prefetch>(place_, part, nullptr, mine.word.get()));
      });
    }
  }
  void flush(bool durable) override {
    const simt::on_device here(device_);
    guard_.check();  // or the write-back would make the file longer
    scratch_.with(0, 0, [&](row_scratch& mine) {
      simt::launch_config config = config_for(1);
      simt::launch(config, sync_rows{file_.ref(), durable ? durability::data : durability::page_cache, mine.word.get()});
      if (mine.word[0] != 0) fail_to_write(static_cast<int>(mine.word[0]));
    });
  }
  void close() override {
    const simt::on_device here(device_);
    try {
      file_.close();
    } catch (const std::system_error& error) {
      fail_to_write(error.code().value());
    }
  }

  void read_on(stream_handle stream, const row_list& rows, std::byte* out) override {
    if (!goes_by_batch(rows) || !gather_on(stream, rows, out)) move_on<row_verb::read>(stream, rows, out);
  }
  void write_on(stream_handle stream, const row_list& rows, const std::byte* src) override {
    guard_.check();
    move_on<row_verb::write>(stream, rows, const_cast<std::byte*>(src));
  }
  void prefetch_on(stream_handle stream, const row_list& rows) override { move_on<row_verb::prefetch>(stream, rows, nullptr); }
  bool ended() const override {
    const std::uint64_t launched = ncalls_.load();
    return launched == 0 || words_.read_one().ended >= launched;
  }
  void check() override {
    // Meets end_call's release.
    const std::uint64_t ntold =
        simt::atomic_ref<std::uint64_t, simt::scope::system>(told_[0].ntold).load(std::memory_order_acquire);
    if (nheard_.exchange(ntold) == ntold) return;
    const simt::atomic_ref<std::uint64_t, simt::scope::system> word(told_[0].failed);
    throw_failure(row_failure::of(word.load(std::memory_order_relaxed)), " of those given in an earlier call on the device",
                  "before an earlier call on the device", guard_.path());
  }

 private:
  std::uint64_t end() const { return place_.begin + place_.row_nbytes * place_.nrows; }
  host_file opened(const mount& fs, const std::string& path, bool writable) const {
    try {
      return host_file(fs, path, writable ? O_RDWR : O_RDONLY);
    } catch (const std::system_error& error) {
      guard_.fail(error.code().value(), std::strerror(error.code().value()));
    }
  }
  [[noreturn]] void fail_to_write(int error) const {
    guard_.fail(error, (std::string("what was written is lost: ") + std::strerror(error)).c_str());
  }

  template <row_verb Verb>
  move_rows<Verb> kernel(const row_place& place, const row_list& rows, std::byte* memory, std::uint64_t* failed) const {
    return {file_.ref(), place, end(), move_rows<Verb>::parts_of(place.row_nbytes), rows, memory, failed};
  }
  // A part of a list in the host's memory, with its numbers on the device.
  static row_list on_device_part(const row_list& rows, std::uint64_t first, std::uint64_t n, const row_scratch& mine) {
    if (rows.ids == nullptr) return {nullptr, rows.first + first, n};
    mine.ids.write(std::span(rows.ids + first, n));
    return {mine.ids.get(), 0, n};
  }

  // Of the host's memory, by way of device memory.
  template <row_verb Verb>
  void move(const row_list& list, std::byte* memory) {
    check();
    if (list.n == 0 || place_.row_nbytes == 0) return;
    const simt::on_device here(device_);
    row_place place = place_;
    row_list rows = list;
    std::uint64_t left = list.n * place_.row_nbytes;  // of the bytes to move
    if (list.ids == nullptr) {                        // as larger rows, of some pages each
      if (list.first >= place_.nrows || list.n > place_.nrows - list.first) throw std::out_of_range("there are no such rows");
      constexpr std::uint64_t chunk = move_rows<Verb>::part_nbytes;
      place.begin += list.first * place_.row_nbytes;
      place.row_nbytes = std::min(chunk, left);
      place.nrows = rows.n = (left + place.row_nbytes - 1) / place.row_nbytes;
      rows.first = 0;
    }
    const std::uint64_t most = std::max<std::uint64_t>(1, piece_nbytes / place.row_nbytes);
    for (std::uint64_t first = 0; first < rows.n; first += most) {
      const std::uint64_t n = std::min(most, rows.n - first), nbytes = std::min(left, n * place.row_nbytes);
      std::byte* const at = memory + first * place.row_nbytes;
      scratch_.with(rows.ids == nullptr ? 0 : n, n * place.row_nbytes, [&](row_scratch& mine) {
        if (Verb == row_verb::write) device_.copy_to_device(mine.bytes.get(), at, nbytes);
        const row_list part = on_device_part(rows, first, n, mine);
        mine.word[0] = row_failure::none;
        if (Verb == row_verb::read && goes_by_batch({part.ids, 0, n})) {
          row_batch& batch = mine.batch(fs_, n);
          batch.report_to(mine.word.get());
          try {
            batch.gather(file_.ref(), layout(), part.ids, n, mine.bytes.get(), mine.turns());
          } catch (...) {
            mine.turns().wait();  // for what was launched of it
            throw;
          }
          mine.turns().wait();
        } else {
          move_rows<Verb> work = kernel<Verb>(place, part, mine.bytes.get(), mine.word.get());
          if (list.ids == nullptr) work.end = place_.begin + (list.first + list.n) * place_.row_nbytes;
          simt::launch<most_threads, least_blocks>(config_for(n * work.parts), work);
        }
        const row_failure failure = row_failure::of(mine.word[0]);
        if (failure.error != 0) throw_failure(failure, "", "while it was in use", guard_.path());
        if (Verb == row_verb::read) device_.copy_from_device(at, mine.bytes.get(), nbytes);
      });
      left -= nbytes;
    }
  }
  template <row_verb Verb>
  void move_on(stream_handle stream, const row_list& rows, std::byte* memory) {
    check();
    if (rows.n == 0 || place_.row_nbytes == 0) return;
    const simt::on_device here(device_);
    const move_rows<Verb> work = kernel<Verb>(place_, rows, memory, &words_.get()->failed);
    launch_on(config_for(rows.n * work.parts), work, stream);
    end_on(stream, nullptr);
  }
  void end_on(stream_handle stream, std::uint64_t* batch_ended) {
    launch_on(config_for(1), end_call{words_.get(), told_.get(), batch_ended}, stream);
    ncalls_.fetch_add(1);
  }

  // Many rows are read in the order of their addresses; of a few, and of large ones, that brings nothing.
  bool goes_by_batch(const row_list& rows) const {
    return rows.ids != nullptr && rows.n > row_batch::usually_unsorted &&
           place_.row_nbytes <= move_rows<row_verb::read>::part_nbytes;
  }
  row_layout layout() const {
    return {.row_nbytes = place_.row_nbytes, .nrows = place_.nrows, .begin = place_.begin, .from_end = true};
  }

  // A batch that a stream uses, until as many uses have ended.
  struct lent_batch {
    lent_batch(const mount& fs, std::uint64_t most)
        : max_nrows(most), batch(fs, static_cast<std::uint32_t>(most)), ended(1, fs.device()) {}
    bool is_free() const { return ended.read_one() == nuses; }

    std::uint64_t max_nrows, nuses = 0;
    row_batch batch;
    simt::device_array<std::uint64_t> ended;
  };
  struct end_of_use {
    device_rows* of;
    stream_handle stream;
    lent_batch* batch;

    ~end_of_use() {
      try {
        of->end_on(stream, batch->ended.get());
        ++batch->nuses;
      } catch (const std::exception& error) {  // the device is lost
        batch->nuses = ~std::uint64_t{0};
        std::fprintf(stderr, "gpufs: '%s': %s\n", of->guard_.path().c_str(), error.what());
      }
    }
  };
  // False: there is no memory to sort the rows in.
  bool gather_on(stream_handle stream, const row_list& rows, std::byte* out) {
    check();
    if (place_.row_nbytes == 0) return true;
    const simt::on_device here(device_);
    const std::lock_guard lock(batches_mutex_);
    lent_batch* const mine = free_batch(std::min(std::bit_ceil(rows.n), most_sorted));
    if (mine == nullptr) return false;
    // Counted however far it comes: what was launched of it uses the batch.
    const end_of_use end{this, stream, mine};
#if GPUFS_ON_CUDA
    mine->batch.gather(file_.ref(), layout(), rows.ids, rows.n, out, reinterpret_cast<CUstream_st*>(stream));
#else
    mine->batch.gather(file_.ref(), layout(), rows.ids, rows.n, out, *reinterpret_cast<const simt::stream*>(stream));
#endif
    return true;
  }

  // One that no stream uses, for as many rows at once; nullptr: all are in use, or there is no memory.
  lent_batch* free_batch(std::uint64_t nrows) {
    auto free = batches_.end();
    for (auto each = batches_.begin(); each != batches_.end(); ++each) {
      if (!(*each)->is_free()) continue;
      if ((*each)->max_nrows >= nrows) return each->get();
      free = each;
    }
    if (free == batches_.end() && batches_.size() == most_batches) return nullptr;
    try {
      auto larger = std::make_unique<lent_batch>(fs_, nrows);
      larger->batch.report_to(&words_.get()->failed);
      if (free == batches_.end()) free = batches_.insert(free, nullptr);
      *free = std::move(larger);
      return free->get();
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }

  static constexpr std::size_t most_batches = 4;  // under way at once; what comes besides is read as it comes

  const mount& fs_;
  simt::platform& device_;
  scratch_pool& scratch_;
  row_place place_;
  guarded_file guard_;
  joined_version version_;
  host_file file_;
  simt::device_array<stream_words> words_;
  simt::pinned_array<told_words> told_;
  std::atomic<std::uint64_t> ncalls_{0}, nheard_{0};
  std::mutex batches_mutex_;
  std::vector<std::unique_ptr<lent_batch>> batches_;
};

class device_mount final : public row_mount {
 public:
  device_mount(const std::string& root, const mount_options& options) : root_(root), fs_(root, options), scratch_(fs_.device()) {}

  std::unique_ptr<row_file> open(const std::string& path, const row_place& place, bool writable) override {
    const simt::on_device here(fs_.device());
    return std::make_unique<device_rows>(fs_, scratch_, versions_, root_, path, place, writable);
  }

  void read_files(std::span<const whole_file> files, std::byte* out, bool on_device) override {
    const simt::on_device here(fs_.device());
    constexpr std::size_t most = 1024;  // open at once
    for (std::size_t first = 0; first < files.size();) {
      std::size_t n = 0;
      std::uint64_t nbytes = 0;
      while (n < most && first + n < files.size() && (n == 0 || nbytes + files[first + n].nbytes <= piece_nbytes))
        nbytes += files[first + n++].nbytes;
      read_some(files.subspan(first, n), on_device ? 0 : nbytes, out, on_device);
      first += n;
    }
  }
  std::string way() const override { return std::string(fs_.device().name()); }
  int device() const override { return fs_.device().index(); }
  std::uint64_t cache_nbytes() const override { return fs_.options().cache_nbytes; }
  mount_counters counters() const override { return fs_.counters(); }
  std::vector<file_report> files() const override { return fs_.open_files(); }

 private:
  // Where they go to the host, packed into a piece of device memory, and copied from there.
  void read_some(std::span<const whole_file> files, std::uint64_t nbytes, std::byte* out, bool on_device) {
    simt::platform& device = fs_.device();
    std::vector<char> text;
    std::vector<std::size_t> begins;
    for (const whole_file& file : files) {
      begins.push_back(text.size());
      text.insert(text.end(), file.path.c_str(), file.path.c_str() + file.path.size() + 1);
    }
    const simt::device_array<char> letters(std::span<const char>(text), device);
    scratch_.with(0, nbytes, [&](row_scratch& mine) {
      std::vector<read_whole_files::one> wanted;
      std::vector<const char*> paths;
      std::uint64_t at = 0;
      for (std::size_t i = 0; i < files.size(); ++i) {
        wanted.push_back({letters.get() + begins[i], files[i].nbytes, on_device ? out + files[i].at : mine.bytes.get() + at});
        paths.push_back(wanted.back().path);
        at += files[i].nbytes;
      }
      const simt::device_array<read_whole_files::one> device_files(std::span<const read_whole_files::one>(wanted), device);
      const simt::device_array<const char*> device_paths(std::span<const char* const>(paths), device);
      const simt::device_array<file_number> numbers(files.size(), device);
      const simt::device_array<std::int32_t> errors(files.size(), device);
      const auto n = static_cast<std::uint32_t>(files.size());
      simt::launch_config config = config_for(1);
      config.grid = (n + read_whole_files::a_block - 1) / read_whole_files::a_block;
      simt::launch(config, read_whole_files{fs_.ref(), device_files.get(), device_paths.get(), n, numbers.get(), errors.get()});
      const std::vector<std::int32_t> results = errors.read();
      for (std::size_t i = 0; i < files.size(); ++i) {
        const int error = -results[i];
        if (error != 0) throw file_error(error, std::strerror(error), root_ + "/" + files[i].path);
      }
      if (on_device) return;
      std::uint64_t from = 0;
      for (std::size_t i = 0; i < files.size();) {  // those that go side by side, at once
        std::size_t next = i;
        std::uint64_t together = 0;
        while (next < files.size() && files[next].at == files[i].at + together) together += files[next++].nbytes;
        if (together != 0) device.copy_from_device(out + files[i].at, mine.bytes.get() + from, together);
        from += together;
        i = next;
      }
    });
  }

  std::string root_;
  mount fs_;
  scratch_pool scratch_;
  open_versions versions_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::arrays
