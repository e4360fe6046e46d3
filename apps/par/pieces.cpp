// SPDX-License-Identifier: Apache-2.0
#include "apps/par/pieces.hpp"

#include <cstring>
#include <utility>

namespace gpufs::apps::par {

void bytes_from::read(std::byte* to, std::uint64_t nbytes, std::uint64_t offset) const {
  if (file != nullptr) {
    file->read(to, nbytes, offset);
  } else if (scratch != nullptr) {
    scratch->read(to, nbytes, offset);
  } else {
    std::memcpy(to, memory + offset, nbytes);
  }
}

void bytes_to::write(const std::byte* from, std::uint64_t nbytes, std::uint64_t offset) const {
  if (file != nullptr) {
    file->write(from, nbytes, offset);
  } else {
    std::memcpy(memory + offset, from, nbytes);
  }
}

piece_stream::piece_stream(carrier& by, const bytes_from& from, const bytes_to& to, plan pieces, transform& with)
    : by_(by), from_(from), to_(to), plan_(std::move(pieces)), with_(with), of_(by.nbuffers()), after_(by.nbuffers()) {
  for (unsigned i = 1; i < by.nbuffers(); ++i) free_.push_back(i);  // buffer 0 is run()'s first one to write to
  brings_ = std::jthread([this] { guarded([this] { bring(); }); });
  try {
    runs_ = std::jthread([this] { guarded([this] { run(); }); });
  } catch (...) {  // no thread is left: the other one must not wait for it
    end(nullptr);
    throw;
  }
}

piece_stream::~piece_stream() { end(nullptr); }

std::uint64_t piece_stream::next() {
  const unsigned buffer = take_from(made_);
  if (buffer == none) {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    made_.push_front(none);  // for who asks again
    return 0;
  }
  const piece& made = of_[buffer];
  const std::uint64_t nbytes = made.nbytes;
  guarded([&] { by_.end_out(buffer, nbytes, to_, made.to); });
  {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }
  so_far_ = after_[buffer];
  put_to(free_, buffer);
  return nbytes;
}

void piece_stream::bring() {
  for (piece next; plan_(next);) {
    const unsigned buffer = take_from(free_);
    if (buffer == none) return;
    of_[buffer] = std::move(next);
    next = {};
    by_.begin_in(buffer, from_, of_[buffer].from);
    put_to(brought_, buffer);
  }
  put_to(brought_, none);
}

void piece_stream::run() {
  unsigned spare = 0;
  for (unsigned buffer; (buffer = take_from(brought_)) != none;) {
    by_.end_in(buffer);
    if (with_.run(by_.buffer(buffer), by_.buffer(spare), of_[buffer].nbytes)) {
      of_[spare] = std::move(of_[buffer]);
      std::swap(spare, buffer);
    }
    after_[buffer] = with_.so_far();
    by_.begin_out(buffer, of_[buffer].nbytes, to_, of_[buffer].to);
    put_to(made_, buffer);
  }
  put_to(made_, none);
}

unsigned piece_stream::take_from(queue& from) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || !from.empty(); });
  if (ended_) return none;
  const unsigned buffer = from.front();
  from.pop_front();
  return buffer;
}

void piece_stream::put_to(queue& to, unsigned buffer) {
  const std::lock_guard lock(mutex_);
  to.push_back(buffer);
  changed_.notify_all();
}

void piece_stream::end(std::exception_ptr why) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(why);
  ended_ = true;
  changed_.notify_all();
}

template <class Work>
void piece_stream::guarded(const Work& work) {
  try {
    work();
  } catch (...) {
    end(std::current_exception());
  }
}

}  // namespace gpufs::apps::par
