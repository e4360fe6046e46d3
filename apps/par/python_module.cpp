// SPDX-License-Identifier: Apache-2.0
// gpufs._par: what `gpufs scan`, `gpufs sort` and gpufs.par.scan() and sort() work by. The interpreter's lock is not held while
// anything waits. Memory is named by its address, and files by descriptors; Python keeps both alive until close().
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "apps/par/file_jobs.hpp"
#include "apps/python_support.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gpufs::apps;
using namespace gpufs::apps::par;

namespace {

constexpr std::array<std::pair<std::string_view, number_type>, 6> types{{{"u32", number_type::u32},
                                                                         {"i32", number_type::i32},
                                                                         {"u64", number_type::u64},
                                                                         {"i64", number_type::i64},
                                                                         {"f32", number_type::f32},
                                                                         {"f64", number_type::f64}}};
constexpr std::array<std::pair<std::string_view, scan_op>, 7> operators{{{"add", scan_op::add},
                                                                         {"mul", scan_op::mul},
                                                                         {"max", scan_op::max},
                                                                         {"min", scan_op::min},
                                                                         {"and", scan_op::bit_and},
                                                                         {"or", scan_op::bit_or},
                                                                         {"xor", scan_op::bit_xor}}};

template <class Names>
auto named(const Names& all, const std::string& name, const char* what) {
  std::string names;
  for (const auto& [each, value] : all) {
    if (each == name) return value;
    names += (names.empty() ? "" : ", ") + std::string(each);
  }
  throw gpufs::error("there is no " + std::string(what) + " '" + name + "' (" + names + ")");
}

std::unique_ptr<engine> make_engine(const std::string& name, [[maybe_unused]] int device) {
  if (const std::string why = why_not(name); !why.empty()) throw gpufs::error("engine " + name + ": " + why);
  if (name == "cpu") return make_engine_cpu();
  return of_a_device([&] {
#if GPUFS_WITH_CUDA
    if (name == "gpu") return make_engine_cuda(device);
#endif
    return make_engine_simt(device);
  });
}

// What is read and written: two files, or two pieces of memory.
struct ends {
  std::string path{}, verb{}, out_path{};
  int descriptor = -1;
  std::uintptr_t address = 0, out_address = 0;
  std::uint64_t nbytes = 0;
};

using state_parts = std::tuple<std::uint64_t, std::uint64_t, nb::bytes>;  // of a job_state
std::optional<job_state> state_of(const std::optional<state_parts>& parts) {
  if (!parts) return std::nullopt;
  const auto& [piece_nbytes, npieces, so_far] = *parts;
  job_state state{.piece_nbytes = piece_nbytes, .npieces = npieces};
  if (so_far.size() != state.so_far.size()) throw gpufs::error("a state has 8 bytes");
  std::memcpy(state.so_far.data(), so_far.c_str(), so_far.size());
  return state;
}

class running_job {
 public:
  // make(engine, from, to, nbytes)
  template <class Make>
  running_job(const std::string& engine_name, int device, const ends& of, const Make& make) {
    const unlocked others;
    engine_ = make_engine(engine_name, device);
    if (of.path.empty()) {
      job_ = make(*engine_, bytes_from{.memory = reinterpret_cast<const std::byte*>(of.address)},
                  bytes_to{.memory = reinterpret_cast<std::byte*>(of.out_address)}, of.nbytes);
      return;
    }
    in_ = std::make_unique<input_file>(of.path, of.verb);
    out_.emplace(of.out_path, of.descriptor, in_->nbytes());
    job_ = make(*engine_, bytes_from{.file = in_.get()}, bytes_to{.file = &*out_}, in_->nbytes());
  }
  ~running_job() { close(); }
  running_job(const running_job&) = delete;
  running_job& operator=(const running_job&) = delete;

  void close() {
    const unlocked others;
    job_.reset();
    out_.reset();
    in_.reset();
    engine_.reset();
  }
  bool next() {
    const unlocked others;
    return job_ != nullptr && job_->next();
  }
  std::uint64_t ndone() const { return job_ == nullptr ? 0 : job_->ndone(); }
  std::uint64_t nbytes() const { return job_ == nullptr ? 0 : job_->nbytes(); }
  state_parts state() const {
    const job_state now = job_ == nullptr ? job_state{} : job_->state();
    return {now.piece_nbytes, now.npieces, nb::bytes(now.so_far.data(), now.so_far.size())};
  }

 private:
  std::unique_ptr<engine> engine_;
  std::unique_ptr<input_file> in_;
  std::optional<output_file> out_;
  std::unique_ptr<job> job_;
};

}  // namespace

NB_MODULE(_par, m) {
  m.doc() = "Scans and sorts of files and of the host's memory, for gpufs.par.";
  translate_errors();
  nb::class_<ends>(m, "Ends", "What a job reads, and what it writes.")
      .def_static(
          "of_files",
          [](const nb::object& path, const std::string& verb, const nb::object& out_path, int descriptor) {
            return ends{to_path(path), verb, to_path(out_path), descriptor};
          },
          "path"_a, "verb"_a, "out_path"_a, "descriptor"_a,
          "verb: what is done with the file. descriptor: of the output, open for reading and writing.")
      .def_static(
          "of_memory",
          [](std::uintptr_t address, std::uintptr_t out_address, std::uint64_t nbytes) {
            return ends{.address = address, .out_address = out_address, .nbytes = nbytes};
          },
          "address"_a, "out_address"_a, "nbytes"_a, "Of the host.");
  nb::class_<running_job>(m, "Job", "A scan or a sort that is under way.")
      .def("next", &running_job::next, "Waits for the next piece; False: all is done.")
      .def("ndone", &running_job::ndone, "How many of nbytes() have been written.")
      .def("nbytes", &running_job::nbytes)
      .def("state", &running_job::state, "Of all that next() has waited for; with it another job goes on from there.")
      .def("close", &running_job::close, "Waits for what is under way, and does no more.");
  m.def(
      "scan",
      [](const std::string& engine_name, int device, const ends& of, const std::string& op, const std::string& type, bool exclusive,
         std::uint64_t piece_nbytes, const std::optional<state_parts>& state) {
        const scan_options options{named(operators, op, "operator"), named(types, type, "type"), exclusive, piece_nbytes};
        const std::optional<job_state> from_here = state_of(state);
        return std::make_unique<running_job>(engine_name, device, of, [&](auto&&... with) {
          return make_scan(with..., options, from_here ? &*from_here : nullptr);
        });
      },
      "engine"_a, "device"_a, "of"_a, "op"_a, "type"_a, "exclusive"_a, "piece_nbytes"_a, "state"_a.none() = nb::none(),
      "piece_nbytes: 0: the engine's own choice. state: of a job that was given up, whose pieces have their size.");
  m.def(
      "space_to_scan",
      [](const std::string& engine_name, int device, std::uint64_t nbytes, const std::string& op, const std::string& type) {
        const scan_options options{named(operators, op, "operator"), named(types, type, "type")};
        const unlocked others;
        return make_engine(engine_name, device)->space_to_scan(nbytes, options);
      },
      "engine"_a, "device"_a, "nbytes"_a, "op"_a, "type"_a, "How many bytes scan_there takes besides, of the engine's own memory.");
  m.def(
      "scan_there",
      [](const std::string& engine_name, int device, std::uintptr_t address, std::uintptr_t out_address, std::uint64_t nbytes,
         const std::string& op, const std::string& type, bool exclusive, std::uintptr_t space, std::uint64_t space_nbytes) {
        const scan_options options{named(operators, op, "operator"), named(types, type, "type"), exclusive};
        const unlocked others;
        scan_there(*make_engine(engine_name, device), reinterpret_cast<const std::byte*>(address),
                   reinterpret_cast<std::byte*>(out_address), nbytes, options, {reinterpret_cast<std::byte*>(space), space_nbytes});
      },
      "engine"_a, "device"_a, "address"_a, "out_address"_a, "nbytes"_a, "op"_a, "type"_a, "exclusive"_a, "space"_a,
      "space_nbytes"_a, "Of an array in the engine's own memory, which is ready, with a space aligned to 256 bytes. Waits.");
  m.def(
      "space_to_sort",
      [](const std::string& engine_name, int device, std::uint64_t nbytes, const std::string& type) {
        const number_type of = named(types, type, "type");
        const unlocked others;
        return make_engine(engine_name, device)->space_to_sort(nbytes, of);
      },
      "engine"_a, "device"_a, "nbytes"_a, "type"_a, "How many bytes sort_there takes besides, of the engine's own memory.");
  m.def(
      "sort_there",
      [](const std::string& engine_name, int device, std::uintptr_t address, std::uint64_t nbytes, const std::string& type,
         bool descending, std::uintptr_t space, std::uint64_t space_nbytes) {
        const number_type of = named(types, type, "type");
        const unlocked others;
        sort_there(*make_engine(engine_name, device), reinterpret_cast<std::byte*>(address), nbytes, of, descending,
                   {reinterpret_cast<std::byte*>(space), space_nbytes});
      },
      "engine"_a, "device"_a, "address"_a, "nbytes"_a, "type"_a, "descending"_a, "space"_a, "space_nbytes"_a,
      "Of keys in the engine's own memory, which are ready, in their place, with a space aligned to 256 bytes. Waits.");
  m.def(
      "sort",
      [](const std::string& engine_name, int device, const ends& of, const std::string& type, std::uint64_t record_nbytes,
         std::uint64_t key_offset, bool descending, std::uint64_t memory_nbytes, const nb::object& scratch, bool prefers_memory,
         int scratch_descriptor, const std::optional<state_parts>& state) {
        const sort_options options{.type = named(types, type, "type"),
                                   .record_nbytes = record_nbytes,
                                   .key_offset = key_offset,
                                   .descending = descending,
                                   .memory_nbytes = memory_nbytes,
                                   .scratch_folder = scratch.is_none() ? std::string() : to_path(scratch),
                                   .prefers_memory = prefers_memory,
                                   .scratch_descriptor = scratch_descriptor};
        const std::optional<job_state> from_here = state_of(state);
        return std::make_unique<running_job>(engine_name, device, of, [&](auto&&... with) {
          return make_sort(with..., options, from_here ? &*from_here : nullptr);
        });
      },
      "engine"_a, "device"_a, "of"_a, "type"_a, "record_nbytes"_a, "key_offset"_a, "descending"_a, "memory_nbytes"_a,
      "scratch"_a.none(), "prefers_memory"_a = false, "scratch_descriptor"_a = -1, "state"_a.none() = nb::none(),
      "scratch: the folder where runs go; None: memory of the host. prefers_memory: there all the same, if half of what is free "
      "has "
      "room. scratch_descriptor: or the file of the folder, open for reading and writing. state: as of scan().");
}
