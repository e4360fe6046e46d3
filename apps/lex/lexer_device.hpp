// SPDX-License-Identifier: Apache-2.0
// Lexing by kernels, for the machine that the including source is compiled for. While a piece of the file is lexed, the next one is
// read.
#pragma once
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "apps/lex/lexer.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/par/lex.hpp"

namespace gpufs::apps::lex {
inline namespace GPUFS_MACHINE {

// Each warp reads parts of a piece.
struct read_piece {
  static constexpr std::uint64_t part_nbytes = 64 << 10;
  file of;
  std::uint8_t* to;
  std::uint64_t nbytes, offset;
  std::int64_t* error;  // of any part, a negative errno; or stays as it is

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    for (std::uint64_t begin = simt::global_warp_rank() * part_nbytes; begin < nbytes;
         begin += simt::global_warp_count() * part_nbytes) {
      const std::uint64_t n = nbytes - begin < part_nbytes ? nbytes - begin : part_nbytes;
      const std::int64_t got = pread(warp, of, to + begin, n, static_cast<std::int64_t>(offset + begin));
      if (got == static_cast<std::int64_t>(n) || !warp.leader()) continue;
      simt::atomic_ref<std::int64_t>(*error).store(got < 0 ? got : -ESTALE, std::memory_order_relaxed);
    }
  }
};

// All bytes are read once, so none gets a frame where the device reads the file itself.
struct say_read_once {
  file of;
  GPUFS_DEVICE void operator()() const { advise(this_warp(), of, 0, 0, advice::noreuse); }
};

struct lex_kernel {
  par::lex_view table;
  par::lex_place at;
  par::lex_text text;
  par::lex_tokens tokens;
  par::lex_space space;
  par::lex_result* result;

  GPUFS_DEVICE void operator()() const {
    const simt::grid grid = simt::this_grid();
    const par::lex_result got = par::lex(grid, table, at, text, tokens, space);
    if (grid.leader()) *result = got;
  }
};

class device_lexer final : public lexer {
  static constexpr std::uint64_t usual_piece_nbytes = GPUFS_ON_CUDA ? 32 << 20 : 1 << 20;
  static constexpr unsigned nthreads = GPUFS_ON_CUDA ? 256 : 64, least_blocks = 2;

 public:
  device_lexer(std::unique_ptr<input_file> from, const std::string& path, const par::lex_table& table, const lexer_options& options)
      : lexer(from->nbytes(), options.piece_nbytes != 0 ? options.piece_nbytes : usual_piece_nbytes, table),
        file_(std::move(from)),
        path_(std::filesystem::canonical(path)),  // a mount follows no link out of its root
        fs_(path_.parent_path().string(), mount_options_of(options)),
        device_(fs_.device()),
        opened_(opened()),
        table_(table, device_),
        nblocks_(blocks_to_lex()),
        space_(par::lex_space::nbytes_for(piece_nbytes(), table.nstates(), nblocks_, nthreads), device_),
        texts_{array<std::uint8_t>(piece_nbytes(), device_), array<std::uint8_t>(piece_nbytes(), device_)},
        offsets_(piece_nbytes() + 1, device_),
        kinds_(piece_nbytes() + 1, device_),
        result_(1, device_),
        read_error_(1, device_),
        reads_(device_),
        lexes_(device_) {
    const simt::on_device here(device_);
    simt::load<read_piece, nthreads, least_blocks>();  // before any of them runs
    simt::load<lex_kernel, nthreads, least_blocks>();
    simt::launch({}, say_read_once{opened_.ref()});
  }

 private:
  template <class T>
  using array = simt::device_array<T>;

  static mount_options mount_options_of(const lexer_options& options) {
    mount_options all;
    all.device = options.device;
    all.page_nbytes = 64 << 10;
    all.cache_nbytes = GPUFS_ON_CUDA ? 256 << 20 : 4 << 20;
    return all;
  }
  host_file opened() const {
    try {
      return {fs_, path_.filename().string()};
    } catch (const std::system_error& error) {
      file_->fail(error.code().value());
    }
  }
  // Half of what there is room for: reads run beside it.
  unsigned blocks_to_lex() const {
    const simt::on_device here(device_);
    const unsigned most = simt::max_cooperative_grid<nthreads, least_blocks>({.grid = 1, .block = nthreads}, lex_kernel{});
    return std::clamp(most / 2, 1u, GPUFS_ON_CUDA ? 1u << 16 : 4u);
  }

  void begin_read() {
    const std::uint64_t n = std::min(piece_nbytes(), nbytes() - nread_);
    simt::launch<nthreads, least_blocks>(
        config(GPUFS_ON_CUDA ? 256 : 2),
        read_piece{opened_.ref(), texts_[nread_ / piece_nbytes() % 2].get(), n, nread_, read_error_.get()}, reads_);
    nread_ += n;
  }
  static simt::launch_config config(unsigned nblocks) {
    simt::launch_config of{.grid = nblocks, .block = nthreads};
    of.schedule.timeout_ns = 0;  // what waits inside has its own deadline
    return of;
  }

  par::lex_place lex_piece(const par::lex_place& at, found_tokens& to) override {
    const std::uint64_t n = std::min(piece_nbytes(), nbytes() - at.offset);
    if (n == 0) return at;
    const simt::on_device here(device_);
    if (nread_ <= at.offset) {  // the first piece, wherever it begins
      nread_ = at.offset;
      begin_read();
    }
    reads_.wait();
    if (const std::int64_t error = read_error_.read_one(); error != 0) file_->fail(static_cast<int>(-error));
    const std::uint8_t* const text = texts_[at.offset / piece_nbytes() % 2].get();
    if (nread_ != nbytes()) begin_read();
    simt::launch_config of_all = config(nblocks_);
    of_all.cooperative = true;
    simt::launch<nthreads, least_blocks>(of_all,
                                         lex_kernel{table_.view(),
                                                    at,
                                                    {text, n, at.offset + n == nbytes()},
                                                    {offsets_.get(), kinds_.get(), piece_nbytes() + 1},
                                                    {space_.get(), space_.size()},
                                                    result_.get()},
                                         lexes_);
    lexes_.wait();
    const par::lex_result got = result_.read_one();
    if (got.error != 0) file_->fail(-got.error);
    to.offsets.resize(got.ntokens);
    to.kinds.resize(got.ntokens);
    if (got.ntokens != 0) {
      device_.copy_from_device(to.offsets.data(), offsets_.get(), got.ntokens * sizeof(std::uint64_t));
      device_.copy_from_device(to.kinds.data(), kinds_.get(), got.ntokens);
    }
    return got.after;
  }

  std::unique_ptr<input_file> file_;
  std::filesystem::path path_;
  mount fs_;
  simt::platform& device_;
  host_file opened_;
  par::device_lex_table table_;
  std::uint64_t nread_ = 0;  // how far reads have come that were begun
  unsigned nblocks_;
  array<std::byte> space_;
  array<std::uint8_t> texts_[2];  // one is lexed, while the other is read
  array<std::uint64_t> offsets_;
  array<std::uint8_t> kinds_;
  array<par::lex_result> result_;
  array<std::int64_t> read_error_;
  simt::stream reads_, lexes_;  // their ends wait for kernels, which use the others
};

inline std::unique_ptr<lexer> make_lexer(const std::string& path, const par::lex_table& table, const lexer_options& options) {
  return std::make_unique<device_lexer>(std::make_unique<input_file>(path, "lexed"), path, table, options);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::lex
