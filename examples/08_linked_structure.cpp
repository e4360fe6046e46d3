// SPDX-License-Identifier: Apache-2.0
// A linked structure that lives in a file: a dictionary, whose words are chained by hash. In a file, what would be a pointer is an
// offset; a pointer to the beginning of the file plus that offset is the pointer again.
#include <cstring>

#include "example.hpp"

constexpr std::uint64_t nchains = 1000;
constexpr std::size_t word_nbytes = 32;  // at most, with a 0 at the end

// The file begins with nchains offsets of first entries. An entry's word follows it; neither cares where pages end.
struct entry {
  std::uint64_t next;  // of the chain: its offset in the file; 0: none
  std::uint32_t meaning;
  std::uint32_t word_nbytes;
};

GPUFS_HOST_DEVICE std::uint64_t chain_of(const char* word) {
  std::uint64_t hash = 0;
  for (; *word != '\0'; ++word) hash = hash * 131 + static_cast<unsigned char>(*word);
  return hash % nchains;
}

struct look_up_words {
  gpufs::mount_ref fs;
  const char* words;      // by thread, word_nbytes each
  std::int64_t* meaning;  // by thread; -ENOENT: no such word

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const std::uint32_t me = gpufs::simt::block_rank() * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    const gpufs::file f = gpufs::open(warp, fs, "dictionary");
    meaning[me] = look_up(gpufs::map<const char>(warp, f), words + me * word_nbytes);
    warp.sync();
    gpufs::close(warp, f);
  }

  // `file` points to the beginning. Each thread walks its own chain for as long as that is; those that need a page together share
  // the work.
  GPUFS_DEVICE static std::int64_t look_up(const gpufs::ptr<const char>& file, const char* word) {
    if (file.error() != 0) return file.error();
    auto at = file.load<std::uint64_t>(static_cast<std::int64_t>(chain_of(word) * sizeof(std::uint64_t)));
    while (at != 0) {
      const auto here = file + static_cast<std::int64_t>(at);
      const auto one = here.load<entry>();
      if (is_word(here + sizeof(entry), one.word_nbytes, word)) return one.meaning;
      at = one.next;
    }
    return -ENOENT;
  }

  // Characters through a pointer, as through any other.
  GPUFS_DEVICE static bool is_word(gpufs::ptr<const char> text, std::uint32_t nbytes, const char* word) {
    for (std::uint32_t i = 0; i < nbytes; ++i, ++text, ++word) {
      if (*word == '\0' || *text != *word) return false;
    }
    return *word == '\0';
  }
};

std::string word_of(std::uint32_t number) {
  std::string word = "w";
  for (std::uint32_t left = number * 2654435761u; left != 0; left /= 26) word += static_cast<char>('a' + left % 26);
  return word + std::string(number % 17, 'z');
}

int main() {
  constexpr std::uint32_t nwords = 20000;
  std::string dictionary(nchains * sizeof(std::uint64_t), '\0');
  for (std::uint32_t i = 0; i < nwords; ++i) {
    const std::string word = word_of(i);
    const std::size_t head = chain_of(word.c_str()) * sizeof(std::uint64_t);
    entry one{0, i, static_cast<std::uint32_t>(word.size())};
    std::memcpy(&one.next, dictionary.data() + head, sizeof one.next);
    dictionary.resize((dictionary.size() + 7) / 8 * 8);  // so that an entry is read by one load where it lies in one page
    const std::uint64_t at = dictionary.size();
    std::memcpy(dictionary.data() + head, &at, sizeof at);
    dictionary.append(reinterpret_cast<const char*>(&one), sizeof one).append(word);
  }
  const example::folder folder;
  folder.write("dictionary", dictionary);

  constexpr unsigned grid = 2, block = 64, nthreads = grid * block;
  std::vector<char> words(nthreads * word_nbytes);
  for (std::uint32_t i = 0; i < nthreads; ++i) {
    const std::string word = i % 8 == 7 ? "no such word" : word_of(i * 150);
    std::memcpy(words.data() + i * word_nbytes, word.c_str(), word.size());
  }
  const example::device_array<char> device_words(words);
  const example::device_array<std::int64_t> meaning(nthreads);

  // A thread has three pointers (file, here, text), and may hold a page by each.
  gpufs::mount fs(folder.path(), {.cache_nbytes = 3 * nthreads * 512, .page_nbytes = 512});
  fs.prepare("dictionary");
  gpufs::simt::launch({.grid = grid, .block = block}, look_up_words{fs.ref(), device_words.get(), meaning.get()});

  const std::vector<std::int64_t> found = meaning.read();
  bool right = true;
  for (std::uint32_t i = 0; i < nthreads; ++i) {
    right = right && found[i] == (i % 8 == 7 ? -ENOENT : static_cast<std::int64_t>(i * 150));
  }
  const gpufs::mount_counters counters = fs.counters();
  std::printf("a dictionary of %zu KiB, a cache of %llu KiB, %llu pages were brought in\n", dictionary.size() >> 10,
              static_cast<unsigned long long>(fs.options().cache_nbytes >> 10), static_cast<unsigned long long>(counters.faults));
  example::check(right, "each thread found its word, or that there is none");
  example::check(counters.fault_errors == 0 && counters.pinned_frames == 0, "no access failed, and no page is held");
}
