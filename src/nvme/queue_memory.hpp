// SPDX-License-Identifier: Apache-2.0
// The memory of a pair of queues, and its gate.
#pragma once
#include <chrono>
#include <cstdint>
#include <vector>

#include "dma_region.hpp"
#include "gpufs/nvme/detail/layout.hpp"

namespace gpufs::nvme {

using clock = std::chrono::steady_clock;

struct queue_options {
  std::uint32_t id;              // 1 and more
  std::uint32_t nslots;          // 2 to 16,384, of both queues
  std::uint32_t buffer_nbytes;   // of each record: whole bus pages
  std::uint32_t command_nbytes;  // the most that one command moves, to whatever memory
  std::uint32_t doorbell_stride;
};

class queue_memory {
 public:
  queue_memory(controller_access& access, simt::platform& machine, const queue_options& options);

  const queue_layout& layout() const { return layout_; }
  const dma_region& submissions() const { return submissions_; }
  const dma_region& completions() const { return completions_; }
  // The list of a queue's pages, for a controller that takes queues in pieces.
  std::uint64_t page_list(const dma_region& queue);

  // Lets nobody in; those who are inside stay there for now. Then whether all were out in time.
  void close(gate_state as = gate_state::closed);
  bool is_empty_by(clock::time_point until) const;
  // Nobody is inside, and the controller knows the queues no more: all is as at first, and commands of before belong to an epoch
  // that has ended.
  void begin_anew();
  void open();

  // The records whose commands were given up, and that nothing has ended since.
  std::vector<std::uint32_t> given_up() const;
  // Whether a lane has given a command up since the last call.
  bool has_news();
  queue_words words() const { return memory_.read_one(layout_.words); }

 private:
  template <class T>
  void set(T& word, T value) {
    memory_.write_one(&word, value);
  }

  simt::device_memory memory_;
  dma_region submissions_, completions_, lists_, buffers_, page_lists_;
  pinned_memory given_up_;
  const std::vector<std::uint64_t> zeros_;  // as many as slots
  queue_layout layout_{};
  std::uint64_t seen_given_up_ = 0;
};

}  // namespace gpufs::nvme
