// SPDX-License-Identifier: Apache-2.0
// Words and strings by host threads.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "apps/parallel.hpp"
#include "apps/words/finder.hpp"
#include "gpufs/mount.hpp"

namespace gpufs::apps::words {
namespace {

constexpr std::uint32_t chunk_nbytes = 64 << 10, before_nbytes = 16, slack = 64;
constexpr std::uint32_t words_at_once = 64;  // slots that are on their way from memory together

// What a thread has found, and what it works with.
class searcher {
 public:
  explicit searcher(const wanted& what)
      : what_(what),
        ahead_(ahead_of(what)),
        buffer_(before_nbytes + chunk_nbytes + ahead_ + slack),
        marks_((chunk_nbytes + ahead_ + slack) / 32 + 2) {
    if (what.words != nullptr) {
      dictionary_ = what.words->view();
      counts_.resize(what.words->nwords());
    }
  }

  // 0 or an errno. The piece's records are added, also of one that fails.
  int search(int fd, const piece& at, std::uint64_t& nbytes) {
    records_.emplace_back();
    std::uint8_t* const text = buffer_.data() + before_nbytes;
    std::uint64_t done = 0;
    int error = 0;
    for (bool ended = false; !ended && done < at.nbytes;) {
      const std::uint64_t offset = at.begin + done;
      const auto most = static_cast<std::uint32_t>(
          at.nbytes == to_the_end ? chunk_nbytes : std::min<std::uint64_t>(chunk_nbytes, at.nbytes - done));
      const auto before = static_cast<std::uint32_t>(std::min<std::uint64_t>(before_nbytes, offset));
      std::memset(buffer_.data(), 0, before_nbytes - before);
      const std::int64_t got = read(fd, text - before, before + most + ahead_, offset - before);
      if (got < 0) {
        error = static_cast<int>(-got);
        break;
      }
      const std::uint32_t there = got > before ? static_cast<std::uint32_t>(got) - before : 0;
      std::memset(text + there, 0, slack);
      const std::uint32_t n = std::min(there, most);
      ended = there < most + ahead_ && n == there;
      look(text, n, there, static_cast<std::uint32_t>(done));
      done += n;
    }
    if (error == 0 && at.nbytes != to_the_end && done < at.nbytes) error = ESTALE;  // it was cut since the walk
    for (const std::uint32_t word : touched_) {
      records_.back().push_back({word, counts_[word]});
      counts_[word] = 0;
    }
    touched_.clear();
    if (!records_.back().empty()) {
      segments_.push_back({at.begin, at.file, static_cast<std::uint32_t>(records_.back().size()), records_.back().data()});
    } else {
      records_.pop_back();
    }
    nbytes += done;
    return error;
  }

  std::vector<segment>& segments() { return segments_; }
  std::deque<std::vector<record>>& records() { return records_; }

 private:
  static std::uint32_t ahead_of(const wanted& what) {
    return what.words != nullptr ? what.words->view().reach + 32 : what.text->view().nbytes;
  }
  // How many bytes, fewer at the file's end alone; or a negative errno.
  static std::int64_t read(int fd, std::uint8_t* to, std::uint32_t nbytes, std::uint64_t offset) {
    std::uint32_t done = 0;
    while (done < nbytes) {
      const ssize_t got = ::pread(fd, to + done, nbytes - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return -errno;
      if (got == 0) break;
      done += static_cast<std::uint32_t>(got);
    }
    return done;
  }
  // In a chunk of n bytes, of which `there` are known with those behind it.
  void look(const std::uint8_t* text, std::uint32_t n, std::uint32_t there, std::uint32_t place) {
    if (n == 0) return;
    if (what_.text != nullptr) return look_for_string(text, n, there, place);
    const std::uint32_t nmarked = (there + 31) / 32;
    for (std::uint32_t i = 0; i < nmarked; ++i) marks_[i] = marks_of_32(dictionary_.letters, text, 32 * i);
    marks_[nmarked] = 0;
    if (dictionary_.folds) {
      look_for_words<true>(text, n);
    } else {
      look_for_words<false>(text, n);
    }
  }
  template <bool Folds>
  void look_for_words(const std::uint8_t* text, std::uint32_t n) {
    const dictionary_view in = dictionary_;
    const std::uint32_t* const marks = marks_.data();
    std::uint32_t before = is_in_word(in.letters, text, -1) ? 1 : 0;
    text_word words[words_at_once + 32];
    std::uint32_t nwords = 0;
    for (std::uint32_t i = 0; 32 * i < n; ++i) {
      std::uint32_t begins = begins_of_words(marks[i], before);
      before = marks[i] >> 31;
      if (n - 32 * i < 32) begins &= (1u << (n - 32 * i)) - 1;
      for (; begins != 0; begins &= begins - 1) {
        const std::uint32_t at = 32 * i + simt::trailing_zeros(begins);
        const std::uint32_t nbytes = run_length(marks, at, in.reach);
        if (nbytes > in.reach) continue;
        words[nwords] = word_at<Folds>(in, text, at, nbytes);
        __builtin_prefetch(in.slots + words[nwords++].slot);
      }
      if (nwords < words_at_once) continue;
      count<Folds>(text, words, nwords);
      nwords = 0;
    }
    count<Folds>(text, words, nwords);
  }
  template <bool Folds>
  void count(const std::uint8_t* text, const text_word* words, std::uint32_t nwords) {
    for (std::uint32_t i = 0; i < nwords; ++i) {
      const std::uint32_t word = find_word<Folds>(dictionary_, text, words[i]);
      if (word != no_word && counts_[word]++ == 0) touched_.push_back(word);
    }
  }
  void look_for_string(const std::uint8_t* text, std::uint32_t n, std::uint32_t there, std::uint32_t place) {
    const std::string& wanted = what_.text->text();
    const std::size_t end = std::min<std::size_t>(there, n + wanted.size() - 1);
    for (std::size_t at = 0; at < end;) {
      const void* const found = ::memmem(text + at, end - at, wanted.data(), wanted.size());
      if (found == nullptr) return;
      at = static_cast<std::size_t>(static_cast<const std::uint8_t*>(found) - text);
      records_.back().push_back({place + static_cast<std::uint32_t>(at), 1});
      ++at;
    }
  }

  wanted what_;
  std::uint32_t ahead_;
  std::vector<std::uint8_t> buffer_;
  std::vector<std::uint32_t> marks_;
  dictionary_view dictionary_{};
  std::vector<std::uint32_t> counts_, touched_;  // of the piece, of each word; the words that it has
  std::deque<std::vector<record>> records_;
  std::vector<segment> segments_;
};

class cpu_finder final : public finder {
 public:
  cpu_finder(const file_tree& tree, const find_options& options)
      : tree_(tree),
        pieces_(pieces_of(tree, options.piece_nbytes)),
        nthreads_(static_cast<unsigned>(std::clamp<std::size_t>(pieces_.size(), 1, thread_count(options.nthreads)))) {
    if (pieces_.empty()) return;
    root_ = ::open(tree.root().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root_ < 0) throw gpufs::error(tree.root() + ": " + std::strerror(errno), errno);
  }
  ~cpu_finder() override {
    if (root_ >= 0) ::close(root_);
  }

  found find(const wanted& what, const progress_function& progress) override {
    auto searchers = std::make_shared<std::deque<searcher>>();
    for (unsigned i = 0; i < nthreads_; ++i) searchers->emplace_back(what);
    std::vector<std::atomic<int>> errors(tree_.files().size());
    std::atomic<std::size_t> next{0};
    std::atomic<std::uint64_t> ndone{0};
    const std::thread::id caller = std::this_thread::get_id();
    progress(0, tree_.nbytes());
    parallel_for(nthreads_, nthreads_, [&](std::size_t me) {
      try {
        for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < pieces_.size();) {
          const piece& at = pieces_[i];
          std::uint64_t nbytes = 0;
          const int error = search((*searchers)[me], at, nbytes);
          if (error != 0) errors[at.file].store(error, std::memory_order_relaxed);
          const std::uint64_t done = ndone.fetch_add(nbytes, std::memory_order_relaxed) + nbytes;
          if (std::this_thread::get_id() == caller) progress(std::min(done, tree_.nbytes()), tree_.nbytes());
        }
      } catch (...) {
        next.store(pieces_.size(), std::memory_order_relaxed);
        throw;
      }
    });
    found all;
    for (searcher& each : *searchers) all.segments.insert(all.segments.end(), each.segments().begin(), each.segments().end());
    for (const std::atomic<int>& error : errors) all.errors.push_back(error.load(std::memory_order_relaxed));
    all.nbytes = ndone;
    all.memory = searchers;
    put_in_order(all);
    progress(tree_.nbytes(), tree_.nbytes());
    return all;
  }

 private:
  // 0 or an errno.
  int search(searcher& by, const piece& at, std::uint64_t& nbytes) const {
    const int fd = ::openat(root_, tree_.below_root(at.file).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // also of a FIFO by now
    if (fd < 0) return errno;
    const int error = by.search(fd, at, nbytes);
    ::close(fd);
    return error;
  }

  const file_tree& tree_;
  std::vector<piece> pieces_;
  unsigned nthreads_;
  int root_ = -1;
};

}  // namespace

std::unique_ptr<finder> make_finder_cpu(const file_tree& tree, const find_options& options) {
  return std::make_unique<cpu_finder>(tree, options);
}

}  // namespace gpufs::apps::words
