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
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/arrays/begin_store.hpp"
#include "apps/arrays/open_versions.hpp"
#include "apps/arrays/row_kernels.hpp"
#include "apps/arrays/row_scratch.hpp"

namespace gpufs::apps::arrays {
inline namespace GPUFS_MACHINE {

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

inline stream_handle handle_of(const simt::stream& stream) {
#if GPUFS_ON_CUDA
  return reinterpret_cast<stream_handle>(stream.get());
#else
  return reinterpret_cast<stream_handle>(&stream);
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

class device_rows final : public row_file {
 public:
  device_rows(const mount& fs, scratch_pool& scratch, open_versions& versions, const std::string& root, const std::string& path,
              const row_place& place, bool writable)
      : fs_(fs),
        device_(fs.device()),
        scratch_(scratch),
        below_root_(path),
        writable_(writable),
        pieces_(place),
        table_(pieces_.are_several() ? std::span<const byte_piece>(pieces_.table()) : std::span<const byte_piece>(), device_),
        parts_(std::span<const std::uint32_t>(pieces_.parts()), device_),
        guard_(root + "/" + path, writable ? O_RDWR : O_RDONLY, pieces_.file_end()),
        version_(versions, path, guard_, fs.options().writable),
        begin_(writable ? 0 : pieces_.begin_of_pages(fs.options().page_nbytes)),
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
  void write(const row_list& rows, const std::byte* src) override { move<row_verb::write>(rows, const_cast<std::byte*>(src)); }
  void prefetch(const row_list& rows, const std::atomic<bool>& stop) override {
    const simt::on_device here(device_);
    constexpr std::uint64_t most = 4096;  // so that stopping does not take long
    for (std::uint64_t first = 0; first < rows.n && !stop.load(std::memory_order_relaxed); first += most) {
      const std::uint64_t n = std::min(most, rows.n - first);
      scratch_.with(n, 0, [&](row_scratch& mine) {
        const row_list part = on_device_part(rows, first, n, mine);
        simt::launch<most_threads, least_blocks>(config_for(n),
                                                 kernel<row_verb::prefetch>(all_rows(), part, nullptr, mine.word.get()));
      });
    }
  }
  void prepare() override {
    const simt::on_device here(device_);
    guard_.check();
    // Registering goes by the path.
    struct stat now {
    }, opened{};
    if (::stat(guard_.path().c_str(), &now) == 0 && ::fstat(guard_.descriptor(), &opened) == 0 &&
        (now.st_dev != opened.st_dev || now.st_ino != opened.st_ino)) {
      guard_.fail(ESTALE, "another file has its place");
    }
    try {
      fs_.prepare(below_root_, writable_ ? O_RDWR : O_RDONLY);
    } catch (const error& failed) {
      guard_.fail(failed.number(), std::strerror(failed.number()));
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
    move_on<row_verb::write>(stream, rows, const_cast<std::byte*>(src));
  }
  void prefetch_on(stream_handle stream, const row_list& rows) override { move_on<row_verb::prefetch>(stream, rows, nullptr); }
  bool ended() const override {
    const std::uint64_t launched = ncalls_.load();
    return launched == 0 || words_.read_one().ended >= launched;
  }
  void check() override {
    check_size();
    // Meets end_call's release.
    const std::uint64_t ntold =
        simt::atomic_ref<std::uint64_t, simt::scope::system>(told_[0].ntold).load(std::memory_order_acquire);
    if (nheard_.exchange(ntold) == ntold) return;
    const simt::atomic_ref<std::uint64_t, simt::scope::system> word(told_[0].failed);
    throw_failure(row_failure::of(word.load(std::memory_order_relaxed)), " of those given in an earlier call on the device",
                  "before an earlier call on the device", guard_.path());
  }

 private:
  byte_map map() const {
    byte_map of = pieces_.map(table_.get(), parts_.get());
    of.begin -= begin_;
    return of;
  }
  row_bytes all_rows() const { return {0, pieces_.row_nbytes(), pieces_.nrows(), pieces_.nbytes()}; }
  // From begin_ on; or, where that cannot be, from its first byte on, which begin_ is then.
  host_file opened(const mount& fs, const std::string& path, bool writable) {
    if (begin_ != 0) {
      try {
        return host_file(fs, file_part{path, static_cast<std::int64_t>(begin_)}.to_path());
      } catch (const std::system_error& error) {
        const int number = error.code().value();  // EBUSY: this mount has it open for writing; EINVAL: it was cut
        if (number != EBUSY && number != ENAMETOOLONG && number != EINVAL) guard_.fail(number, std::strerror(number));
        begin_ = 0;
      }
    }
    try {
      return host_file(fs, path, writable ? O_RDWR : O_RDONLY);
    } catch (const std::system_error& error) {
      guard_.fail(error.code().value(), std::strerror(error.code().value()));
    }
  }
  // What this mount has open for writing has no version, by which kernels would see that the file was cut: they read zeros behind
  // the end, and writes there make the file longer.
  void check_size() const {
    if (fs_.options().writable) guard_.check();
  }
  [[noreturn]] void fail_to_write(int error) const {
    guard_.fail(error, (std::string("what was written is lost: ") + std::strerror(error)).c_str());
  }

  template <row_verb Verb>
  move_rows<Verb> kernel(const row_bytes& bytes, const row_list& rows, std::byte* memory, std::uint64_t* failed) const {
    return {file_.ref(), map(), bytes, move_rows<Verb>::parts_of(bytes.row_nbytes), rows, memory, failed, {}};
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
    row_bytes place = all_rows();
    if (list.n == 0 || place.row_nbytes == 0) return;
    const simt::on_device here(device_);
    row_list rows = list;
    std::uint64_t left = list.n * place.row_nbytes;  // of the bytes to move
    if (list.ids == nullptr) {                       // as larger rows, of some pages each
      if (list.first >= place.nrows || list.n > place.nrows - list.first) throw std::out_of_range("there are no such rows");
      constexpr std::uint64_t chunk = move_rows<Verb>::part_nbytes;
      place.first = list.first * place.row_nbytes;
      place.end = place.first + left;
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
            if (pieces_.are_several()) locate(handle_of(mine.turns()), part.ids, n, mine.ids.get());
            batch.gather(file_.ref(), layout(), part.ids, n, mine.bytes.get(), mine.turns());
          } catch (...) {
            mine.turns().wait();  // for what was launched of it
            throw;
          }
          mine.turns().wait();
        } else {
          const move_rows<Verb> work = kernel<Verb>(place, part, mine.bytes.get(), mine.word.get());
          simt::launch<most_threads, least_blocks>(config_for(n * work.parts), work);
        }
        const row_failure failure = row_failure::of(mine.word[0]);
        if (failure.error != 0) throw_failure(failure, "", "while it was in use", guard_.path());
        if (Verb == row_verb::read) device_.copy_from_device(at, mine.bytes.get(), nbytes);
      });
      left -= nbytes;
    }
    if (Verb == row_verb::read) check_size();
  }
  template <row_verb Verb>
  void move_on(stream_handle stream, const row_list& rows, std::byte* memory) {
    check();
    if (rows.n == 0 || pieces_.row_nbytes() == 0) return;
    const simt::on_device here(device_);
    move_rows<Verb> work = kernel<Verb>(all_rows(), rows, memory, &words_.get()->failed);
    const simt::launch_config config = config_for(rows.n * work.parts);
    // Of a few rows a launch is most of what they take.
    const bool is_one_block = config.grid == 1;
    if (is_one_block) work.end = call_end(nullptr);
    launch_on(config, work, stream);
    if (is_one_block) {
      ncalls_.fetch_add(1);
    } else {
      end_on(stream, nullptr);
    }
  }
  end_call call_end(std::uint64_t* batch_ended) const { return {words_.get(), told_.get(), batch_ended}; }
  void end_on(stream_handle stream, std::uint64_t* batch_ended) {
    launch_on(config_for(1), call_end(batch_ended), stream);
    ncalls_.fetch_add(1);
  }

  // Many rows are read in the order of their addresses; of a few, and of large ones, that brings nothing.
  bool goes_by_batch(const row_list& rows) const {
    return rows.ids != nullptr && rows.n > row_batch::usually_unsorted &&
           pieces_.row_nbytes() <= move_rows<row_verb::read>::part_nbytes;
  }
  // Of a batch. Where there are several pieces a row may begin at any byte of the file, and its number is its place.
  row_layout layout() const {
    const std::uint64_t nbytes = pieces_.row_nbytes();
    if (pieces_.are_several()) return {.row_nbytes = nbytes, .nrows = pieces_.file_end() - nbytes + 1, .stride_nbytes = 1};
    return {.row_nbytes = nbytes, .nrows = pieces_.nrows(), .begin = pieces_.table()[0].offset - begin_, .from_end = true};
  }
  void locate(stream_handle stream, const std::int64_t* ids, std::uint64_t n, std::int64_t* offsets) const {
    launch_on(config_for((n + simt::warp_lanes - 1) / simt::warp_lanes),
              locate_rows{map(), pieces_.row_nbytes(), pieces_.nrows(), ids, n, offsets}, stream);
  }

  // A batch that a stream uses, until as many uses have ended.
  struct lent_batch {
    lent_batch(const mount& fs, std::uint64_t most)
        : max_nrows(most), batch(fs, static_cast<std::uint32_t>(most)), ended(1, fs.device()), offsets(0, fs.device()) {}
    bool is_free() const { return ended.read_one() == nuses; }
    // While it is free. False: there is no memory.
    bool has_offsets(std::uint64_t n) {
      try {
        if (offsets.size() < n) offsets = simt::device_array<std::int64_t>(std::bit_ceil(n), offsets.device());
        return true;
      } catch (const std::bad_alloc&) {
        return false;
      }
    }

    std::uint64_t max_nrows, nuses = 0;
    row_batch batch;
    simt::device_array<std::uint64_t> ended;
    simt::device_array<std::int64_t> offsets;  // of rows in several pieces
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
    if (pieces_.row_nbytes() == 0) return true;
    const simt::on_device here(device_);
    const std::lock_guard lock(batches_mutex_);
    lent_batch* const mine = free_batch(std::min(std::bit_ceil(rows.n), most_sorted));
    if (mine == nullptr || (pieces_.are_several() && !mine->has_offsets(rows.n))) return false;
    // Counted however far it comes: what was launched of it uses the batch.
    const end_of_use end{this, stream, mine};
    const std::int64_t* numbers = rows.ids;
    if (pieces_.are_several()) {
      locate(stream, rows.ids, rows.n, mine->offsets.get());
      numbers = mine->offsets.get();
    }
#if GPUFS_ON_CUDA
    mine->batch.gather(file_.ref(), layout(), numbers, rows.n, out, reinterpret_cast<CUstream_st*>(stream));
#else
    mine->batch.gather(file_.ref(), layout(), numbers, rows.n, out, *reinterpret_cast<const simt::stream*>(stream));
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
      return nrows > fewer_sorted ? free_batch(fewer_sorted) : nullptr;
    }
  }

  static constexpr std::size_t most_batches = 4;  // under way at once; what comes besides is read as it comes

  const mount& fs_;
  simt::platform& device_;
  scratch_pool& scratch_;
  std::string below_root_;  // the file's path
  bool writable_;
  row_pieces pieces_;
  simt::device_array<byte_piece> table_;  // of several pieces, as parts_
  simt::device_array<std::uint32_t> parts_;
  guarded_file guard_;
  joined_version version_;
  std::uint64_t begin_;  // where in the file the offset 0 of file_ is
  host_file file_;
  simt::device_array<stream_words> words_;
  simt::pinned_array<told_words> told_;
  std::atomic<std::uint64_t> ncalls_{0}, nheard_{0};
  std::mutex batches_mutex_;
  std::vector<std::unique_ptr<lent_batch>> batches_;
};

class device_mount final : public row_mount {
 public:
  device_mount(const std::string& root, const mount_options& options)
      : root_(root), fs_(root, by_parts(options)), scratch_(fs_.device()) {
    load();
  }

  std::unique_ptr<row_file> open(const std::string& path, const row_place& place, bool writable) override {
    const simt::on_device here(fs_.device());
    return std::make_unique<device_rows>(fs_, scratch_, versions_, root_, path, place, writable);
  }

  void read_files(std::span<const whole_file> files, std::byte* out, bool on_device) override {
    const simt::on_device here(fs_.device());
    if (on_device && !files.empty()) return read_some(files, 0, out, true);
    for (std::size_t first = 0; first < files.size();) {
      std::size_t n = 0;
      std::uint64_t nbytes = 0;
      while (first + n < files.size() && (n == 0 || nbytes + files[first + n].nbytes <= piece_nbytes))
        nbytes += files[first + n++].nbytes;
      read_some(files.subspan(first, n), nbytes, out, false);
      first += n;
    }
  }
  std::string way() const override { return std::string(fs_.device().name()); }
  int device() const override { return fs_.device().index(); }
  std::uint64_t cache_nbytes() const override { return fs_.options().cache_nbytes; }
  mount_counters counters() const override { return fs_.counters(); }
  std::vector<file_report> files() const override {
    std::vector<file_report> all = fs_.open_files();
    for (file_report& file : all) {
      if (auto part = file_part::of(file.path)) {
        file.path = std::move(part->path);
        file.nbytes += part->begin;
      }
    }
    return all;
  }

 private:
  static mount_options by_parts(mount_options options) {
    options.internals.around_store = [](std::shared_ptr<store::store> files) {
      return std::make_shared<begin_store>(std::move(files));
    };
    return options;
  }
  // All kernels of arrays, as they run beside each other in callers' streams.
  void load() const {
    const simt::on_device here(fs_.device());
    simt::load<move_rows<row_verb::read>, most_threads, least_blocks>();
    simt::load<move_rows<row_verb::write>, most_threads, least_blocks>();
    simt::load<move_rows<row_verb::prefetch>, most_threads, least_blocks>();
    simt::load<locate_rows, most_threads, least_blocks>();
    simt::load<end_call, most_threads, least_blocks>();
    simt::load<sync_rows>();
    simt::load<read_whole_files>();
    const row_batch loads_its_own(fs_, 2 * row_batch::usually_unsorted);
  }
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
      std::uint64_t at = 0;
      for (std::size_t i = 0; i < files.size(); ++i) {
        wanted.push_back({letters.get() + begins[i], files[i].nbytes, on_device ? out + files[i].at : mine.bytes.get() + at});
        at += files[i].nbytes;
      }
      const simt::device_array<read_whole_files::one> device_files(std::span<const read_whole_files::one>(wanted), device);
      const simt::device_array<std::int32_t> errors(files.size(), device);
      const auto n = static_cast<std::uint32_t>(files.size());
      simt::launch(config_for(std::min(n, read_whole_files::most_warps)),
                   read_whole_files{fs_.ref(), device_files.get(), n, errors.get()});
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
