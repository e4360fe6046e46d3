// SPDX-License-Identifier: Apache-2.0
// What every source must do for those who read and write files, from the open to the close: bytes, ends, errors, short answers,
// late ones, and kernels that end before the answer. Also of pages that the copy engine brings in.
#include <functional>
#include <set>

#include "ext4_image.hpp"
#include "file/faulty_store.hpp"
#include "file/noting_store.hpp"
#include "file/script.hpp"
#include "forwarding_platform.hpp"
#include "gpufs/nvme/soft_controller.hpp"
#include "gpufs/store/mapped_store.hpp"
#include "gpufs/store/mem_store.hpp"
#include "gpufs/store/nil_store.hpp"
#include "gpufs/store/nvme_store.hpp"
#include "gpufs/store/posix_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t seed = 3;

// A store whose "file", of so many bytes, is read from the source by who opens it with these flags.
struct subject {
  const char* name;
  source_kind kind;
  int flags;
  std::function<std::shared_ptr<store::store>(const temp_dir&, std::uint64_t nbytes)> make;
  bool in_memory = false;           // the folder is in memory, where the device may write in place
  std::uint32_t page_nbytes = 512;  // 64 KiB: the copy engine brings in what the device could read itself

  bool has_bytes() const { return kind != source_kind::nil && kind != source_kind::zero; }
  bool is_written() const { return !has_version(kind); }
  // And can be made to fail.
  bool is_asked_of_the_host() const { return !in_memory && may_ask_host(kind); }
  bool is_by_engine() const { return page_nbytes >= least_copied_nbytes && may_be_copied(kind); }
};
void PrintTo(const subject& s, std::ostream* out) { *out << s.name; }

std::shared_ptr<store::store> in_mem(source_kind kind, std::uint64_t nbytes) {
  auto files = std::make_shared<store::mem_store>(simt::this_platform(), kind);
  files->put("file", content(seed, 0, nbytes));
  return files;
}
template <bool Later, source_kind Version = source_kind::staged>
std::shared_ptr<store::store> faulty(const temp_dir& dir, std::uint64_t) {
  return std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir.path(), store::posix_options{.writable = true}),
                                        Later, Version);
}

std::shared_ptr<store::store> mapping(const temp_dir& dir, std::uint64_t) { return mapping_store(dir.path()); }
std::shared_ptr<store::store> registered(const temp_dir& dir, std::uint64_t) {
  return std::make_shared<store::mapped_store>(simt::this_platform(), dir.path());
}
std::shared_ptr<store::store> in_place(const temp_dir& dir, std::uint64_t) {
  return std::make_shared<noting_store>(mapping_store(dir.path()));
}
template <source_kind Kind>
std::shared_ptr<store::store> in_mem(const temp_dir&, std::uint64_t nbytes) {
  return in_mem(Kind, nbytes);
}
std::shared_ptr<store::store> of_nothing(const temp_dir&, std::uint64_t nbytes) {
  return std::make_shared<store::nil_store>(nbytes);
}

// "file" is the first bytes of a namespace: of one whose last block no file of this length fills.
class first_of_namespace final : public store::store {
 public:
  first_of_namespace(std::shared_ptr<store> under, std::uint64_t nbytes, std::string name = "n1")
      : under_(std::move(under)), nbytes_(static_cast<std::int64_t>(nbytes)), name_(std::move(name)) {}
  std::unique_ptr<gpufs::store::open_file> open(std::string_view path, int flags, int* error) override {
    auto opened = under_->open(path == "file" ? name_ : path, flags, error);
    return opened ? std::make_unique<part>(std::move(opened), nbytes_) : nullptr;
  }
  std::string_view name() const override { return "nvme"; }

 private:
  class part final : public gpufs::store::open_file {
   public:
    part(std::unique_ptr<open_file> whole, std::int64_t nbytes) : whole_(std::move(whole)), info_(whole_->info()) {
      info_.nbytes = nbytes;
    }
    const gpufs::store::file_info& info() const override { return info_; }
    std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override { return whole_->pread(dst, offset); }
    int check_version() const override { return whole_->check_version(); }

   private:
    std::unique_ptr<open_file> whole_;
    gpufs::store::file_info info_;
  };
  std::shared_ptr<store> under_;
  std::int64_t nbytes_;
  std::string name_;
};

// Blocks of 4 KiB are larger than a page.
template <std::uint32_t BlockShift>
std::shared_ptr<store::store> of_controller(const temp_dir&, std::uint64_t nbytes) {
  const std::uint64_t block = 1u << BlockShift;
  auto soft = std::make_shared<nvme::soft_controller>(
      simt::this_platform(), nvme::soft_options{.nblocks = (nbytes + block - 1) / block, .block_shift = BlockShift});
  soft->write_image(0, content(seed, 0, nbytes));
  const nvme::controller_options driver{.nqueues = 2, .depth = 32, .buffer_nbytes = 8192};
  return std::make_shared<first_of_namespace>(std::make_shared<store::nvme_store>(simt::this_platform(), soft, driver), nbytes);
}

// "file" is the first bytes of a stripe over two controllers.
std::shared_ptr<store::store> striped(const temp_dir&, std::uint64_t nbytes) {
  constexpr std::uint32_t unit = 4096;
  const std::uint64_t rows = std::max<std::uint64_t>((nbytes + 2 * unit - 1) / (2 * unit), 1);
  const std::vector<std::byte> all = content(seed, 0, rows * 2 * unit);
  store::nvme_store::controllers controllers;
  for (std::uint64_t part = 0; part < 2; ++part) {
    auto soft = std::make_shared<nvme::soft_controller>(simt::this_platform(), nvme::soft_options{.nblocks = rows * unit / 512});
    std::vector<std::byte> bytes;
    for (std::uint64_t row = 0; row < rows; ++row) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>((2 * row + part) * unit);
      bytes.insert(bytes.end(), begin, begin + static_cast<std::ptrdiff_t>(unit));
    }
    soft->write_image(0, bytes);
    controllers.push_back(std::move(soft));
  }
  const nvme::controller_options driver{.nqueues = 2, .depth = 32, .buffer_nbytes = 8192};
  const std::vector<store::nvme_volume> volumes{{"file", store::nvme_volume_kind::stripe, {"c0n1", "c1n1"}, unit}};
  return std::make_shared<first_of_namespace>(
      std::make_shared<store::nvme_store>(simt::this_platform(), controllers, driver, volumes), nbytes, "file");
}

// Its blocks are in two pieces at least, as a map's own blocks lie between them.
std::shared_ptr<store::store> in_ext4(const temp_dir& dir, std::uint64_t) {
  const ext4_image image;
  image.make("-t ext2 -b 1024", 8 << 10, dir.path());
  auto soft = std::make_shared<nvme::soft_controller>(simt::this_platform(), nvme::soft_options{.image = image.path()});
  const nvme::controller_options driver{.nqueues = 2, .depth = 32, .buffer_nbytes = 8192};
  return store::make_ext4_store(simt::this_platform(), std::make_unique<store::nvme_store>(simt::this_platform(), soft, driver));
}

const std::vector<subject> always = {
    {"nil", source_kind::nil, O_RDONLY, of_nothing},
    {"pull", source_kind::pull, O_RDONLY, in_mem<source_kind::pull>},
    {"pull_by_engine", source_kind::pull, O_RDONLY, registered, true, least_copied_nbytes},
    {"mem", source_kind::mem, O_RDONLY, in_mem<source_kind::mem>},
    {"nvme", source_kind::nvme, O_RDONLY, of_controller<9>},
    {"nvme_blocks_larger_than_pages", source_kind::nvme, O_RDONLY, of_controller<12>},
    {"nvme_pages_of_many_commands", source_kind::nvme, O_RDONLY, of_controller<9>, false, least_copied_nbytes},
    {"nvme_stripe", source_kind::nvme, O_RDONLY, striped},
    {"staged", source_kind::staged, O_RDONLY, faulty<false>},
    {"staged_later", source_kind::staged, O_RDONLY, faulty<true>},
    {"windows", source_kind::windows, O_RDONLY, mapping, true},
    {"windows_staged", source_kind::windows, O_RDONLY, faulty<false, source_kind::windows>},
    {"windows_staged_later", source_kind::windows, O_RDONLY, faulty<true, source_kind::windows>},
    {"windows_by_engine", source_kind::windows, O_RDONLY, mapping, true, least_copied_nbytes},
    {"live", source_kind::live, O_RDWR, faulty<false>},
    {"live_later", source_kind::live, O_RDWR, faulty<true>},
    {"live_in_place", source_kind::live, O_RDWR, in_place, true},
    {"zero", source_kind::zero, O_WRONLY | O_GWRONCE, faulty<false>},
    {"zero_in_place", source_kind::zero, O_WRONLY | O_GWRONCE, in_place, true},
};
const std::vector<subject> subjects = [] {
  std::vector<subject> all = always;
  if (no_ext4().empty()) all.push_back({"nvme_extents", source_kind::nvme, O_RDONLY, in_ext4});
  return all;
}();

TEST(the_sources, all_have_a_subject) {
  std::set<source_kind> tried;
  for (const subject& s : subjects) tried.insert(s.kind);
  EXPECT_EQ(tried.size(), source::count);
}

// Those that are so.
template <class Is>
auto only(Is is) {
  std::vector<subject> those;
  std::copy_if(subjects.begin(), subjects.end(), std::back_inserter(those), is);
  return ::testing::ValuesIn(those);
}
std::string name_of(const ::testing::TestParamInfo<subject>& p) { return p.param.name; }

class sources : public ::testing::TestWithParam<subject> {
 protected:
  sources() : dir_(GetParam().in_memory ? memory_directory() : std::filesystem::temp_directory_path()) {
    dir_.add("file", nbytes, seed);
    let_file_times_pass();
    store_ = GetParam().make(dir_, nbytes);
  }
  const subject& its() const { return GetParam(); }
  bool is_written() const { return !has_version(its().kind); }
  mount_options options(std::uint32_t nframes, std::chrono::nanoseconds io_timeout = seconds(60)) const {
    mount_options o;
    o.page_nbytes = page;
    o.cache_nbytes = std::uint64_t{nframes} * page;
    o.custom_store = store_;
    o.writable = is_written();
    o.max_open_files = 16;
    o.nworkers = 8;
    o.internals.request_batch = 1;
    o.io_timeout = io_timeout;
    o.copy_engine = its().is_by_engine();
    return o;
  }
  mount make(std::uint32_t nframes, std::chrono::nanoseconds io_timeout = seconds(60)) const {
    return mount(dir_.path(), options(nframes, io_timeout));
  }
  script opened() const {
    script s;
    s.open(0, "file", its().flags);
    return s;
  }
  // Who has waited 100 ms for a copy on this machine gives it up, and its frame stays under way until somebody comes by the answer.
  void expect_nothing_left(const mount& m) const {
    EXPECT_EQ(m.counters().pins, 0u);
    EXPECT_TRUE(its().is_by_engine() || m.counters().under_way == 0) << m.counters().under_way;
  }
  // Of a source that faulty_store serves.
  faults& wrong() const { return dynamic_cast<faulty_store&>(*store_).wrong(); }

  const std::uint32_t page = GetParam().page_nbytes;
  const std::uint64_t nbytes = 40 * page + 77;
  temp_dir dir_;
  std::shared_ptr<store::store> store_;
};

class sources_with_bytes : public sources {
 protected:
  // The first read of groups of this kind that gives something else than the file's bytes; empty if there is none.
  std::string first_wrong_read(mount_ref fs, group_kind kind, std::uint64_t drawn) const {
    players groups(fs, {.grid = 2, .block = 64, .all = kind});
    struct wanted {
      std::size_t call;
      std::uint64_t nbytes, offset;
    };
    std::vector<script> scripts;
    std::vector<std::vector<wanted>> reads(groups.size());
    for (std::uint32_t g = 0; g < groups.size(); ++g) {
      random_source draw(g * 31 + drawn);
      script s = opened();
      for (int i = 0; i < 4; ++i) {
        const std::uint64_t offset = draw.between(0, nbytes), n = draw.between(1, (its().is_by_engine() ? 2 : 6) * page);
        const std::uint64_t there = std::min(n, nbytes - offset);
        if (i % 2 == 0) {
          reads[g].push_back({s.pread(0, n, static_cast<std::int64_t>(offset)), there, offset});
        } else {
          const auto begun = s.read_async(0, 0, n, static_cast<std::int64_t>(offset));
          const auto waited = s.wait(0);
          reads[g].push_back({begun, there, offset});
          reads[g].push_back({waited, there, offset});
        }
      }
      s.close(0);
      scripts.push_back(s);
    }
    const auto got = groups.run(scripts);
    for (std::uint32_t g = 0; g < groups.size(); ++g) {
      for (const wanted& w : reads[g]) {
        const outcome& of = got[g][w.call];
        const std::string where = numbered("group ", g) + numbered(" at ", w.offset);
        // The bytes of a wait are its read_async's.
        if (of.bytes.empty() && of.value != static_cast<std::int64_t>(w.nbytes)) return where + numbered(" gives ", of.value);
        if (!of.bytes.empty() && wrong_bytes(of, w.nbytes, seed, w.offset) != 0) return where + " gives other bytes";
      }
    }
    return {};
  }
};
class versions : public sources {};
class sources_without_bytes : public sources {};
class sources_that_ask_the_host : public sources {};
class sources_that_are_written : public sources {};
class sources_that_write_by_the_host : public sources {};

TEST_P(sources, say_what_they_are) {
  const mount m = make(64);
  players warp(m.ref(), {});
  script s = opened();
  const auto status = s.fstat(0);
  s.close(0);
  const auto got = warp.run(s);
  ASSERT_GE(got[0].value, 0);
  EXPECT_EQ(got[status].status().source, its().kind);
  EXPECT_EQ(got[status].value, static_cast<std::int64_t>(nbytes));
}

// By groups of each kind, in a cache that has room for all and in one that has not.
TEST_P(sources_with_bytes, give_the_bytes_of_the_file) {
  for (const group_kind kind : {group_kind::thread, group_kind::tile8, group_kind::warp, group_kind::block}) {
    for (const std::uint32_t nframes : {24u, 256u}) {
      const mount m = make(nframes);
      prepare_for_memcheck(m, "file", its().flags);
      EXPECT_EQ(first_wrong_read(m.ref(), kind, nframes), "");
      expect_nothing_left(m);
      const bool may_be_copied = its().is_by_engine(), is_copied = may_be_copied && its().kind == source_kind::pull;
      EXPECT_GE(m.counters().host_copies, is_copied ? 1u : 0u);
      EXPECT_LE(m.counters().host_copies, may_be_copied ? ~0u : 0u);
    }
  }
}

// An engine that does something else with a copy than what it was asked for.
class wrong_engine final : public forwarding_platform {
 public:
  using change = std::function<bool(simt::host_copy&)>;  // false: nothing is copied
  explicit wrong_engine(change what) : forwarding_platform(simt::this_platform()), what_(std::move(what)) {}
  std::unique_ptr<simt::copy_batch> make_copy_batch() override { return std::make_unique<batch>(real_.make_copy_batch(), what_); }

 private:
  class batch final : public simt::copy_batch {
   public:
    batch(std::unique_ptr<simt::copy_batch> real, change what) : real_(std::move(real)), what_(std::move(what)) {}
    void begin(std::span<simt::host_copy> copies) override {
      copies_.clear();
      for (simt::host_copy copy : copies) {
        if (what_(copy)) copies_.push_back(copy);
      }
      if (!copies_.empty()) real_->begin(copies_);
    }
    bool has_ended() override { return copies_.empty() || real_->has_ended(); }

   private:
    std::unique_ptr<simt::copy_batch> real_;
    change what_;
    std::vector<simt::host_copy> copies_;
  };
  change what_;
};

class engines : public sources_with_bytes {};

TEST_P(engines, that_are_wrong_are_found) {
  if (under_memcheck()) GTEST_SKIP() << "memcheck takes memory that is registered while a kernel runs for out of bounds";
  const struct {
    const char* does;
    wrong_engine::change what;
    bool is_wrong = true;
  } wrong[] = {
      {"copies what it is asked for", [](simt::host_copy&) { return true; }, false},
      {"says that it has copied, and copies nothing", [](simt::host_copy&) { return false; }},
      {"leaves out the last bytes",
       [](simt::host_copy& copy) {
         copy.nbytes -= std::min<std::size_t>(copy.nbytes, 100);
         return true;
       }},
      {"copies from a little behind the page",
       [](simt::host_copy& copy) {
         copy.from = static_cast<const std::byte*>(copy.from) + 512;  // behind the file's end lies the rest of its last page
         return true;
       }},
  };
  for (const auto& engine : wrong) {
    wrong_engine machine(engine.what);
    const host_mount m(machine, dir_.path(), options(24));
    const mount_ref fs(mount_inside(m).resident());
    bool is_wrong = false;
    std::uint64_t turn = 0;
    // Windows are registered, and copied from, once they were missed often.
    EXPECT_TRUE(wait_until([&] {
      is_wrong = !first_wrong_read(fs, group_kind::warp, ++turn).empty() || is_wrong;
      return m.counters().host_copies >= 24;
    }));
    EXPECT_EQ(is_wrong, engine.is_wrong) << "an engine that " << engine.does;
  }
}

TEST_P(versions, end_where_the_file_ends) {
  const mount m = make(64);
  prepare_for_memcheck(m, "file", its().flags);
  players warp(m.ref(), {});
  script s = opened();
  const auto mapped = s.map(0, 0, 40 * page, page);
  s.unmap(0);
  const auto beyond = s.pread(0, page, nbytes);
  s.close(0);
  const auto got = warp.run(s);
  EXPECT_EQ(got[mapped].value, 77);
  EXPECT_EQ(wrong_bytes(got[mapped], 77, seed, 40 * page), 0u);
  EXPECT_EQ(got[beyond].value, 0);
}

// nil: every read gives its count, and nothing is asked of anybody.
TEST_P(sources_without_bytes, without_bytes_bring_nothing_in) {
  const mount m = make(64);
  players warp(m.ref(), {});
  script s = opened();
  const auto read = s.pread(0, nbytes, 0);
  s.close(0);
  EXPECT_EQ(warp.run(s)[read].value, static_cast<std::int64_t>(nbytes));
  EXPECT_EQ(m.counters().host_reads, 0u);
}

TEST_P(sources_that_ask_the_host, tell_errors_to_those_who_read_there) {
  const mount m = make(64);
  players warp(m.ref(), {});
  wrong().fail_at(10 * page, 11 * page);
  script s = opened();
  const auto before = s.pread(0, 10 * page, 0), across = s.pread(0, 20 * page, 0), bad = s.pread(0, 10, 10 * page + 5);
  const auto behind = s.pread(0, 5 * page, 11 * page);
  const auto got = warp.run(s);
  EXPECT_EQ(got[before].value, 10 * page);
  EXPECT_EQ(wrong_bytes(got[before], 10 * page, seed, 0), 0u);
  EXPECT_EQ(got[across].value, -EIO);
  EXPECT_EQ(got[bad].value, -EIO);
  EXPECT_EQ(got[behind].value, 5 * page);
  wrong().heal();
  script again;
  const auto healed = again.pread(0, 20 * page, 0);
  again.close(0);
  const auto then = warp.run(again);
  EXPECT_EQ(then[healed].value, 20 * page);
  EXPECT_EQ(wrong_bytes(then[healed], 20 * page, seed, 0), 0u);
  EXPECT_EQ(m.counters().pins, 0u);
}

// The host's reads give less than they were asked for, which is no end.
TEST_P(sources_that_ask_the_host, go_on_after_short_answers) {
  const mount m = make(64);
  players warp(m.ref(), {});
  wrong().short_every = 2;
  script s = opened();
  const auto read = s.pread(0, nbytes, 0);
  s.close(0);
  const auto got = warp.run(s);
  EXPECT_EQ(got[read].value, static_cast<std::int64_t>(nbytes));
  EXPECT_EQ(wrong_bytes(got[read], nbytes, seed, 0), 0u);
}

// Cut by another process: a version ends, and a file that is open for writing has less.
TEST_P(sources_that_ask_the_host, of_a_file_that_is_cut) {
  const mount m = make(64);
  players warp(m.ref(), {});
  warp.run(opened());
  dir_.resize("file", 5 * page + 10);
  script s;
  const auto read = s.pread(0, 3 * page, 4 * page);
  s.close(0);
  const auto got = warp.run(s);
  if (!is_written()) {
    EXPECT_EQ(got[read].value, -ESTALE);
  } else {
    ASSERT_EQ(got[read].value, 3 * page) << "its size is what this mount knows";
    EXPECT_EQ(wrong_bytes(got[read], page + 10, seed, 4 * page), 0u);
    for (std::size_t i = page + 10; i < 3 * page; ++i) ASSERT_EQ(got[read].bytes[i], std::byte{0}) << i;
  }
}

TEST_P(sources_that_ask_the_host, answer_late) {
  const mount m = make(64, milliseconds(1500));
  players warp(m.ref(), {});
  ASSERT_GE(warp.run(opened())[0].value, 0);
  wrong().stall_at(3 * page, 4 * page);
  wrong().stall_gate.close();
  script s;
  const auto late = s.pread(0, page, 3 * page);
  const auto got = warp.run(s);
  EXPECT_EQ(got[late].value, -ETIMEDOUT);
  wrong().stall_gate.open();
  script again;
  const auto read = again.pread(0, 8 * page, 0);
  again.close(0);
  const auto then = warp.run(again);
  EXPECT_EQ(then[read].value, 8 * page);
  EXPECT_EQ(wrong_bytes(then[read], 8 * page, seed, 0), 0u);
  EXPECT_EQ(m.counters().pins, 0u);
}

// A kernel begins reads and ends; the next one finds all of it.
TEST_P(sources_with_bytes, survive_who_begins_and_leaves) {
  const mount m = make(256);
  prepare_for_memcheck(m, "file", its().flags);
  players warp(m.ref(), {});
  const bool is_held = its().is_asked_of_the_host() && !is_written();
  if (is_held) wrong().read_gate.close();
  script s = opened();
  s.prefetch(0, 0, 16 * page);
  s.read_async(0, 0, 4 * page, 20 * page);
  warp.run(s);
  EXPECT_EQ(m.counters().pins, 0u);
  if (is_held) wrong().read_gate.open();
  script rest;
  const auto read = rest.pread(0, nbytes, 0);
  rest.close(0);
  const auto got = warp.run(rest);
  EXPECT_EQ(got[read].value, static_cast<std::int64_t>(nbytes));
  EXPECT_EQ(wrong_bytes(got[read], nbytes, seed, 0), 0u);
  expect_nothing_left(m);
}

// Exactly what was written goes back, and the rest stays; also with pages that do not fit.
TEST_P(sources_that_are_written, take_what_is_written) {
  const mount m = make(24);
  if (its().kind != source_kind::zero) prepare_for_memcheck(m, "file", its().flags);
  players groups(m.ref(), {.grid = 2, .block = 64, .all = group_kind::warp});
  auto wanted = content(seed, 0, nbytes);
  std::vector<script> scripts(groups.size(), opened());
  random_source draw(11);
  for (std::uint32_t g = 0; g < groups.size(); ++g) {
    for (std::uint64_t at = g * 100; at + 100 <= nbytes; at += 100 * groups.size()) {
      const auto n = static_cast<std::size_t>(draw.between(1, 100));
      const auto bytes = content(g + 20, at, n);
      scripts[g].pwrite(0, bytes, static_cast<std::int64_t>(at));
      std::copy(bytes.begin(), bytes.end(), wanted.begin() + static_cast<std::ptrdiff_t>(at));
    }
    scripts[g].fsync(0, durability::page_cache);
    scripts[g].close(0);
  }
  for (const auto& got : groups.run(scripts)) {
    EXPECT_EQ(got[got.size() - 2].value, 0);
    EXPECT_EQ(got.back().value, 0);
  }
  EXPECT_EQ(dir_.read("file"), wanted);
  EXPECT_EQ(m.counters().dirty_frames, 0u);
  if (!its().in_memory) return;
  EXPECT_LE(dynamic_cast<noting_store&>(*store_).nwrites(), groups.size()) << "but for the page over the file's end";
}

TEST_P(sources_that_write_by_the_host, tell_errors_of_writes_once) {
  const mount m = make(64);
  players warp(m.ref(), {});
  wrong().fail_write_every = 1;
  script s = opened();
  s.pwrite(0, content(9, 0, 700), 100);
  const auto failed = s.fsync(0), told = s.fsync(0);
  const auto got = warp.run(s);
  EXPECT_EQ(got[failed].value, -EIO);
  EXPECT_EQ(got[told].value, 0);
  wrong().heal();
  script again;
  again.pwrite(0, content(9, 0, 700), 100);
  const auto synced = again.fsync(0);
  again.close(0);
  EXPECT_EQ(warp.run(again)[synced].value, 0);
  auto wanted = content(seed, 0, nbytes);
  const auto bytes = content(9, 0, 700);
  std::copy(bytes.begin(), bytes.end(), wanted.begin() + 100);
  EXPECT_EQ(dir_.read("file"), wanted);
}

INSTANTIATE_TEST_SUITE_P(each, sources, ::testing::ValuesIn(subjects), name_of);
INSTANTIATE_TEST_SUITE_P(each, sources_with_bytes, only([](const subject& s) { return s.has_bytes(); }), name_of);
INSTANTIATE_TEST_SUITE_P(each, engines, only([](const subject& s) { return s.is_by_engine(); }), name_of);
INSTANTIATE_TEST_SUITE_P(each, versions, only([](const subject& s) { return s.has_bytes() && !s.is_written(); }), name_of);
INSTANTIATE_TEST_SUITE_P(each, sources_without_bytes, only([](const subject& s) { return s.kind == source_kind::nil; }), name_of);
INSTANTIATE_TEST_SUITE_P(each, sources_that_ask_the_host,
                         only([](const subject& s) { return s.has_bytes() && s.is_asked_of_the_host(); }), name_of);
INSTANTIATE_TEST_SUITE_P(each, sources_that_are_written, only([](const subject& s) { return s.is_written(); }), name_of);
INSTANTIATE_TEST_SUITE_P(each, sources_that_write_by_the_host,
                         only([](const subject& s) { return s.is_written() && s.is_asked_of_the_host(); }), name_of);

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
