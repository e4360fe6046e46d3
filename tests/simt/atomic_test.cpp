// SPDX-License-Identifier: Apache-2.0
// Atomics under contention, and what their orders promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <type_traits>

#include "gpufs/simt/simt.hpp"
#include "harness.hpp"

namespace gpufs::simt::test {
namespace {

constexpr unsigned grid = 4, threads = 64, total = grid * threads;

template <class T>
struct counters {
  T added, relaxed, subtracted, by_compare, ored, anded, exchanged, taken_sum, kept, least, most, least_seen, most_seen;
};

template <class T, scope S>
struct contention_kernel {
  counters<T>* c;
  unsigned nrounds;
  GPUFS_DEVICE void operator()() const {
    const unsigned me = block_rank() * block_size() + thread_rank();
    for (unsigned i = 0; i < nrounds; ++i) {
      atomic_ref<T, S>(c->added).fetch_add(3, std::memory_order_relaxed);
      atomic_ref<T, S>(c->relaxed).add_relaxed(static_cast<T>(me));
      atomic_ref<T, S>(c->subtracted).fetch_sub(2, std::memory_order_acq_rel);
      T seen = atomic_ref<T, S>(c->by_compare).load(std::memory_order_relaxed);
      backoff wait;
      while (!atomic_ref<T, S>(c->by_compare).compare_exchange(seen, seen + 1, std::memory_order_acq_rel)) wait();
    }
    if constexpr (std::is_same_v<T, std::uint64_t> && S != scope::block) {
      const kept_ref<S> kept(c->kept);
      kept.fetch_add(2, std::memory_order_acquire);
      kept.fetch_add_after_loads(kept.load_relaxed() == 0 ? 3 : 1);  // never 0 by now
    }
    atomic_ref<T, S>(c->ored).fetch_or(T{1} << (me % (8 * sizeof(T) - 1)), std::memory_order_release);
    atomic_ref<T, S>(c->anded).fetch_and(static_cast<T>(~(T{1} << (me % 16))), std::memory_order_acquire);
    // About 0, and about the middle of the unsigned: an order that is not the type's has other ends.
    const T low = static_cast<T>(me) - static_cast<T>(total / 2);
    const T less = atomic_ref<T, S>(c->least).fetch_min(low, std::memory_order_acq_rel);
    const T more = atomic_ref<T, S>(c->most).fetch_max(low, std::memory_order_release);
    atomic_ref<T, S>(c->least_seen).fetch_max(less < low ? T{0} : T{1}, std::memory_order_relaxed);
    atomic_ref<T, S>(c->most_seen).fetch_max(more < low ? T{1} : T{0}, std::memory_order_seq_cst);
    // Every value put in comes out once, but for the last.
    const T out = atomic_ref<T, S>(c->exchanged).exchange(static_cast<T>(me + 1), std::memory_order_acq_rel);
    atomic_ref<T, S>(c->taken_sum).fetch_add(out, std::memory_order_seq_cst);
  }
};

template <class T, scope S>
void check_contention() {
  device_array<counters<T>> c(1);
  counters<T> start{};
  start.anded = static_cast<T>(~T{0});
  start.least = start.most = 5;
  this_platform().copy_to_device(c.get(), &start, sizeof start);
  const unsigned nrounds = 5 * effort;
  launch({.grid = grid, .block = threads}, contention_kernel<T, S>{c.get(), nrounds});
  const counters<T> end = c.read_one();
  EXPECT_EQ(end.added, static_cast<T>(3 * total * nrounds));
  EXPECT_EQ(end.relaxed, static_cast<T>(nrounds * (total * (total - 1) / 2)));
  EXPECT_EQ(end.subtracted, static_cast<T>(T{0} - static_cast<T>(2 * total * nrounds)));
  EXPECT_EQ(end.by_compare, static_cast<T>(total * nrounds));
  constexpr bool is_kept = std::is_same_v<T, std::uint64_t> && S != scope::block;
  EXPECT_EQ(end.kept, is_kept ? T{3 * total} : T{0});
  T ored = 0;
  for (unsigned i = 0; i < total; ++i) ored |= T{1} << (i % (8 * sizeof(T) - 1));
  EXPECT_EQ(end.ored, ored);
  EXPECT_EQ(end.anded, static_cast<T>(~T{0xffff}));
  EXPECT_EQ(end.least, std::is_signed_v<T> ? static_cast<T>(T{0} - static_cast<T>(total / 2)) : T{0});
  EXPECT_EQ(end.most, std::is_signed_v<T> ? static_cast<T>(total / 2 - 1) : static_cast<T>(~T{0}));
  EXPECT_EQ(end.least_seen, T{1}) << "somebody has found more than they put in";
  EXPECT_EQ(end.most_seen, T{1});
  EXPECT_EQ(end.taken_sum + end.exchanged, static_cast<T>(total * (total + 1) / 2));
}

TEST(atomics, exact_under_contention) {
  check_contention<std::uint32_t, scope::device>();
  check_contention<std::int32_t, scope::device>();
  check_contention<std::uint64_t, scope::device>();
  check_contention<std::uint64_t, scope::system>();
  check_contention<std::int64_t, scope::system>();
  check_contention<std::uint32_t, scope::system>();
}

struct types_kernel {
  double* d;
  float* f;
  unsigned** p;
  unsigned* errors;
  GPUFS_DEVICE void operator()() const {
    if (thread_rank() != 0) return;
    unsigned bad = 0;
    atomic_ref<double>(*d).store(2.5, std::memory_order_release);
    bad += atomic_ref<double>(*d).load(std::memory_order_acquire) != 2.5;
    float expected = 1.0f;
    bad += atomic_ref<float>(*f).compare_exchange(expected, 4.0f, std::memory_order_relaxed);
    bad += expected != 0.0f;
    bad += !atomic_ref<float>(*f).compare_exchange(expected, 4.0f, std::memory_order_seq_cst);
    bad += atomic_ref<float>(*f).load(std::memory_order_seq_cst) != 4.0f;
    atomic_ref<unsigned*, scope::block>(*p).store(errors, std::memory_order_seq_cst);
    bad += atomic_ref<unsigned*, scope::block>(*p).exchange(nullptr, std::memory_order_acquire) != errors;
    const double& readable = *d;
    bad += atomic_ref<const double>(readable).load(std::memory_order_relaxed) != 2.5;
    atomic_ref<unsigned>(*errors).add_relaxed(bad);
  }
};

TEST(atomics, of_any_type_of_4_or_8_bytes) {
  device_array<double> d(1);
  device_array<float> f(1);
  device_array<unsigned*> p(1);
  device_array<unsigned> errors(1);
  launch({.grid = 1, .block = 32}, types_kernel{d.get(), f.get(), p.get(), errors.get()});
  EXPECT_EQ(errors.read_one(), 0u);
}

struct message {
  std::uint32_t flag;
  std::uint32_t payload[15];
};

// Message passing: the first half of the blocks writes plain words and then a flag, the second half reads them.
struct message_kernel {
  message* messages;
  unsigned nmessages;
  bool fences;
  unsigned* errors;
  GPUFS_DEVICE void operator()() const {
    const unsigned half = grid_size() / 2;
    const bool writer = block_rank() < half;
    const unsigned first = (block_rank() % half) * block_size() + thread_rank();
    unsigned bad = 0;
    for (unsigned i = first; i < nmessages; i += half * block_size()) {
      message& m = messages[i];
      if (writer) {
        for (unsigned j = 0; j < 15; ++j) m.payload[j] = i * 16 + j;
        if (fences) {
          fence(std::memory_order_release, scope::device);
          atomic_ref<std::uint32_t>(m.flag).store(1, std::memory_order_relaxed);
        } else {
          atomic_ref<std::uint32_t>(m.flag).store(1, std::memory_order_release);
        }
      } else {
        backoff wait;
        const deadline end(60'000'000'000);
        if (fences) {
          while (atomic_ref<std::uint32_t>(m.flag).load(std::memory_order_relaxed) == 0 && !end.expired()) wait();
          fence(std::memory_order_acquire, scope::device);
        } else {
          while (atomic_ref<std::uint32_t>(m.flag).load(std::memory_order_acquire) == 0 && !end.expired()) wait();
        }
        for (unsigned j = 0; j < 15; ++j) bad += m.payload[j] != i * 16 + j;
      }
    }
    if (bad != 0) atomic_ref<unsigned>(*errors).add_relaxed(bad);
  }
};

TEST(atomics, release_and_acquire_pass_messages) {
  const unsigned nmessages = 2000 * effort;
  for (const bool fences : {false, true}) {
    device_array<message> messages(nmessages);
    device_array<unsigned> errors(1);
    launch({.grid = 4, .block = 64}, message_kernel{messages.get(), nmessages, fences, errors.get()});
    EXPECT_EQ(errors.read_one(), 0u);
  }
}

// A group's leader acquires, the group's collective passes it on to the others.
struct group_message_kernel {
  message* messages;
  unsigned nmessages;
  unsigned* errors;
  GPUFS_DEVICE void operator()() const {
    const warp group = this_warp();
    unsigned bad = 0;
    for (unsigned i = 0; i < nmessages; ++i) {
      message& m = messages[i];
      if (block_rank() == 0) {
        if (group.rank() < 15) m.payload[group.rank()] = i * 16 + group.rank();
        group.sync();
        if (group.leader()) atomic_ref<std::uint32_t>(m.flag).store(i + 1, std::memory_order_release);
      } else {
        backoff wait;
        const deadline end(60'000'000'000);
        for (;;) {
          std::uint32_t flag = 0;
          if (group.leader()) flag = atomic_ref<std::uint32_t>(m.flag).load(std::memory_order_acquire);
          flag = group.broadcast(flag);
          if (flag == i + 1 || group.any(end.expired())) break;
          wait();
        }
        if (group.rank() < 15) bad += m.payload[group.rank()] != i * 16 + group.rank();
      }
    }
    if (bad != 0) atomic_ref<unsigned>(*errors).add_relaxed(bad);
  }
};

TEST(atomics, a_collective_passes_an_acquire_on) {
  const unsigned nmessages = 50 * effort;
  device_array<message> messages(nmessages);
  device_array<unsigned> errors(1);
  launch({.grid = 2, .block = 32}, group_message_kernel{messages.get(), nmessages, errors.get()});
  EXPECT_EQ(errors.read_one(), 0u);
}

struct store_buffer {
  std::uint32_t x, y, r1, r2;
};

// Dekker: with a seq_cst fence between its store and its load, at least one side sees the other's store.
struct dekker_kernel {
  store_buffer* cells;
  unsigned ncells;
  GPUFS_DEVICE void operator()() const {
    for (unsigned i = thread_rank(); i < ncells; i += block_size()) {
      store_buffer& c = cells[i];
      const bool first = block_rank() == 0;
      atomic_ref<std::uint32_t>(first ? c.x : c.y).store(1, std::memory_order_relaxed);
      fence(std::memory_order_seq_cst, scope::device);
      const std::uint32_t seen = atomic_ref<std::uint32_t>(first ? c.y : c.x).load(std::memory_order_relaxed);
      (first ? c.r1 : c.r2) = seen;
    }
  }
};

TEST(atomics, seq_cst_fences_order_stores_before_loads) {
  const unsigned ncells = 1000 * effort;
  device_array<store_buffer> cells(ncells);
  launch({.grid = 2, .block = 64}, dekker_kernel{cells.get(), ncells});
  for (const auto& c : cells.read()) ASSERT_TRUE(c.r1 == 1 || c.r2 == 1);
}

// Host and kernel take turns through pinned memory; each writes a word of its own.
struct turns_kernel {
  std::uint32_t* to_host;
  std::uint32_t* to_device;
  std::uint32_t* host_payload;
  std::uint32_t* device_payload;
  unsigned nturns;
  unsigned* errors;
  GPUFS_DEVICE void operator()() const {
    if (thread_rank() != 0) return;
    unsigned bad = 0;
    for (unsigned i = 1; i <= nturns; ++i) {
      *device_payload = i * 3;
      atomic_ref<std::uint32_t, scope::system>(*to_host).store(i, std::memory_order_release);
      backoff wait;
      const deadline end(30'000'000'000);
      while (atomic_ref<std::uint32_t, scope::system>(*to_device).load(std::memory_order_acquire) != i && !end.expired()) wait();
      bad += *host_payload != i * 5;
    }
    atomic_ref<unsigned>(*errors).add_relaxed(bad);
  }
};

TEST(atomics, system_scope_meets_the_host) {
  pinned_array<std::uint32_t> words(64);  // a cache line for each side
  device_array<unsigned> errors(1);
  const unsigned nturns = 50 * effort;
  unsigned host_errors = 0;
  std::thread host([&] {
    for (unsigned i = 1; i <= nturns; ++i) {
      while (atomic_ref<std::uint32_t, scope::system>(words[0]).load(std::memory_order_acquire) != i) std::this_thread::yield();
      host_errors += words[1] != i * 3;
      words[33] = i * 5;
      atomic_ref<std::uint32_t, scope::system>(words[32]).store(i, std::memory_order_release);
    }
  });
  launch({.grid = 1, .block = 32},
         turns_kernel{words.get(), words.get() + 32, words.get() + 33, words.get() + 1, nturns, errors.get()});
  host.join();
  EXPECT_EQ(errors.read_one(), 0u);
  EXPECT_EQ(host_errors, 0u);
}

}  // namespace
}  // namespace gpufs::simt::test
