// SPDX-License-Identifier: Apache-2.0
// Words and strings by kernels, for the machine that the including source is compiled for. One kernel opens all files.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "apps/parallel.hpp"
#include "apps/watched_launch.hpp"
#include "apps/words/finder.hpp"
#include "gpufs/gpufs.hpp"

namespace gpufs::apps::words {
inline namespace GPUFS_MACHINE {

constexpr std::uint32_t before_nbytes = 16, chunk_nbytes = GPUFS_ON_CUDA ? 4096 : 1024;
constexpr std::uint32_t page_nbytes = 64 << 10;
constexpr std::uint32_t marked_nbytes = chunk_nbytes + most_ahead + 64;
constexpr std::uint32_t table_entries = 512, most_probes = 8;
constexpr std::uint32_t pieces_at_once = 8;  // that a warp takes
constexpr unsigned noutputs = 4;             // as the host's writes to one file in memory wait for each other
// Launch bounds: as many blocks as shared memory has room for on an SM. Without, registers of rare paths count.
constexpr unsigned nwarps_a_block = 4, nthreads = 32 * nwarps_a_block, least_blocks = 5;

// What a warp works with, in shared memory.
struct warp_space {
  alignas(16) std::uint8_t bytes[before_nbytes + marked_nbytes];  // a chunk, with what is around it
  std::uint32_t marks[marked_nbytes / 32 + 2];
  alignas(8) segment_head head;
  // Of words a table: `what` is the word's number and 1, or 0. Of places a list.
  record records[table_entries];
  std::uint32_t nlisted;

  GPUFS_DEVICE std::uint8_t* text() { return bytes + before_nbytes; }
};
struct block_space {
  warp_space of[nwarps_a_block];
};
static_assert(sizeof(block_space) <= 48 << 10);

// What the kernel tells, and is told, while it runs.
struct search_state {
  std::uint64_t ndone;       // bytes
  std::uint32_t next;        // piece that nobody has taken
  std::uint32_t stop;        // not 0: take no more
  std::int64_t write_error;  // of the first records that were not written, a negative errno
};

struct find_kernel {
  mount_ref fs;
  const char* const* paths;  // of each piece
  const piece* pieces;
  std::uint32_t npieces;
  std::int32_t* errors;  // of each file, a negative errno
  search_state* state;
  file outputs[noutputs];
  dictionary_view words;
  string_view text;     // where it has bytes, this is looked for
  std::uint32_t ahead;  // bytes behind a chunk that are looked at

  GPUFS_DEVICE void operator()() const {
    const simt::warp warp = this_warp();
    warp_space& mine = simt::shared<block_space>().of[simt::warp_rank()];
    clear(warp, mine);
    for (;;) {
      std::uint32_t first = npieces;
      if (warp.leader() && simt::atomic_ref<std::uint32_t>(state->stop).load(std::memory_order_relaxed) == 0)
        first = simt::atomic_ref<std::uint32_t>(state->next).fetch_add(pieces_at_once, std::memory_order_relaxed);
      first = warp.broadcast(first);
      if (first >= npieces) return;
      const std::uint32_t n = npieces - first < pieces_at_once ? npieces - first : pieces_at_once;
      for (std::uint32_t i = first; i < first + n; ++i) {
        // By all lanes, which copy what comes with the answer; a lane alone copies 16 bytes at a time.
        const file opened = open(warp, fs, paths[i]);
        const int error = search(warp, mine, i, opened);
        close(warp, opened);
        if (error == 0) continue;
        warp.sync();
        clear(warp, mine);  // what was found in it is not the next piece's
        if (warp.leader()) simt::atomic_ref<std::int32_t>(errors[pieces[i].file]).fetch_min(error, std::memory_order_relaxed);
      }
    }
  }

 private:
  static GPUFS_DEVICE void clear(simt::warp warp, warp_space& mine) {
    for (std::uint32_t i = warp.rank(); i < table_entries; i += warp.size()) mine.records[i] = {0, 0};
    if (warp.leader()) mine.nlisted = 0;
    warp.sync();
  }

  // 0 or a negative errno.
  GPUFS_DEVICE int search(simt::warp warp, warp_space& mine, std::uint32_t number, const file& opened) const {
    const file_status status = fstat(warp, opened);
    if (status.error != 0) return status.error;
    const piece at = pieces[number];
    const auto size = static_cast<std::uint64_t>(status.nbytes);
    std::uint64_t all = size > at.begin ? size - at.begin : 0;
    if (at.nbytes != to_the_end) {
      if (all < at.nbytes) return -ESTALE;  // it was cut since the walk
      all = at.nbytes;
    }
    const std::uint64_t first_page = at.begin == 0 ? page_nbytes : 0;  // which the open has brought in
    if (all > first_page) prefetch(warp, opened, static_cast<std::int64_t>(at.begin), all);
    for (std::uint64_t done = 0; done < all; done += chunk_nbytes) {
      const std::uint32_t n = all - done < chunk_nbytes ? static_cast<std::uint32_t>(all - done) : chunk_nbytes;
      const std::uint64_t offset = at.begin + done;
      const std::int64_t got = read(warp, mine, opened, offset, n + ahead);
      if (got < static_cast<std::int64_t>(n)) return got < 0 ? static_cast<int>(got) : -ESTALE;
      if (text.nbytes != 0) {
        look_for_string(warp, mine, number, n, static_cast<std::uint32_t>(done));
      } else {
        mark(warp, mine, n + ahead);
        if (words.folds) {
          look_for_words<true>(warp, mine, number, n);
        } else {
          look_for_words<false>(warp, mine, number, n);
        }
      }
      warp.sync();  // all have done with the chunk
    }
    flush(warp, mine, number);
    if (warp.leader()) simt::atomic_ref<std::uint64_t>(state->ndone).fetch_add(all, std::memory_order_relaxed);
    return 0;
  }
  // The bytes from `offset` on, with those before; zeros where the file has none. How many there are of the nbytes, or a negative
  // errno.
  static GPUFS_DEVICE std::int64_t read(simt::warp warp, warp_space& mine, const file& opened, std::uint64_t offset,
                                        std::uint32_t nbytes) {
    const std::uint32_t before = offset < before_nbytes ? static_cast<std::uint32_t>(offset) : before_nbytes;
    std::int64_t got = pread(warp, opened, mine.text() - before, before + nbytes, static_cast<std::int64_t>(offset - before));
    if (got < 0) return got;
    got -= before;
    if (got < 0) return -ESTALE;
    if (warp.rank() < before_nbytes - before) mine.bytes[warp.rank()] = 0;
    for (auto i = static_cast<std::uint32_t>(got) + warp.rank(); i < nbytes + 64 && i < marked_nbytes; i += warp.size())
      mine.text()[i] = 0;
    warp.sync();
    return got;
  }
  GPUFS_DEVICE void mark(simt::warp warp, warp_space& mine, std::uint32_t nbytes) const {
    for (std::uint32_t i = warp.rank(); 32 * i < nbytes + 32; i += warp.size())
      mine.marks[i] = marks_of_32(words.letters, mine.text(), 32 * i);
    warp.sync();
  }

  template <bool Folds>
  GPUFS_DEVICE void look_for_words(simt::warp warp, warp_space& mine, std::uint32_t number, std::uint32_t n) const {
    const std::uint32_t before_all = is_in_word(words.letters, mine.text(), -1) ? 1 : 0;
    for (std::uint32_t first = 0; 32 * first < n; first += warp.size()) {
      const std::uint32_t i = first + warp.rank();
      std::uint32_t begins = 0;
      if (32 * i < n) {
        begins = begins_of_words(mine.marks[i], i == 0 ? before_all : mine.marks[i - 1] >> 31);
        if (n - 32 * i < 32) begins &= (1u << (n - 32 * i)) - 1;
      }
      while (warp.any(begins != 0)) {
        std::uint32_t word = no_word;
        if (begins != 0) {
          const std::uint32_t at = 32 * i + simt::trailing_zeros(begins);
          begins &= begins - 1;
          const std::uint32_t nbytes = run_length(mine.marks, at, words.reach);
          if (nbytes <= words.reach) word = find_word<Folds>(words, mine.text(), word_at<Folds>(words, mine.text(), at, nbytes));
        }
        while (warp.any(word != no_word && !count(mine, word))) {
          flush(warp, mine, number);  // there is room then
        }
      }
    }
  }
  // Adds one, and makes the word none; false: there is no room.
  static GPUFS_DEVICE bool count(warp_space& mine, std::uint32_t& word) {
    const std::uint32_t wanted = word + 1;
    const std::uint32_t first = word * 0x9e3779b1u >> 16;
    for (std::uint32_t i = 0; i < most_probes; ++i) {
      record& at = mine.records[(first + i) % table_entries];
      simt::atomic_ref<std::uint32_t, simt::scope::block> what(at.what);
      std::uint32_t seen = what.load(std::memory_order_relaxed);
      if (seen == 0 && what.compare_exchange(seen, wanted, std::memory_order_relaxed)) seen = wanted;
      if (seen != wanted) continue;
      simt::atomic_ref<std::uint32_t, simt::scope::block>(at.count).fetch_add(1, std::memory_order_relaxed);
      word = no_word;
      return true;
    }
    return false;
  }

  // Each lane looks at a byte of 32; those that find the string put their places in order.
  GPUFS_DEVICE void look_for_string(simt::warp warp, warp_space& mine, std::uint32_t number, std::uint32_t n,
                                    std::uint32_t place) const {
    for (std::uint32_t first = 0; first < n; first += warp.size()) {
      const std::uint32_t at = first + warp.rank();
      const bool is_there = at < n && is_string_at(text, mine.text(), at);
      const std::uint32_t lanes = warp.ballot(is_there);
      if (lanes == 0) continue;
      const unsigned nfound = warp.count(is_there);
      if (warp.broadcast(mine.nlisted) + nfound > table_entries) flush(warp, mine, number);
      const std::uint32_t listed = warp.broadcast(mine.nlisted);
      const unsigned before = warp.exclusive_scan_add(is_there ? 1u : 0u);
      if (is_there) mine.records[listed + before] = {place + at + 1, 1};
      if (warp.leader()) mine.nlisted = listed + nfound;
      warp.sync();
    }
  }

  // Writes the records as a segment of the piece; there are none afterwards.
  GPUFS_DEVICE void flush(simt::warp warp, warp_space& mine, std::uint32_t number) const {
    warp.sync();  // all have counted
    std::uint32_t n = 0;
    // In place: no record moves beyond the 32 that are read.
    for (std::uint32_t first = 0; first < table_entries; first += warp.size()) {
      record at = mine.records[first + warp.rank()];
      const unsigned before = warp.exclusive_scan_add(at.what != 0 ? 1u : 0u);
      const unsigned here = warp.count(at.what != 0);
      if (at.what != 0) mine.records[n + before] = {at.what - 1, at.count};
      n += here;
      warp.sync();
    }
    if (n == 0) return;
    if (warp.leader()) mine.head = {number, n};
    warp.sync();
    const file& to = outputs[simt::global_warp_rank() % noutputs];
    const std::int64_t at = append(warp, to, &mine.head, sizeof(segment_head) + n * sizeof(record));
    if (at < 0 && warp.leader()) {
      simt::atomic_ref<std::int64_t>(state->write_error).store(at, std::memory_order_relaxed);
      simt::atomic_ref<std::uint32_t>(state->stop).store(1, std::memory_order_relaxed);
    }
    warp.sync();  // all have read the records
    clear(warp, mine);
  }
};

// A folder below another one for files of records; it goes with them.
class scratch_folder {
 public:
  explicit scratch_folder(const std::string& below) : path_((below.empty() ? "/tmp" : below) + "/gpufs_words_XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr)
      throw gpufs::error(below + ": cannot make a folder for records: " + std::strerror(errno), errno);
  }
  ~scratch_folder() {
    for (unsigned i = 0; i < noutputs; ++i) ::unlink((path_ + "/" + name(i)).c_str());
    ::rmdir(path_.c_str());
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  const std::string& path() const { return path_; }
  static std::string name(unsigned i) { return "records-" + std::to_string(i); }

 private:
  std::string path_;
};

// A file's bytes in memory.
class mapped_records {
 public:
  explicit mapped_records(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat about {};
    if (fd < 0 || ::fstat(fd, &about) != 0) fail(path, fd);
    nbytes_ = static_cast<std::size_t>(about.st_size);
    if (nbytes_ != 0) {
      data_ = ::mmap(nullptr, nbytes_, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
      if (data_ == MAP_FAILED) fail(path, fd);
    }
    ::close(fd);
  }
  ~mapped_records() {
    if (nbytes_ != 0) ::munmap(data_, nbytes_);
  }
  mapped_records(const mapped_records&) = delete;
  mapped_records& operator=(const mapped_records&) = delete;
  std::span<const record> records() const { return {static_cast<const record*>(data_), nbytes_ / sizeof(record)}; }

 private:
  [[noreturn]] static void fail(const std::string& path, int fd) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    throw gpufs::error(path + ": " + std::strerror(error), error);
  }
  void* data_ = nullptr;
  std::size_t nbytes_ = 0;
};

// A dictionary or a string in a device's memory.
class device_wanted {
 public:
  device_wanted(const wanted& what, simt::platform& device)
      : letters_(what.words != nullptr ? letters::all().is_word() : std::span<const std::uint64_t>(), device),
        folds_(what.words != nullptr ? letters::folds() : std::span<const code_pair>(), device),
        slots_(what.words != nullptr ? what.words->slots() : std::span<const slot>(), device),
        text_(what.words != nullptr ? what.words->text() : bytes_of(what.text->text()), device),
        begins_(what.words != nullptr ? what.words->begins() : std::span<const std::uint32_t>(), device) {
    if (what.words != nullptr) {
      words_ = what.words->view();
      words_.letters = {letters_.get(), folds_.get(), words_.letters.nfolds};
      words_.slots = slots_.get();
      words_.text = text_.get();
      words_.begins = begins_.get();
    } else {
      string_ = what.text->view();
      string_.bytes = text_.get();
    }
  }
  const dictionary_view& words() const { return words_; }
  const string_view& string() const { return string_; }
  std::uint32_t ahead() const { return string_.nbytes != 0 ? string_.nbytes : words_.reach + 32; }

 private:
  static std::span<const std::uint8_t> bytes_of(const std::string& text) {
    return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
  }
  simt::device_array<std::uint64_t> letters_;
  simt::device_array<code_pair> folds_;
  simt::device_array<slot> slots_;
  simt::device_array<std::uint8_t> text_;
  simt::device_array<std::uint32_t> begins_;
  dictionary_view words_{};
  string_view string_{};
};

// The paths of pieces' files in a device's memory.
class device_paths {
 public:
  device_paths(const file_tree& tree, std::span<const piece> pieces, simt::platform& device)
      : letters_(std::span<const char>(text_of(tree)), device), all_(pieces.size(), device) {
    std::vector<const char*> of_pieces;
    of_pieces.reserve(pieces.size());
    for (const piece& each : pieces) of_pieces.push_back(letters_.get() + begins_[each.file]);
    all_.write(of_pieces);
  }
  const char* const* get() const { return all_.get(); }

 private:
  const std::vector<char>& text_of(const file_tree& tree) {
    for (std::size_t i = 0; i < tree.files().size(); ++i) {
      begins_.push_back(text_.size());
      const std::string path = tree.below_root(i);
      text_.insert(text_.end(), path.c_str(), path.c_str() + path.size() + 1);
    }
    return text_;
  }
  std::vector<char> text_;
  std::vector<std::size_t> begins_;
  simt::device_array<char> letters_;
  simt::device_array<const char*> all_;
};

inline mount_options options_to_read(const find_options& options) {
  mount_options all;
  all.device = options.device;
  all.page_nbytes = page_nbytes;  // the first page of a file comes with its open
  all.cache_nbytes = options.cache_nbytes != 0 ? options.cache_nbytes : GPUFS_ON_CUDA ? 2ull << 30 : 16 << 20;
  all.nworkers = options.nthreads;
  // For all warps of a large GPU: CUDA may give no memory for more while the kernel runs.
  all.reserved_open_files = GPUFS_ON_CUDA ? 32768 : 1024;
  return all;
}
inline mount_options options_to_write(const find_options& options) {
  mount_options all;
  all.device = options.device;
  all.page_nbytes = page_nbytes;
  all.cache_nbytes = GPUFS_ON_CUDA ? 256 << 20 : 4 << 20;
  all.nworkers = GPUFS_ON_CUDA ? 4 : 2;
  all.writable = true;
  return all;
}

class device_finder final : public finder {
 public:
  device_finder(const file_tree& tree, const find_options& options)
      : tree_(tree),
        pieces_(checked(pieces_of(tree, options.piece_nbytes))),
        scratch_(options.scratch),
        fs_(tree.root().empty() ? "/" : tree.root(), options_to_read(options)),
        records_(scratch_.path(), options_to_write(options)),
        device_(fs_.device()),
        paths_(tree, pieces_, device_),
        pieces_there_(std::span<const piece>(pieces_), device_) {
    const simt::on_device here(device_);
    simt::load<find_kernel, nthreads, least_blocks>();
  }

  found find(const wanted& what, const progress_function& progress) override {
    const simt::on_device here(device_);
    found all;
    all.errors.resize(tree_.files().size());
    progress(0, tree_.nbytes());
    if (!pieces_.empty()) search(what, progress, all);
    put_in_order(all);
    progress(tree_.nbytes(), tree_.nbytes());
    return all;
  }

 private:
  static std::vector<piece> checked(std::vector<piece> pieces) {
    if (pieces.size() < UINT32_MAX / 2) return pieces;
    throw gpufs::error("there are " + std::to_string(pieces.size()) + " pieces of files: search a part of them at a time", EFBIG);
  }

  void search(const wanted& what, const progress_function& progress, found& all) {
    const device_wanted wanted_there(what, device_);
    const simt::device_array<std::int32_t> errors(tree_.files().size(), device_);
    const simt::device_array<search_state> state(1, device_);
    std::vector<host_file> outputs;
    for (unsigned i = 0; i < noutputs; ++i)
      outputs.emplace_back(records_, scratch_folder::name(i), O_WRONLY | O_CREAT | O_TRUNC | O_GWRONCE);
    const find_kernel kernel{fs_.ref(),
                             paths_.get(),
                             pieces_there_.get(),
                             static_cast<std::uint32_t>(pieces_.size()),
                             errors.get(),
                             state.get(),
                             {outputs[0].ref(), outputs[1].ref(), outputs[2].ref(), outputs[3].ref()},
                             wanted_there.words(),
                             wanted_there.string(),
                             wanted_there.ahead()};
    run_and_watch(kernel, state, progress);
    const search_state at_end = state.read_one();
    all.nbytes = at_end.ndone;
    // The close of a file waits for the host to write its last pages; each by a thread of its own.
    std::array<int, noutputs> lost{};
    parallel_for(noutputs, noutputs, [&](std::size_t i) {
      try {
        outputs[i].close();
      } catch (const std::system_error& failed) {
        lost[i] = failed.code().value();
      }
    });
    int write_error = static_cast<int>(-at_end.write_error);
    for (const int error : lost) write_error = write_error != 0 ? write_error : error;
    if (write_error != 0) {
      throw gpufs::error(scratch_.path() + ": what was found cannot be written: " + std::strerror(write_error) +
                             ": name a folder with more room by --scratch",
                         write_error);
    }
    std::ranges::transform(errors.read(), all.errors.begin(), [](std::int32_t error) { return -error; });
    read_records(all);
  }

  // Launches the kernel; tells and hears meanwhile.
  void run_and_watch(const find_kernel& kernel, const simt::device_array<search_state>& state, const progress_function& progress) {
    const auto nbatches = static_cast<unsigned>((pieces_.size() + pieces_at_once - 1) / pieces_at_once);
    const unsigned room = simt::max_cooperative_grid<nthreads, least_blocks>({.grid = 1, .block = nthreads}, kernel);
    const unsigned most_blocks = GPUFS_ON_CUDA ? room : std::min(2u, room);
    simt::launch_config config{.grid = std::clamp((nbatches + nwarps_a_block - 1) / nwarps_a_block, 1u, most_blocks),
                               .block = nthreads};
    config.schedule.timeout_ns = 0;  // what waits inside has its own deadline
    launch_watched<nthreads, least_blocks>(
        config, kernel, device_, [&] { progress(std::min(state.read_one().ndone, tree_.nbytes()), tree_.nbytes()); },
        [&] {
          const std::uint32_t stop = 1;
          device_.copy_to_device(&state.get()->stop, &stop, sizeof stop);
        });
  }

  // A thread maps each output, as its pages take their time.
  void read_records(found& all) const {
    struct output {
      std::unique_ptr<mapped_records> mapped;
      std::vector<segment> segments;
    };
    const auto there = std::make_shared<std::array<output, noutputs>>();
    parallel_for(noutputs, noutputs, [&](std::size_t i) {
      output& mine = (*there)[i];
      mine.mapped = std::make_unique<mapped_records>(scratch_.path() + "/" + scratch_folder::name(static_cast<unsigned>(i)));
      for (std::span<const record> left = mine.mapped->records(); !left.empty();) {
        segment_head head{};
        std::memcpy(&head, left.data(), sizeof head);
        if (head.piece >= pieces_.size() || head.nrecords >= left.size())
          throw gpufs::error(scratch_.path() + ": what was found is damaged there: no other program may write to it", EIO);
        const piece& of = pieces_[head.piece];
        mine.segments.push_back({of.begin, of.file, head.nrecords, left.data() + 1});
        left = left.subspan(head.nrecords + 1);
      }
    });
    for (output& each : *there) {
      all.segments.insert(all.segments.end(), each.segments.begin(), each.segments.end());
      each.segments = {};
    }
    all.memory = there;
  }

  const file_tree& tree_;
  std::vector<piece> pieces_;
  scratch_folder scratch_;
  mount fs_, records_;
  simt::platform& device_;
  device_paths paths_;
  simt::device_array<piece> pieces_there_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::words
