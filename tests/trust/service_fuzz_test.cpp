// SPDX-License-Identifier: Apache-2.0
// The fuzzer's device (service_fuzz.hpp) without libFuzzer: the corpus, what it becomes by changed bytes, and random bytes.
#include "service_fuzz.hpp"

namespace gpufs::test {
namespace {

using bytes = std::vector<std::uint8_t>;

std::vector<bytes> corpus() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(GPUFS_FUZZ_CORPUS)) names.push_back(entry.path());
  std::sort(names.begin(), names.end());
  std::vector<bytes> all;
  for (const std::string& name : names) {
    std::ifstream in(name, std::ios::binary);
    all.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return all;
}

TEST(service_fuzz, corpus_and_random_inputs) {
  service_fuzzer fuzzer;
  const std::vector<bytes> known = corpus();
  ASSERT_GE(known.size(), 10u);
  for (std::size_t i = 0; i < known.size(); ++i) {
    fuzz_context = numbered("input of the corpus ", i);
    fuzzer.run(known[i]);
    bytes in_place = known[i];
    in_place.at(0) ^= 8;  // the same where files are mapped
    fuzzer.run(in_place);
  }
  if (fuzzer.in_memory()) {
    EXPECT_GE(fuzz_notes, 2u) << "it has files that are written in place";
  }
  EXPECT_GE(fuzz_successes, 60u) << "the corpus has valid requests";
  const seed_range seeds = seeds_to_run(under_tsan ? 300 : 2000);
  for (std::uint64_t seed = seeds.first; seed < seeds.end; ++seed) {
    fuzz_context = numbered("GPUFS_TEST_SEED=", seed);
    random_source draw(seed);
    bytes input = draw.percent(50) ? draw.pick(known) : bytes(draw.below(400));
    if (input.empty()) continue;
    const bool all = input == bytes(input.size());
    for (std::uint64_t n = all ? input.size() : draw.below(10); n > 0; --n) {
      input[all ? n - 1 : draw.below(input.size())] = static_cast<std::uint8_t>(draw.word() >> 20);
    }
    fuzzer.run(input);
  }
}

}  // namespace
}  // namespace gpufs::test
