// SPDX-License-Identifier: Apache-2.0
// The papers' scans of arrays in GPU memory side by side (research/scans), and the library's single pass beside them. No file is
// read.
//
// par_scan_paper: how many times as fast the scan by warps is as that by reduce and down-sweep, the mean over lengths from 2^10 to
// 2^28 elements of 4 bytes (Sengupta, Harris, Garland, NVR-2008-003: 1.05 to 1.20). par_segscan_paper: the same of the segmented
// scan by conditional indexing against that by an operator of heads and values (up to 1.29). All are three kernels, or five, by
// blocks of 256 threads with eight elements each. par_scan_paper_by_length, par_segscan_paper_by_length: each design and length by
// itself. Segments begin at random, 100 elements from each other on average; heads are bytes.
//
// All sides take turns; a sample is the mean of some calls one behind the other. Every answer is compared with the library's on the
// device, and its first elements with loops on the host.
#include "gpufs/par/scan.hpp"
#include "research/scans/three_kernels.hpp"
#include "scan_rival.hpp"

namespace {

using namespace bench;
using gpufs::par::plus;
using sums = plus<element>;
constexpr unsigned nthreads = on_gpu ? 256 : 64;

struct lay_behind {
  template <class Kernel>
  void operator()(unsigned grid, const Kernel& kernel) const {
    const gpufs::simt::launch_config how{.grid = grid, .block = nthreads, .schedule = {.switch_percent = 0}};
#if GPUFS_ON_CUDA
    gpufs::simt::launch(how, kernel, bench_stream());
#else
    gpufs::simt::launch(how, kernel);
#endif
  }
};

// The library's, by all blocks that run at once.
struct single_pass {
  const element* in;
  const std::uint8_t* heads;  // null: no segments
  element* out;
  std::uint64_t n;
  said* to;
  gpufs::par::scan_space space;
  GPUFS_DEVICE void operator()() const {
    const auto grid = gpufs::simt::this_grid();
    if (heads == nullptr) {
      say(to, gpufs::par::inclusive_scan(grid, in, out, n, sums{}, space));
    } else {
      say(to, gpufs::par::inclusive_segmented_scan(grid, in, gpufs::par::heads_by_bytes{heads}, out, n, sums{}, space));
    }
  }
};
using by_single_pass = std::conditional_t<on_gpu, by_grid<512, 2, single_pass>, by_grid<64, 1, single_pass>>;

struct design {
  const char* name;
  std::function<void()> call;
  std::vector<double> seconds{};
};

// All designs by turns, each so many calls a sample.
void take_turns(int repeats, unsigned ncalls, std::vector<design>& all) {
  for (int r = 0; r <= repeats; ++r) {
    for (design& each : all) {
      const double s = seconds_a_call(each.call, ncalls);
      if (r != 0) each.seconds.push_back(s);
    }
  }
}

class papers {
 public:
  papers(const settings& set, std::uint64_t longest, results& out)
      : set_(set), out_(out), in_(longest), heads_(longest), ours_(longest), theirs_(longest) {
    set.for_each(longest, fill_elements<element>{in_.get()});
    set.for_each(longest, fill_heads{heads_.get(), set.mean});
  }

  // The figure compares the first two designs: how many times as fast as the first the second is.
  void measure(const char* name, const char* label, bool by_segments, const std::vector<std::uint64_t>& lengths) {
    std::vector<double> means(static_cast<std::size_t>(set_.repeats));
    bool all_right = true;
    for (const std::uint64_t n : lengths) {
      const gpufs::baselines::three_kernels<sums> room(n, nthreads);
      std::vector<design> all = by_segments ? segmented(room) : plain(room);
      const by_single_pass library({in_.get(), by_segments ? heads_.get() : nullptr, theirs_.get(), n, nullptr, {}}, n);
      set_.for_each(n, fill_numbers{theirs_.get()});  // what is not an answer
      seconds_a_call(library);
      bool right = library.answer().error == 0;
      for (const design& each : all) {
        set_.for_each(n, fill_numbers{ours_.get()});
        seconds_a_call(each.call);
        right = is_right(n, by_segments) && right;
      }
      all.push_back({"single pass", [&] { library(); }});
      take_turns(set_.repeats, static_cast<unsigned>(std::clamp<std::uint64_t>((1u << 26) / (n + 1), 2, 64)), all);
      for (std::size_t r = 0; r < means.size(); ++r)
        means[r] += all[0].seconds[r] / all[1].seconds[r] / static_cast<double>(lengths.size());
      for (const design& each : all) add_length(name, each, all[0], n, right);
      all_right = all_right && right;
    }
    measurement m{name, label, means, "times as fast"};
    m.figure = measurement::kind::itself;
    m.verified = all_right;
    out_.add(m);
  }

 private:
  std::vector<design> plain(const gpufs::baselines::three_kernels<sums>& room) const {
    using namespace gpufs::baselines;
    return {{"reduce and down-sweep", [&] { room.scan<by_reduce_and_down_sweep>(in_.get(), ours_.get(), sums{}, lay_behind{}); }},
            {"by warps", [&] { room.scan<by_warps>(in_.get(), ours_.get(), sums{}, lay_behind{}); }},
            {"Hillis and Steele", [&] { room.scan<by_all_threads>(in_.get(), ours_.get(), sums{}, lay_behind{}); }}};
  }
  std::vector<design> segmented(const gpufs::baselines::three_kernels<sums>& room) const {
    using namespace gpufs::baselines;
    const auto call = [&](auto by) {
      return [&] { room.segmented_scan<decltype(by)>(in_.get(), heads_.get(), ours_.get(), sums{}, lay_behind{}); };
    };
    return {{"by an operator", call(segments_by_operator{})}, {"by conditional indexing", call(segments_by_index{})}};
  }
  bool is_right(std::uint64_t n, bool by_segments) const {
    const bool begins = begins_with(ours_, n, [&](std::uint64_t i, element so_far) {
      return by_segments && is_head_at(i, set_.mean) ? element_at(i) : so_far + element_at(i);
    });
    return begins && set_.are_same(ours_, theirs_, n);
  }
  void add_length(const char* name, const design& each, const design& first, std::uint64_t n, bool right) const {
    const auto rates = [n](const std::vector<double>& seconds) {
      std::vector<double> per_second;
      for (const double s : seconds) per_second.push_back(static_cast<double>(n) / s * 1e-9);
      return per_second;
    };
    measurement m{std::string(name) + "_by_length", std::to_string(n) + " elements, " + each.name, rates(each.seconds),
                  "G elements/s"};
    m.ceiling = spread_of(rates(first.seconds)).median;
    m.ceiling_is = first.name;
    m.verified = right;
    m.details = {{"us_a_call", spread_of(each.seconds).median * 1e6}};
    out_.add(m);
  }

  const settings& set_;
  results& out_;
  device_array<element> in_;
  device_array<std::uint8_t> heads_;
  device_array<element> ours_, theirs_;
};

}  // namespace

int main(int argc, char** argv) {
  return guarded("scan_papers", [&] {
    arguments args(argc, argv, "scan_papers  --most-log2 N  --segment N  --dir DIR", on_gpu);
    const auto most = static_cast<unsigned>(args.number("most-log2", {28, 22, 13}));
    if (most > 30) throw std::invalid_argument("at most 2^30 elements");
    const settings set{this_machine(), 0, 0, static_cast<std::uint64_t>(args.number("segment", 100)), repeats_of(args), 0};
    args.path("dir", "");  // as for all; nothing is written there
    results out("scan_papers", args, set.machine);
    std::vector<std::uint64_t> lengths;
    for (unsigned log2 = 10; log2 < most; log2 += 2) lengths.push_back(std::uint64_t{1} << log2);
    lengths.push_back(std::uint64_t{1} << most);
    papers all(set, lengths.back(), out);
    if (args.wants_any({"par_scan_paper", "par_scan_paper_by_length"}))
      all.measure("par_scan_paper", "scan by warps, against reduce and down-sweep", false, lengths);
    if (args.wants_any({"par_segscan_paper", "par_segscan_paper_by_length"}))
      all.measure("par_segscan_paper", "segmented scan by conditional indexing, against an operator", true, lengths);
    return out.finish();
  });
}
