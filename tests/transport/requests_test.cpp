// SPDX-License-Identifier: Apache-2.0
// What lanes do with the request rings, beside a host that answers when the test says so: slots that are taken, answered, given up
// and taken back.
#include <array>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "file/harness.hpp"
#include "gpufs/transport/detail/requests.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using transport::opcode;
using transport::reply;
using transport::request;
using transport::ticket;
using transport::transport_layout;

constexpr std::uint32_t payload_nbytes = 4096;
constexpr std::uint64_t soon_ns = 2'000'000, late_ns = 20'000'000'000;

// The rings, and a host of one thread: `on` answers a request, or holds it back (false) until release(). It takes the requests of a
// ring in order.
class small_host {
 public:
  using answerer = std::function<bool(const request&, std::byte* payload, reply& answer)>;
  small_host(std::uint32_t nrings, std::uint32_t nslots, answerer on)
      : on_(std::move(on)),
        nrings_(nrings),
        nslots_(nslots),
        requests_(nrings * nslots),
        replies_(nrings * nslots),
        payload_(std::size_t{nrings} * nslots * payload_nbytes),
        tails_(nrings),
        turns_(nrings * nslots),
        next_(nrings, 0),
        thread_([this] { serve(); }) {}
  ~small_host() {
    stops_ = true;
    thread_.join();
  }
  transport_layout layout() const {
    return {{requests_.get(), replies_.get(), payload_.get(), nrings_, nslots_, payload_nbytes, payload_nbytes},
            tails_.get(),
            turns_.get()};
  }
  // From now on all are answered, those that were held back, too. Returns once they are.
  void release() {
    holds_ = false;
    EXPECT_TRUE(wait_until([this] { return nheld_ == 0; }));
  }
  std::uint32_t nheld() const { return nheld_; }

 private:
  struct held_request {
    std::uint32_t index, sequence;
  };
  void serve() {
    std::vector<held_request> held;
    while (!stops_) {
      for (std::uint32_t ring = 0; ring < nrings_; ++ring) {
        const std::uint32_t index = ring * nslots_ + next_[ring] % nslots_, sequence = next_[ring] + 1;
        // Meets the device's release: the request's fields and its payload.
        if (std::atomic_ref(requests_.get()[index].sequence).load(std::memory_order_acquire) != sequence) continue;
        ++next_[ring];
        if (!answer(index, sequence)) held.push_back({index, sequence});
      }
      if (!holds_) {
        for (const held_request& h : held) answer(h.index, h.sequence);
        held.clear();
      }
      nheld_ = static_cast<std::uint32_t>(held.size());
      std::this_thread::yield();
    }
  }
  bool answer(std::uint32_t index, std::uint32_t sequence) {
    reply got{};
    if (!on_(requests_.get()[index], payload_.get() + std::size_t{index} * payload_nbytes, got) && holds_) return false;
    reply& out = replies_.get()[index];
    out.result = got.result;
    out.handle = got.handle;
    out.number = got.number;
    // Meets the device's acquire: the reply's fields and the payload.
    std::atomic_ref(out.sequence).store(sequence, std::memory_order_release);
    return true;
  }

  answerer on_;
  const std::uint32_t nrings_, nslots_;
  pinned_buffer<request> requests_;
  pinned_buffer<reply> replies_;
  pinned_buffer<std::byte> payload_;
  device_buffer<std::uint32_t> tails_, turns_;
  std::vector<std::uint32_t> next_;  // of each ring, the ticket that comes next
  std::atomic<bool> holds_{true}, stops_{false};
  std::atomic<std::uint32_t> nheld_{0};
  std::thread thread_;
};

// What has ended late, and how often.
struct late_words {
  std::uint64_t nended, token, result;
};
// An open that nobody waits for any more is closed; of all else it notes what it was.
struct noting_late {
  late_words* words;

  GPUFS_DEVICE transport::late_call after(const request& asked, const reply& answer) const {
    return asked.op == opcode::open ? transport::late_call{opcode::close, answer.handle} : transport::late_call{opcode::none, 0};
  }
  GPUFS_DEVICE void end(ticket, const request& asked, const reply& answer, const std::byte*) const {
    simt::atomic_ref<std::uint64_t>(words->nended).add_relaxed(1);
    words->token = asked.token;
    words->result = static_cast<std::uint64_t>(answer.result);
  }
};
using our_requests = transport::requests<noting_late>;

// Each lane makes some calls, and looks at what comes back.
struct call_often {
  transport_layout layout;
  late_words* late;
  std::uint32_t ncalls;
  std::uint32_t* nwrong;

  GPUFS_DEVICE void operator()() const {
    const our_requests rings(layout, {late});
    for (std::uint32_t i = 0; i < ncalls; ++i) {
      const simt::deadline until(late_ns);
      const std::uint32_t me = (simt::block_rank() * simt::block_size() + simt::thread_rank()) * ncalls + i;
      const ticket t = rings.take(me, until);
      if (!(t.index != transport::no_slot && is_good(rings, t, me, until))) simt::atomic_ref<std::uint32_t>(*nwrong).add_relaxed(1);
    }
  }
  GPUFS_DEVICE static bool is_good(const our_requests& rings, ticket t, std::uint32_t me, const simt::deadline& until) {
    auto& word = *reinterpret_cast<std::uint32_t*>(rings.payload(t));
    word = me;
    request ask{};
    ask.op = opcode::read;
    ask.handle = me;
    reply answer;
    if (rings.call(t, ask, answer, until) != 0) return false;
    const bool good = answer.result == static_cast<std::int64_t>(me) + 1 && word == ~me;
    rings.give_back(t);
    return good;
  }
};

TEST(requests, come_back_with_their_payloads) {
  for (const auto& [nrings, nslots] : {std::pair{1u, 1u}, {2u, 4u}, {8u, 2u}}) {
    small_host host(nrings, nslots, [](const request& asked, std::byte* payload, reply& answer) {
      auto& word = *reinterpret_cast<std::uint32_t*>(payload);
      answer.result = word == asked.handle ? std::int64_t{word} + 1 : -EIO;
      word = ~word;
      return true;
    });
    device_buffer<late_words> late(1);
    device_buffer<std::uint32_t> nwrong(1);
    simt::launch({.grid = 2, .block = 32}, call_often{host.layout(), late.get(), 20, nwrong.get()});
    EXPECT_EQ(nwrong.read()[0], 0u) << nrings << " rings of " << nslots;
    EXPECT_EQ(late.read()[0].nended, 0u);
  }
}

// One lane asks for something, and waits for so long. results: of the take, and of the call.
struct ask_once {
  transport_layout layout;
  late_words* late;
  request ask;
  std::uint64_t take_ns, wait_ns;
  std::int64_t* results;

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const our_requests rings(layout, {late});
    const ticket t = rings.take(0, simt::deadline(take_ns));
    results[0] = t.index == transport::no_slot ? -ETIMEDOUT : static_cast<std::int64_t>(t.index);
    results[1] = 0;
    if (t.index == transport::no_slot) return;
    reply answer{};
    const int error = rings.call(t, ask, answer, simt::deadline(wait_ns));
    results[1] = error != 0 ? error : answer.result;
    if (error == 0) rings.give_back(t);
  }
};

// One ring of one slot, so that each request needs what the last one has left.
class lone_slot : public ::testing::Test {
 protected:
  std::array<std::int64_t, 2> ask(const request& what, std::uint64_t take_ns, std::uint64_t wait_ns) {
    simt::launch({.grid = 1, .block = 32}, ask_once{host_.layout(), late_.get(), what, take_ns, wait_ns, results_.get()});
    const auto got = results_.read();
    return {got[0], got[1]};
  }
  static request asking(opcode op, std::uint64_t token = 0) {
    request what{};
    what.op = op;
    what.token = token;
    return what;
  }
  using pair = std::array<std::int64_t, 2>;

  // Reads and opens are held back; others are answered.
  std::atomic<std::uint32_t> nclosed_{0}, closed_{0};
  device_buffer<late_words> late_{1};
  device_buffer<std::int64_t> results_{2};
  small_host host_{1, 1, [this](const request& asked, std::byte*, reply& answer) {
                     answer.result = asked.op == opcode::read ? 7 : 0;
                     answer.handle = 41;
                     if (asked.op == opcode::close) {
                       closed_ = asked.handle;
                       ++nclosed_;
                     }
                     return asked.op != opcode::read && asked.op != opcode::open;
                   }};
};

TEST_F(lone_slot, is_nobodys_until_a_late_answer_is_there) {
  EXPECT_EQ(ask(asking(opcode::read, 77), late_ns, soon_ns), (pair{0, -ETIMEDOUT}));
  EXPECT_TRUE(wait_until([&] { return host_.nheld() == 1; }));
  EXPECT_EQ(ask(asking(opcode::sync), soon_ns, late_ns)[0], -ETIMEDOUT);
  EXPECT_EQ(late_.read()[0].nended, 0u);
  host_.release();
  EXPECT_EQ(ask(asking(opcode::sync), late_ns, late_ns), (pair{0, 0}));
  const late_words late = late_.read()[0];
  EXPECT_EQ(late.nended, 1u) << "whoever takes the slot ends the work";
  EXPECT_EQ(late.token, 77u);
  EXPECT_EQ(late.result, 7u);
  EXPECT_EQ(nclosed_, 0u);
}

TEST_F(lone_slot, carries_the_close_of_an_open_that_came_too_late) {
  EXPECT_EQ(ask(asking(opcode::open), late_ns, soon_ns), (pair{0, -ETIMEDOUT}));
  EXPECT_TRUE(wait_until([&] { return host_.nheld() == 1; }));
  host_.release();
  EXPECT_EQ(ask(asking(opcode::sync), late_ns, late_ns), (pair{0, 0}));
  EXPECT_EQ(nclosed_, 1u);
  EXPECT_EQ(closed_, 41u);
  EXPECT_EQ(late_.read()[0].nended, 0u);
  EXPECT_EQ(ask(asking(opcode::sync), late_ns, late_ns), (pair{0, 0})) << "and goes on";
}

// One lane takes all that there is, in some order, and gives nothing back.
struct take_all {
  transport_layout layout;
  late_words* late;
  std::uint32_t* taken;  // by each kind of take

  GPUFS_DEVICE void operator()() const {
    if (simt::thread_rank() != 0) return;
    const our_requests rings(layout, {late});
    const auto note = [&](std::uint32_t kind, ticket t) {
      if (t.index != transport::no_slot) taken[kind] |= 1u << t.index;
      return t.index != transport::no_slot;
    };
    std::uint32_t i = 0;
    while (note(0, rings.take_ahead(i++))) continue;
    while (note(1, rings.take_to_write(i++, simt::deadline(0)))) continue;
    while (note(2, rings.take(i++, simt::deadline(0)))) continue;
    note(3, rings.take_at_hand(i));
  }
};

TEST(requests, that_write_or_come_ahead_leave_rings_to_readers) {
  const small_host host(8, 2, [](const request&, std::byte*, reply&) { return true; });
  device_buffer<late_words> late(1);
  device_buffer<std::uint32_t> taken(4);
  simt::launch({.grid = 1, .block = 32}, take_all{host.layout(), late.get(), taken.get()});
  const auto got = taken.read();
  // A bit for each slot: two a ring.
  EXPECT_EQ(got[0], 0b1100'0000'1100'0000u) << "a quarter of the rings, the fourth and the eighth";
  EXPECT_EQ(got[1], 0b0011'0011'0011'0011u) << "every second ring";
  EXPECT_EQ(got[2], 0b0000'1100'0000'1100u) << "all that is left";
  EXPECT_EQ(got[3], 0u);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
