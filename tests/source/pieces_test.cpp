// SPDX-License-Identifier: Apache-2.0
// What each source says of where a piece of a file is, held against what it must say; and sources that say something else.
#include <atomic>
#include <optional>

#include "file/harness.hpp"
#include "gpufs/simt/detail/device_memory.hpp"
#include "gpufs/source/detail/list.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using source::opened_file;
using source::piece;
using source::place;

constexpr std::uint32_t page = 512, window_shift = 12;

// A file, as the words in memory say it, and what of it is wanted.
struct question {
  std::int64_t nbytes;  // of the version
  std::uint64_t base;
  file_bytes bytes;
  file_windows windows;
  std::uint64_t offset;
  std::uint32_t wanted;
};
struct answer {
  piece in, out;
};

template <class Source>
struct ask {
  question* questions;
  std::uint32_t n;
  answer* answers;

  GPUFS_DEVICE void operator()() const {
    for (std::uint32_t i = simt::block_rank() * simt::block_size() + simt::thread_rank(); i < n; i += simt::block_size()) {
      question& q = questions[i];
      const opened_file of{q.nbytes, q.base, &q.windows, &q.bytes, 0};
      answers[i].in = Source::find(of, q.offset, q.wanted);
      if constexpr (source::can_be_written<Source>) answers[i].out = Source::find_to_write(of, q.offset, q.wanted);
    }
  }
};

// Whether the device may touch all of these bytes of the mapping.
bool is_mapped(source_kind kind, const question& q, std::uint64_t offset, std::uint32_t nbytes) {
  if (kind == source_kind::pull) return true;
  if (!has_version(kind)) return offset + nbytes <= q.bytes.mapped_nbytes;
  if (kind != source_kind::windows || q.windows.pull_base != q.base) return false;
  for (std::uint64_t at = offset; at < offset + nbytes; ++at) {
    if ((q.windows.registered >> (at >> q.windows.shift) & 1) == 0) return false;
  }
  return true;
}

// What is wrong with an answer, in words.
std::optional<std::string> fault_of(source_kind kind, const question& q, const piece& got) {
  if (got.where == place::nowhere) return kind == source_kind::nil ? std::nullopt : std::optional("nothing is brought in");
  if (kind == source_kind::nil || (kind == source_kind::zero && got.where != place::zeros)) return "bytes are brought in";
  const auto size = static_cast<std::uint64_t>(has_version(kind) ? q.nbytes : q.bytes.nbytes);
  const std::uint64_t end = has_version(kind) ? size : std::min(size, q.bytes.host_nbytes);
  const std::uint64_t left = q.offset < end ? end - q.offset : 0;
  const std::uint64_t there = kind == source_kind::zero ? 0 : std::min<std::uint64_t>(left, q.wanted);
  if (got.nbytes > there) return "bytes that the file does not have";
  if (got.nbytes < there) return "bytes are left out";
  if ((got.where == place::zeros) != (there == 0)) return "zeros for bytes, or bytes for zeros";
  if (there == 0) return std::nullopt;
  const bool mapped = is_mapped(kind, q, q.offset, got.nbytes);
  switch (got.where) {
    case place::host_memory:
      if (!mapped) return "the device may not read there";
      break;
    case place::device:
      if (kind != source_kind::mem) return "it is not in device memory";
      break;
    case place::blocks:
      if (kind != source_kind::nvme) return "it is no namespace";
      return got.address == q.base ? std::nullopt : std::optional("of another namespace");
    default:
      return has_version(kind) && !may_ask_host(kind) ? std::optional("the host is asked for nothing")
             : mapped                                 ? std::optional("the host is asked for what is mapped")
                                                      : std::nullopt;
  }
  return got.address == q.base + q.offset ? std::nullopt : std::optional("from elsewhere");
}
std::optional<std::string> fault_of_write(source_kind kind, const question& q, const piece& got) {
  if (got.where != place::host_memory) {
    if (got.where != place::host) return "what is written goes nowhere";
    return is_mapped(kind, q, q.offset, q.wanted) ? std::optional("the host is asked to write what is mapped") : std::nullopt;
  }
  if (!is_mapped(kind, q, q.offset, q.wanted)) return "the device may not write there";
  return got.address == q.base + q.offset ? std::nullopt : std::optional("to elsewhere");
}

// Files of all kinds, and pieces within a page of them, at and around all that bounds them.
std::vector<question> questions_of(std::uint64_t seed) {
  random_source draw(seed);
  std::vector<question> all;
  for (int i = 0; i < 4000; ++i) {
    question q{};
    q.base = std::uint64_t{1} << 32 | draw.between(1, 1000) * 4096;
    q.nbytes = static_cast<std::int64_t>(draw.between(0, 8 * page + 100));
    q.bytes.nbytes = draw.percent(50) ? q.nbytes : static_cast<std::int64_t>(draw.between(0, 10 * page));
    q.bytes.base = q.base;
    q.bytes.host_nbytes = draw.percent(50) ? static_cast<std::uint64_t>(q.bytes.nbytes) : draw.between(0, 10 * page);
    q.bytes.mapped_nbytes = draw.percent(30) ? 0 : draw.percent(50) ? q.bytes.host_nbytes : draw.between(0, 10 * page);
    q.windows.shift = window_shift;
    q.windows.pull_base = draw.percent(70) ? q.base : draw.percent(50) ? 0 : q.base + 4096;
    q.windows.registered = draw.between(0, 3);
    const std::uint64_t ends[] = {static_cast<std::uint64_t>(q.nbytes), static_cast<std::uint64_t>(q.bytes.nbytes),
                                  q.bytes.host_nbytes, q.bytes.mapped_nbytes, draw.between(0, 10 * page)};
    const std::uint64_t near = ends[draw.between(0, 4)] / page * page;
    const std::uint64_t in_page = draw.percent(40) ? 0 : draw.between(0, page - 1);
    q.offset = near + in_page;
    q.wanted = static_cast<std::uint32_t>(draw.percent(40) ? page - in_page : draw.between(1, page - in_page));
    all.push_back(q);
  }
  return all;
}

// The first fault of a source that stands for this kind.
template <class Source>
std::optional<std::string> first_fault(source_kind kind) {
  const auto questions = questions_of(7);
  const std::span<const question> asked(questions);
  device_buffer<question> in(asked);
  device_buffer<answer> out(questions.size());
  simt::launch({.grid = 1, .block = 64}, ask<Source>{in.get(), static_cast<std::uint32_t>(questions.size()), out.get()});
  const auto answers = out.read();
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const question& q = questions[i];
    auto fault = fault_of(kind, q, answers[i].in);
    if (!fault && source::can_be_written<Source>) fault = fault_of_write(kind, q, answers[i].out);
    if (fault) return *fault + ", question " + std::to_string(i);
  }
  return std::nullopt;
}

template <class Source>
void expect_no_fault(source_kind kind, const char* name) {
  const auto fault = first_fault<Source>(kind);
  EXPECT_FALSE(fault) << name << ": " << *fault;
}

TEST(each_source, says_where_the_bytes_are) {
#define GPUFS_SOURCE(name, reader, of_version) expect_no_fault<source::name>(source_kind::name, #name);
  GPUFS_SOURCES(GPUFS_SOURCE)
#undef GPUFS_SOURCE
}

// --- Sources that are wrong ----------------------------------------------------------------------------------------------

struct reads_beyond_the_end {
  GPUFS_DEVICE static piece find(const opened_file& of, std::uint64_t offset, std::uint32_t wanted) {
    return {place::host_memory, wanted, of.base + offset};
  }
};
struct leaves_out_a_byte {
  GPUFS_DEVICE static piece find(const opened_file& of, std::uint64_t offset, std::uint32_t wanted) {
    piece got = source::pull::find(of, offset, wanted);
    if (got.nbytes > 1) --got.nbytes;
    return got;
  }
};
struct reads_the_first_page {
  GPUFS_DEVICE static piece find(const opened_file& of, std::uint64_t offset, std::uint32_t wanted) {
    piece got = source::pull::find(of, offset, wanted);
    got.address = of.base + offset % page;
    return got;
  }
};
struct takes_other_mappings_windows {
  GPUFS_DEVICE static piece find(const opened_file& of, std::uint64_t offset, std::uint32_t wanted) {
    const bool registered = (of.windows->registered >> (offset >> of.windows->shift) & 1) != 0;
    return source::version_at(registered ? place::host_memory : place::host, of, offset, wanted);
  }
};
struct asks_the_host_for_all {
  GPUFS_DEVICE static piece find(const opened_file& of, std::uint64_t offset, std::uint32_t wanted) {
    return source::staged::find(of, offset, wanted);
  }
};
struct adds_the_offset_to_the_namespace {
  GPUFS_DEVICE static piece find(const opened_file& of, std::uint64_t offset, std::uint32_t wanted) {
    return source::version_at(place::blocks, of, offset, wanted);
  }
};
struct reads_what_the_host_does_not_have : source::live {
  GPUFS_DEVICE static piece find(const opened_file& of, std::uint64_t offset, std::uint32_t wanted) {
    const std::uint32_t nbytes = source::nbytes_before(static_cast<std::uint64_t>(of.bytes->nbytes), offset, wanted);
    return nbytes == 0 ? piece{place::zeros, 0, 0} : find_to_write(of, offset, nbytes);
  }
};
struct stores_over_the_end_of_the_mapping : source::live {
  GPUFS_DEVICE static piece find_to_write(const opened_file& of, std::uint64_t offset, std::uint32_t nbytes) {
    return {offset < of.bytes->mapped_nbytes ? place::host_memory : place::host, nbytes, of.bytes->base + offset};
  }
};
struct writes_all_by_the_host : source::live {
  GPUFS_DEVICE static piece find_to_write(const opened_file&, std::uint64_t, std::uint32_t nbytes) {
    return {place::host, nbytes, 0};
  }
};
struct reads_for_write_once : source::zero {
  GPUFS_DEVICE static piece find(const opened_file& of, std::uint64_t offset, std::uint32_t wanted) {
    return source::live::find(of, offset, wanted);
  }
};

template <class Source>
void expect_fault(source_kind kind, const std::string& wanted) {
  const auto fault = first_fault<Source>(kind);
  ASSERT_TRUE(fault) << wanted << ": is not found";
  EXPECT_EQ(fault->substr(0, fault->find(',')), wanted);
}

TEST(each_source, that_is_wrong_is_found) {
  expect_fault<reads_beyond_the_end>(source_kind::pull, "bytes that the file does not have");
  expect_fault<leaves_out_a_byte>(source_kind::pull, "bytes are left out");
  expect_fault<reads_the_first_page>(source_kind::pull, "from elsewhere");
  expect_fault<takes_other_mappings_windows>(source_kind::windows, "the device may not read there");
  expect_fault<asks_the_host_for_all>(source_kind::mem, "the host is asked for nothing");
  expect_fault<asks_the_host_for_all>(source_kind::windows, "the host is asked for what is mapped");
  expect_fault<adds_the_offset_to_the_namespace>(source_kind::nvme, "of another namespace");
  expect_fault<asks_the_host_for_all>(source_kind::nvme, "the host is asked for nothing");
  expect_fault<source::mem>(source_kind::nvme, "it is not in device memory");
  expect_fault<source::nvme>(source_kind::mem, "it is no namespace");
  expect_fault<source::pull>(source_kind::mem, "the device may not read there");
  expect_fault<source::pull>(source_kind::windows, "the device may not read there");
  expect_fault<source::mem>(source_kind::pull, "it is not in device memory");
  expect_fault<reads_what_the_host_does_not_have>(source_kind::live, "bytes that the file does not have");
  expect_fault<stores_over_the_end_of_the_mapping>(source_kind::live, "the device may not write there");
  expect_fault<writes_all_by_the_host>(source_kind::live, "the host is asked to write what is mapped");
  expect_fault<reads_for_write_once>(source_kind::zero, "bytes are brought in");
  expect_fault<source::nil>(source_kind::staged, "nothing is brought in");
}

// --- Windows that the host changes meanwhile -----------------------------------------------------------------------------

// One mapping follows another; of the n-th, at n * mapping_nbytes, the windows are registered whose number is odd or even as n is.
constexpr std::uint64_t mapping_nbytes = 1 << 20;

// Asks about the mapping that is there, or was just now. How many answers say what was never so.
template <class Source>
struct ask_on {
  file_windows* windows;
  std::uint64_t* base;  // of the mapping that is there
  std::uint32_t* stop;
  std::uint64_t* wrong;  // how many; [1]: how many pieces were in the mapping

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const simt::deadline until(20'000'000'000);
    for (std::uint64_t i = 0; simt::atomic_ref<std::uint32_t>(*stop).load_relaxed() == 0 && !until.expired(); ++i) {
      const std::uint64_t its_base = simt::atomic_ref<std::uint64_t>(*base).load(std::memory_order_acquire);
      const opened_file of{std::int64_t{64} << window_shift, its_base, windows, nullptr, 0};
      const std::uint64_t window = i * 37 % 64;
      if (Source::find(of, window << window_shift, page).where != place::host_memory) continue;
      simt::atomic_ref<std::uint64_t>(wrong[1]).fetch_add(1, std::memory_order_relaxed);
      const bool was_so = window % 2 == its_base / mapping_nbytes % 2;
      simt::atomic_ref<std::uint64_t>(wrong[0]).fetch_add(was_so ? 0 : 1, std::memory_order_relaxed);
    }
  }
};

// What the host writes, as src/file/window_words.hpp does.
template <class Source>
std::pair<std::uint64_t, std::uint64_t> ask_while_the_host_changes(std::chrono::milliseconds within) {
  constexpr std::uint64_t even = 0x5555555555555555;
  const simt::device_memory memory(simt::this_platform());
  device_buffer<file_windows> windows(1);
  device_buffer<std::uint64_t> base(1);
  device_buffer<std::uint32_t> stop(1);
  device_buffer<std::uint64_t> counts(2);
  std::uint64_t n = 1;
  const auto put_next = [&] {
    const std::uint64_t none = 0, its_base = ++n * mapping_nbytes, registered = n % 2 == 0 ? even : ~even;
    const std::uint32_t shift = window_shift;
    memory.write_one(&windows.get()->pull_base, none);
    memory.write_one(&windows.get()->registered, registered);
    memory.write_one(&windows.get()->shift, shift);
    memory.write_one(&windows.get()->pull_base, its_base);
    memory.write_one(base.get(), its_base);
  };
  put_next();
  std::thread host([&] {
    wait_until([&] { return counts.read_one(1) != 0; });  // the kernel has begun
    const auto end = std::chrono::steady_clock::now() + within;
    while (std::chrono::steady_clock::now() < end && counts.read_one(0) == 0) {
      for (int i = 0; i < 100; ++i) put_next();
    }
    stop.write_one(1);
  });
  simt::launch({.grid = 1, .block = 32}, ask_on<Source>{windows.get(), base.get(), stop.get(), counts.get()});
  host.join();
  return {counts.read_one(0), counts.read_one(1)};
}

struct looks_at_the_mapping_once {
  GPUFS_DEVICE static piece find(const opened_file& of, std::uint64_t offset, std::uint32_t wanted) {
    file_windows& all = *of.windows;
    const bool ours = simt::atomic_ref<std::uint64_t>(all.pull_base).load(std::memory_order_acquire) == of.base;
    simt::backoff pause;
    for (const simt::deadline soon(100'000); !soon.expired();) pause();  // as a copy of the host's takes some us
    const std::uint64_t registered = simt::atomic_ref<std::uint64_t>(all.registered).load(std::memory_order_acquire);
    const bool is_registered = ours && (registered >> (offset >> all.shift) & 1) != 0;
    return source::version_at(is_registered ? place::host_memory : place::host, of, offset, wanted);
  }
};

TEST(windows_that_change, are_never_those_of_another_mapping) {
  const auto [wrong, found] = ask_while_the_host_changes<source::windows>(std::chrono::milliseconds(300));
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(found, 0u);
}

TEST(windows_that_change, are_those_of_another_mapping_for_who_looks_once) {
  if (under_tsan) GTEST_SKIP() << "ThreadSanitizer reports the race that this source is about";
  EXPECT_GT(ask_while_the_host_changes<looks_at_the_mapping_once>(std::chrono::seconds(15)).first, 0u);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
