// SPDX-License-Identifier: Apache-2.0
// Bytes that are brought by pieces into an engine's buffers, transformed there, and taken away, all three at once. Host code.
// docs/design/out-of-core-sort.md
#pragma once
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "apps/input_file.hpp"
#include "apps/par/output_file.hpp"

namespace gpufs::apps::par {

// Where bytes come from: the one of the three that is there.
struct bytes_from {
  const std::byte* memory = nullptr;
  const input_file* file = nullptr;
  const output_file* scratch = nullptr;

  void read(std::byte* to, std::uint64_t nbytes, std::uint64_t offset) const;
  std::string name() const { return file != nullptr ? file->path() : "the input"; }  // for errors
};
// And where to.
struct bytes_to {
  std::byte* memory = nullptr;
  const output_file* file = nullptr;

  void write(const std::byte* from, std::uint64_t nbytes, std::uint64_t offset) const;
};

struct range {
  std::uint64_t offset, nbytes;
};

// A piece's ranges of the input lie side by side in its buffer, in this order; its result goes to one place, as many bytes.
struct piece {
  std::vector<range> from;
  std::uint64_t nbytes = 0, to = 0;
};

// An engine's buffers, of equal size, and how bytes come and go. A buffer is used by one thread at a time; each of the three groups
// of calls comes from one thread. Throw gpufs::error, or what the platform throws.
class carrier {
 public:
  virtual ~carrier() = default;
  carrier(const carrier&) = delete;
  carrier& operator=(const carrier&) = delete;

  virtual unsigned nbuffers() const = 0;
  virtual std::byte* buffer(unsigned i) const = 0;  // where the engine's transforms find it

  virtual void begin_in(unsigned i, const bytes_from& from, std::span<const range> ranges) = 0;  // may wait for a part of it

  virtual void end_in(unsigned i) = 0;                                                                     // waits
  virtual void begin_out(unsigned i, std::uint64_t nbytes, const bytes_to& to, std::uint64_t offset) = 0;  // waits for nothing

  virtual void end_out(unsigned i, std::uint64_t nbytes, const bytes_to& to, std::uint64_t offset) = 0;  // waits

 protected:
  carrier() = default;
};

// What a transform has learnt of all pieces up to one: by this it goes on behind that one.
using known = std::array<std::byte, 8>;
template <class T>
known known_of(const T& value) {
  known all{};
  static_assert(sizeof value <= sizeof all);
  std::memcpy(all.data(), &value, sizeof value);
  return all;
}
template <class T>
T value_of(const known& all) {
  T value;
  std::memcpy(&value, all.data(), sizeof value);
  return value;
}

// What is done with a piece, pieces in their order. One thread calls.
class transform {
 public:
  virtual ~transform() = default;
  transform(const transform&) = delete;
  transform& operator=(const transform&) = delete;
  // Waits. Whether the result is in `out`; else it is in `in`. Both have room for a piece and 16 bytes; none need be kept.
  virtual bool run(std::byte* in, std::byte* out, std::uint64_t nbytes) = 0;
  virtual known so_far() const { return {}; }
  virtual void go_on(const known&) {}  // before the first piece that is run

 protected:
  transform() = default;
};

// The next piece of a plan; false: there are no more.
using plan = std::function<bool(piece&)>;

// Runs a plan, by two threads beside the caller's. All that it is given must outlive it; the carrier has two buffers at least.
class piece_stream {
 public:
  piece_stream(carrier& by, const bytes_from& from, const bytes_to& to, plan pieces, transform& with);
  // Whatever is under way is waited for; the rest is not done.
  ~piece_stream();
  piece_stream(const piece_stream&) = delete;
  piece_stream& operator=(const piece_stream&) = delete;

  // Waits until the next piece's result is where it belongs; its bytes, 0 when there are no more. Throws what failed anywhere.
  std::uint64_t next();
  // What the transform knew when it had made the last result that next() has put in its place.
  const known& so_far() const { return so_far_; }

 private:
  static constexpr unsigned none = ~0u;
  using queue = std::deque<unsigned>;  // of buffers; none: no more come

  void bring();
  void run();
  unsigned take_from(queue& from);  // waits; none also when all is to end
  void put_to(queue& to, unsigned buffer);
  void end(std::exception_ptr why);
  template <class Work>
  void guarded(const Work& work);

  carrier& by_;
  bytes_from from_;
  bytes_to to_;
  plan plan_;
  transform& with_;
  std::vector<piece> of_;     // of buffers
  std::vector<known> after_;  // the results in buffers
  known so_far_{};

  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  queue free_, brought_, made_;
  bool ended_ = false;
  std::exception_ptr failure_;

  std::jthread brings_, runs_;
};

}  // namespace gpufs::apps::par
