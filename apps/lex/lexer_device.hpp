// SPDX-License-Identifier: Apache-2.0
// Lexing by kernels, for the machine that the including source is compiled for. While a piece of the file is lexed, the next one is
// read.
#pragma once
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "apps/lex/lexer.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/par/file_pieces.hpp"
#include "gpufs/par/lex.hpp"

namespace gpufs::apps::lex {
inline namespace GPUFS_MACHINE {

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
        table_(table, device_),
        nblocks_(blocks_to_lex()),
        space_(par::lex_space::nbytes_for(piece_nbytes(), table.nstates(), nblocks_, nthreads), device_),
        offsets_(piece_nbytes() + 1, device_),
        kinds_(piece_nbytes() + 1, device_),
        result_(1, device_),
        lexes_(device_) {
    const simt::on_device here(device_);
    simt::load<lex_kernel, nthreads, least_blocks>();  // before kernels wait for the host that read
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
  // Half of what there is room for: reads run beside it.
  unsigned blocks_to_lex() const {
    const simt::on_device here(device_);
    const unsigned most = simt::max_cooperative_grid<nthreads, least_blocks>({.grid = 1, .block = nthreads}, lex_kernel{});
    return std::clamp(most / 2, 1u, GPUFS_ON_CUDA ? 1u << 16 : 4u);
  }

  static simt::launch_config config(unsigned nblocks) {
    simt::launch_config of{.grid = nblocks, .block = nthreads};
    of.schedule.timeout_ns = 0;  // what waits inside has its own deadline
    return of;
  }

  // The piece that begins there: of the first one anywhere, and then behind the one before.
  std::span<const std::byte> next_from(std::uint64_t offset) {
    try {
      if (!pieces_) {
        pieces_.emplace(fs_, path_.filename().string(), std::nullopt, piece_nbytes(), offset);
        if (pieces_->nbytes() != nbytes() - offset) file_->fail(ESTALE);
      }
      return pieces_->next();
    } catch (const std::system_error& error) {
      file_->fail(error.code().value());
    } catch (const std::invalid_argument&) {  // it ends before
      file_->fail(ESTALE);
    } catch (const gpufs::error& error) {
      file_->fail(error.number());
    }
  }

  par::lex_place lex_piece(const par::lex_place& at, found_tokens& to) override {
    if (at.offset == nbytes()) return at;
    const simt::on_device here(device_);
    const std::span<const std::byte> piece = next_from(at.offset);
    const auto* const text = reinterpret_cast<const std::uint8_t*>(piece.data());
    simt::launch_config of_all = config(nblocks_);
    of_all.cooperative = true;
    simt::launch<nthreads, least_blocks>(of_all,
                                         lex_kernel{table_.view(),
                                                    at,
                                                    {text, piece.size(), at.offset + piece.size() == nbytes()},
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
  par::device_lex_table table_;
  unsigned nblocks_;
  array<std::byte> space_;
  array<std::uint64_t> offsets_;
  array<std::uint8_t> kinds_;
  array<par::lex_result> result_;
  simt::stream lexes_;
  std::optional<par::file_pieces> pieces_;  // its end waits for kernels that read
};

inline std::unique_ptr<lexer> make_lexer(const std::string& path, const par::lex_table& table, const lexer_options& options) {
  return std::make_unique<device_lexer>(std::make_unique<input_file>(path, "lexed"), path, table, options);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::lex
