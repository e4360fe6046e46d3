// SPDX-License-Identifier: Apache-2.0
// Random programs of file calls, and what a plain model says must come of them.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <sstream>

#include "file/script.hpp"
#include "gpufs/store/mem_store.hpp"
#include "gpufs/store/nil_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

enum class source { posix, mapped, automatic, mem_pull, mem_staged, nil };
inline const char* name_of(source s) {
  constexpr const char* names[] = {"posix", "mapped", "auto", "mem pull", "mem staged", "nil"};
  return names[static_cast<int>(s)];
}

// The files that programs read: sizes around the page size's edges, the same bytes on disk, in memory stores and in the model.
// with_many_pages: and a last one of more pages than any of these tests' caches has frames.
class file_set {
 public:
  explicit file_set(std::uint64_t page, bool with_many_pages = false) {
    std::vector<std::uint64_t> sizes = {0, 1, page - 1, page, page + 1, 3 * page + 17, 9 * page};
    if (page <= 65536) sizes.push_back(40 * page - 3);
    if (with_many_pages) sizes.push_back(1000 * page - 77);
    pull_ = std::make_shared<store::mem_store>(simt::this_platform(), source_kind::pull);
    staged_ = std::make_shared<store::mem_store>(simt::this_platform(), source_kind::staged);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      names.push_back(numbered(i % 2 == 0 ? "f" : "dir/f", i));
      bytes.push_back(content(i + 1, 0, static_cast<std::size_t>(sizes[i])));
      dir.add(names[i], sizes[i], i + 1);
      pull_->put(names[i], bytes[i]);
      staged_->put(names[i], bytes[i]);
    }
    nil_nbytes_ = static_cast<std::int64_t>(9 * page + 3);
    let_file_times_pass();  // so that reopening finds the same version
  }

  std::shared_ptr<store::store> custom_store(source s) const {
    if (s == source::mem_pull) return pull_;
    if (s == source::mem_staged) return staged_;
    if (s == source::nil) return std::make_shared<store::nil_store>(nil_nbytes_);
    return nullptr;
  }
  std::int64_t nbytes(source s, std::size_t file) const {
    return s == source::nil ? nil_nbytes_ : static_cast<std::int64_t>(bytes[file].size());
  }

  temp_dir dir;
  std::vector<std::string> names;
  std::vector<std::vector<std::byte>> bytes;

 private:
  std::shared_ptr<store::mem_store> pull_, staged_;
  std::int64_t nil_nbytes_;
};

// What must come of one call.
struct expectation {
  op_kind kind;
  std::int64_t value = 0;   // the result; of open: 0 for any file number
  std::size_t file = 0;     // whose bytes
  std::int64_t offset = 0;  // and from where
  std::uint64_t pages = 0;  // pages touched when all goes well
  bool bad_number = false;
  bool reached_table = false;  // an open that got as far as the file table
};

struct program_shape {
  source from = source::posix;
  std::uint64_t page_nbytes = 4096;
  unsigned ncalls = 10;  // in a group
  std::uint64_t max_read = 4096;
  bool maps = true;
  bool asks_ahead = false;
  bool learns = false;  // most calls read a little, anywhere in the last of the files
};

// Draws one group's calls, and says beside each what must come of it.
class program {
 public:
  program(random_source& draw, const file_set& files, const program_shape& shape) : draw_(draw), files_(files), shape_(shape) {
    for (unsigned i = 0; i < shape.ncalls; ++i) step();
    for (unsigned p = 0; p < pages_per_group; ++p) {
      if (maps_[p].held) unmap(p);
    }
    for (unsigned f = 0; f < files_per_group; ++f) {
      if (open_[f] >= 0) close(f);
    }
  }

  const script& calls() const { return calls_; }
  const std::vector<expectation>& expected() const { return expected_; }
  unsigned most_maps() const { return most_maps_; }

 private:
  struct mapping {
    bool held = false;
    std::size_t file = 0;
    std::int64_t offset = 0, nbytes = 0;
  };

  void step() {
    const auto f = static_cast<unsigned>(draw_.below(files_per_group));
    if (open_[f] < 0) return draw_.percent(85) ? open(f) : without_file(f);
    if (shape_.learns && draw_.percent(80)) return read(f);
    const auto p = static_cast<unsigned>(draw_.below(pages_per_group));
    const std::uint64_t dice = draw_.below(100);
    if (dice < 10 && shape_.asks_ahead) {
      ahead(f);
    } else if (dice < 50) {
      read(f);
    } else if (dice < 75 && shape_.maps) {
      maps_[p].held ? (draw_.percent(50) ? look(p) : unmap(p)) : map(f, p);
    } else if (dice < 83) {
      expect({.kind = op_kind::fstat, .value = size_of(f)});
      calls_.fstat(f);
    } else if (dice < 90) {
      bad_read(f);
    } else {
      close(f);
    }
  }

  void open(unsigned f) {
    expectation e{.kind = op_kind::open};
    const std::uint64_t dice = draw_.below(100);
    if (dice < 5 && shape_.from != source::nil) {
      e.value = -ENOENT;
      e.reached_table = true;
      calls_.open(f, numbered("no/such/file", draw_.below(3)));
    } else if (dice < 8) {
      e.value = -EROFS;
      calls_.open(f, files_.names[0], draw_.percent(50) ? O_RDWR : O_WRONLY | O_CREAT);
    } else {
      const std::size_t file = shape_.learns && draw_.percent(80) ? files_.names.size() - 1 : draw_.below(files_.names.size());
      e.reached_table = true;
      if (shape_.from == source::mapped && files_.bytes[file].empty()) {
        e.value = -EOPNOTSUPP;
      } else {
        open_[f] = static_cast<int>(file);
      }
      calls_.open(f, files_.names[file]);
    }
    expect(e);
  }

  // A call on what is no open file.
  void without_file(unsigned f) {
    const std::int32_t forged = draw_.percent(30) ? -static_cast<std::int32_t>(draw_.between(1, 200)) : 0x3ff;
    expect({.kind = op_kind::use_number, .value = forged});
    calls_.use_number(f, forged);
    switch (draw_.below(4)) {
      case 0:
        calls_.pread(f, 10, 0);
        break;
      case 1:
        calls_.close(f);
        break;
      case 2:
        calls_.fstat(f);
        break;
      default:
        calls_.map(f, pages_per_group - 1 - free_page(), 0, 0);
        break;
    }
    expect({.kind = calls_.ops().back().kind, .value = forged < 0 ? forged : -EBADF, .bad_number = true});
  }

  // How far from the last page slot one lies that holds nothing (a failed map would forget it).
  unsigned free_page() const {
    for (unsigned p = pages_per_group; p-- > 0;) {
      if (!maps_[p].held) return pages_per_group - 1 - p;
    }
    return 0;
  }

  std::int64_t size_of(unsigned f) const { return files_.nbytes(shape_.from, static_cast<std::size_t>(open_[f])); }

  // An offset: anywhere, near a page's end, or near the file's end and beyond.
  std::int64_t some_offset(std::int64_t size) {
    const std::uint64_t page = shape_.page_nbytes;
    const std::uint64_t pages = static_cast<std::uint64_t>(size) / page + 1;
    switch (draw_.below(4)) {
      case 0:
        return static_cast<std::int64_t>(draw_.below(static_cast<std::uint64_t>(size) + 1));
      case 1:
        return static_cast<std::int64_t>(draw_.below(pages) * page + page - draw_.between(1, 64));
      case 2:
        return static_cast<std::int64_t>(draw_.below(pages) * page);
      default:
        return std::max<std::int64_t>(0, size - static_cast<std::int64_t>(draw_.below(80))) +
               static_cast<std::int64_t>(draw_.below(40));
    }
  }

  // What changes no result.
  void ahead(unsigned f) {
    const std::int64_t offset = some_offset(size_of(f));
    const std::uint64_t nbytes = draw_.between(0, shape_.max_read);
    if (draw_.percent(50)) {
      calls_.prefetch(f, offset, nbytes);
    } else {
      calls_.advise(f, offset, nbytes, static_cast<advice>(draw_.below(7)));
    }
    expect({.kind = calls_.ops().back().kind});
  }

  void read(unsigned f) {
    const std::int64_t size = size_of(f);
    const bool little = shape_.learns && draw_.percent(90);
    const std::int64_t offset =
        little ? static_cast<std::int64_t>(draw_.below(static_cast<std::uint64_t>(size) + 1)) : some_offset(size);
    const std::uint64_t nbytes = little              ? draw_.between(1, 32)
                                 : draw_.percent(5)  ? 0
                                 : draw_.percent(50) ? draw_.between(1, 100)
                                                     : draw_.between(1, shape_.max_read);
    const std::int64_t left = std::max<std::int64_t>(0, size - offset);
    expectation e{.kind = op_kind::pread, .value = std::min<std::int64_t>(left, static_cast<std::int64_t>(nbytes))};
    e.file = static_cast<std::size_t>(open_[f]);
    e.offset = offset;
    if (e.value > 0) {
      const auto page = static_cast<std::int64_t>(shape_.page_nbytes);
      e.pages = static_cast<std::uint64_t>((offset + e.value - 1) / page - offset / page + 1);
    }
    expect(e);
    calls_.pad(draw_.below(17));
    calls_.pread(f, nbytes, offset);
  }

  void bad_read(unsigned f) {
    expectation e{.kind = op_kind::pread, .file = static_cast<std::size_t>(open_[f])};
    switch (draw_.below(3)) {
      case 0:
        e.value = -EINVAL;
        calls_.pread(f, draw_.below(100), -1 - static_cast<std::int64_t>(draw_.below(1000)));
        break;
      case 1:
        e.value = -EOVERFLOW;
        calls_.pread(f, 100, INT64_MAX - static_cast<std::int64_t>(draw_.below(99)));
        break;
      default:
        e.kind = op_kind::map;
        e.value = -ENXIO;
        calls_.map(f, pages_per_group - 1 - free_page(), size_of(f) + static_cast<std::int64_t>(draw_.below(3)), 0);
        if (std::all_of(std::begin(maps_), std::end(maps_), [](const mapping& m) { return m.held; })) std::abort();
        break;
    }
    expect(e);
  }

  void map(unsigned f, unsigned p) {
    const std::int64_t size = size_of(f);
    if (size == 0) return;
    mapping m{.held = true, .file = static_cast<std::size_t>(open_[f])};
    m.offset = std::min(some_offset(size), size - 1);
    const auto page = static_cast<std::int64_t>(shape_.page_nbytes);
    m.nbytes = std::min(page - m.offset % page, size - m.offset);
    unsigned held = 1;
    for (const mapping& other : maps_) held += other.held;
    if (held == pages_per_group) return;  // one stays free for maps that fail
    most_maps_ = std::max(most_maps_, held);
    maps_[p] = m;
    expect({.kind = op_kind::map, .value = m.nbytes, .file = m.file, .offset = m.offset, .pages = 1});
    calls_.map(f, p, m.offset, std::min<std::uint64_t>(shape_.max_read, static_cast<std::uint64_t>(m.nbytes)));
  }
  void look(unsigned p) {
    const mapping& m = maps_[p];
    expect({.kind = op_kind::look, .value = m.nbytes, .file = m.file, .offset = m.offset});
    calls_.look(p, std::min<std::uint64_t>(shape_.max_read, static_cast<std::uint64_t>(m.nbytes)));
  }
  void unmap(unsigned p) {
    maps_[p].held = false;
    expect({.kind = op_kind::unmap});
    calls_.unmap(p);
  }
  void close(unsigned f) {
    open_[f] = -1;
    expect({.kind = op_kind::close});
    calls_.close(f);
  }
  void expect(const expectation& e) { expected_.push_back(e); }

  random_source& draw_;
  const file_set& files_;
  program_shape shape_;
  script calls_;
  std::vector<expectation> expected_;
  int open_[files_per_group] = {-1, -1, -1, -1};
  mapping maps_[pages_per_group];
  unsigned most_maps_ = 0;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
