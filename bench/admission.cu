// SPDX-License-Identifier: Apache-2.0
// Which rows are worth a frame? Batches of rows of 512 bytes, whose pages the mount's cache, a tenth of the file, has some of.
//
// batch_admission: row_batch as it is (a page that is missed gets a frame at its second use, or where one is free), against the
// better of two rules that remember nothing: none, by advise(noreuse), and all, where each page that is missed is to get a frame.
// Rows by Zipf's law, scattered over the file; a scan, of each row once, in order; and every other row of each. The three have a
// mount each, and read the same batches by turns, after some that fill their caches. Pages are of a row's size, as
// docs/guide/tuning.md says of such batches; batch_admission_large_pages: 4 KiB.
//
// batch_hot_rows_by_hand: the batches of batch_skewed (Zipf 0.99, pages of a row's size), against what a program does that knows
// beforehand which rows are the hottest: a table in device memory says where each row is (4 bytes a row of the file), as many of
// them as the cache has bytes for lie in device memory from the beginning, and a kernel reads the others from the registered
// mapping, in the batch's order. The table comes on top, as do the cache's tables.
#include <deque>

#include "gathers.hpp"
#include "par/measured.hpp"

namespace {

using namespace bench;

constexpr std::uint32_t row_nbytes = 512;

std::uint64_t cache_nbytes_of(const subject& s, std::uint32_t page_nbytes) { return s.nbytes / 10 / page_nbytes * page_nbytes; }

// --- Against rules that remember nothing ---------------------------------------------------------------------------------------

enum class rule { ours, none, all };

// Batches of one mount that goes by one rule.
struct admitting {
  admitting(const settings& set, const subject& s, std::uint32_t page_nbytes, std::uint64_t most, rule by)
      : fs(mount_of(s, cache_nbytes_of(s, page_nbytes), page_nbytes)), rows(set, fs, s.nbytes, row_nbytes, most) {
    if (by != rule::none) return;
    const device_array<std::uint64_t> failed(1);
    run({1, 32}, advise_all{fs.ref(), rows.number(), gpufs::advice::noreuse, failed.get()});
    if (failed.read_one() != 0) throw gpufs::error("the advice was refused");
  }
  gpufs::mount fs;
  gathers rows;
  std::vector<double> rates{};
  gpufs::mount_counters before{};
};

// number(i): the i-th row that is read, counted over all batches.
template <class Number>
void admission(const settings& set, const subject& s, const char* name, std::uint32_t page_nbytes, const std::string& what,
               const Number& number, results& out) {
  const int rounds = set.warm_ups + set.repeats;
  const std::uint64_t n = std::max<std::uint64_t>(1, std::min(set.nrows / 4, s.nbytes / row_nbytes / rounds));
  std::deque<admitting> ways;
  for (const rule by : {rule::ours, rule::none, rule::all}) {
    gpufs::par::forms.admits_all = by == rule::all;
    ways.emplace_back(set, s, page_nbytes, n, by);
  }
  gpufs::par::forms = {};
  for (int r = 0; r < rounds; ++r) {
    const std::uint64_t first = static_cast<std::uint64_t>(r) * n;
    const row_numbers numbers(n, [&](std::uint64_t i) { return static_cast<row_index>(number(first + i)); });
    for (admitting& way : ways) {
      if (r == set.warm_ups) way.before = way.fs.counters();
      const double rate = way.rows.ours(numbers);
      if (r >= set.warm_ups) way.rates.push_back(rate);
    }
  }
  const admitting &ours = ways[0], &none = ways[1], &all = ways[2];
  const double none_gbps = spread_of(none.rates).median, all_gbps = spread_of(all.rates).median;
  measurement m{name, what + ", pages of " + size_text(page_nbytes), ours.rates, "GB/s", std::max(none_gbps, all_gbps)};
  m.ceiling_is = none_gbps >= all_gbps ? "no page is admitted" : "each page is admitted";
  m.verified = ours.rows.right() && none.rows.right() && all.rows.right();
  m.details = {{"none_gbps", none_gbps}, {"all_gbps", all_gbps}};
  const std::uint64_t read = n * static_cast<std::uint64_t>(set.repeats);
  const auto count = [&](const std::string& who, const admitting& way) {
    const gpufs::mount_counters d = difference(way.fs.counters(), way.before);
    m.details.emplace_back(who + "hits_a_row", per(d.hits, read));
    m.details.emplace_back(who + "faults_a_row", per(d.faults, read));
  };
  count("", ours);
  count("none_", none);
  count("all_", all);
  out.add(m);
}

void all_admissions(const settings& set, const subject& s, const char* name, std::uint32_t page_nbytes, results& out) {
  const std::uint64_t nrows = s.nbytes / row_nbytes;
  const shuffled scattered(nrows, 12'000);
  const auto by_zipf = [&](const zipf& ranks, std::uint64_t i) { return static_cast<std::uint64_t>(scattered(ranks(word_of(i)))); };
  for (const double theta : {0.8, 0.99, 1.2}) {
    const zipf ranks(nrows, theta);
    const std::string law = "Zipf " + std::to_string(theta).substr(0, theta == 0.99 ? 4 : 3);
    const auto skewed = [&](std::uint64_t i) { return by_zipf(ranks, i); };
    admission(set, s, name, page_nbytes, law, skewed, out);
    if (theta != 0.99) continue;
    const auto either = [&](std::uint64_t i) { return i % 2 == 0 ? by_zipf(ranks, i) : i / 2 % nrows; };
    admission(set, s, name, page_nbytes, "half " + law + ", half a scan", either, out);
  }
  admission(
      set, s, name, page_nbytes, "a scan", [&](std::uint64_t i) { return i % nrows; }, out);
}

// --- Against a cache made by hand ----------------------------------------------------------------------------------------------

class gathers_and_hand : public gathers {
 public:
  using gathers::gathers;
  // GB/s.
  double by_hand(const kept_rows& kept, const std::byte* mapping, const row_numbers& numbers) {
    return checked(numbers, [&] { return kept.seconds(set_.how, mapping, numbers, row_nbytes(), dst_.get()); });
  }
};

void by_hand(const settings& set, const subject& s, results& out) {
  const std::uint64_t cache_nbytes = cache_nbytes_of(s, row_nbytes), n = std::max<std::uint64_t>(1, set.nrows / 4);
  const gpufs::mount fs = mount_of(s, cache_nbytes, row_nbytes);
  gathers_and_hand rows(set, fs, s.nbytes, row_nbytes, n);
  const zipf ranks(rows.file_rows());
  const shuffled scattered(rows.file_rows(), 12'000);
  const row_numbers hottest(cache_nbytes / row_nbytes, scattered);
  const kept_rows kept(set.how, s.mapping(), rows.file_rows(), hottest, row_nbytes);
  std::vector<double> ours, hand;
  std::uint64_t nkept = 0;
  gpufs::mount_counters before{};
  for (int r = 0; r < set.warm_ups + set.repeats; ++r) {
    const std::uint64_t first = static_cast<std::uint64_t>(r) * n;
    const row_numbers numbers(n, [&](std::uint64_t i) { return scattered(ranks(word_of(first + i))); });
    if (r == set.warm_ups) before = fs.counters();
    const double a = rows.ours(numbers);
    if (r < set.warm_ups) continue;
    const double b = rows.by_hand(kept, s.mapping(), numbers);
    ours.push_back(a * 1e3 / row_nbytes);
    hand.push_back(b * 1e3 / row_nbytes);
    nkept += kept.count(numbers.host);
  }
  const gpufs::mount_counters d = difference(fs.counters(), before);
  const std::uint64_t read = n * static_cast<std::uint64_t>(set.repeats);
  measurement m{"batch_hot_rows_by_hand", "Zipf 0.99, rows of 512 B", ours, "M rows/s", spread_of(hand).median};
  m.ceiling_is = "the hottest rows kept by hand";
  m.verified = rows.right();
  m.details = {{"hits_a_row", per(d.hits, read)}, {"faults_a_row", per(d.faults, read)}, {"kept_a_row", per(nkept, read)}};
  out.add(m);
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("admission", [&] {
    arguments args(argc, argv, "admission  --dir DIR  --small-file-gib N  --rows N  --warm-ups N  --blocks-per-sm N  --warps N",
                   on_gpu);
    const machine_facts machine = this_machine();
    const settings set(args, machine);
    results out("admission", args, machine);
    const subject memory(set.dir, set.small_nbytes, "memory");
    if (memory.mapping() == nullptr) {
      out.note("left out: " + memory.file->info().reason);
      return out.finish();
    }
    if (args.wants("batch_hot_rows_by_hand")) by_hand(set, memory, out);
    if (args.wants("batch_admission")) all_admissions(set, memory, "batch_admission", row_nbytes, out);
    if (args.wants("batch_admission_large_pages")) all_admissions(set, memory, "batch_admission_large_pages", 4096, out);
    return out.finish();
  });
}
