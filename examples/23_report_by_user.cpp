// SPDX-License-Identifier: Apache-2.0
// A report over a file of events, by all blocks of one kernel: they read the file, send each event's score to its user, where
// scores are added up, and its time, of which the last one stays; then they append a line of text for each user who has played, in
// the order of users, each line as long as its numbers are.
#include <fstream>
#include <sstream>

#include "example.hpp"
#include "gpufs/par/append_records.hpp"
#include "gpufs/par/send.hpp"

struct event {
  std::uint32_t user, score;
  std::uint64_t time;
};
constexpr unsigned line_nbytes = 64;  // at most

// Lines of text, line_nbytes from one to the next.
struct lines {
  const char* text;
  const std::uint32_t* nbytes;
  GPUFS_DEVICE gpufs::par::record operator()(std::uint64_t i) const { return {text + i * line_nbytes, nbytes[i]}; }
};

GPUFS_DEVICE std::uint32_t write_number(char* to, std::uint64_t number, char behind) {
  std::uint32_t ndigits = 1;
  for (std::uint64_t rest = number / 10; rest != 0; rest /= 10) ++ndigits;
  for (std::uint32_t i = ndigits; i > 0; number /= 10) to[--i] = static_cast<char>('0' + number % 10);
  to[ndigits] = behind;
  return ndigits + 1;
}

struct make_report {
  gpufs::file events, report;
  std::uint64_t n, nusers;
  event* read;
  std::uint32_t* users;
  std::uint64_t *scores, *times;     // of events
  std::uint64_t *sums, *last_times;  // of users
  char *text, *staging;
  std::uint32_t* nbytes;
  gpufs::par::scan_space space;
  std::int64_t* result;  // of each block: how many bytes the report has, or a negative errno

  GPUFS_DEVICE void operator()() const {
    using namespace gpufs;  // NOLINT(google-build-using-namespace)
    const auto block = this_block();
    const simt::grid grid = simt::this_grid();
    // Each block reads a share.
    const std::uint64_t share = (n + simt::grid_size() - 1) / simt::grid_size();
    const std::uint64_t begin = share * simt::block_rank() < n ? share * simt::block_rank() : n;
    const std::uint64_t end = begin + share < n ? begin + share : n;
    const auto wanted = static_cast<std::int64_t>((end - begin) * sizeof(event));
    const std::int64_t got =
        pread(block, events, read + begin, (end - begin) * sizeof(event), static_cast<std::int64_t>(begin * sizeof(event)));
    block.sync();  // what other lanes have read
    for (std::uint64_t i = begin + block.rank(); i < end; i += block.size()) {
      users[i] = got == wanted ? read[i].user : par::no_place<std::uint32_t>;
      scores[i] = read[i].score;
      times[i] = read[i].time;
    }
    // All blocks together: what one has written before, all see. Any number of events, and many of one user.
    const int summed = par::send(grid, scores, users, n, sums, nusers, par::plus<std::uint64_t>{}, space);
    const int timed = par::send(grid, times, users, n, last_times, nusers, par::keep_last{}, space);
    for (std::uint64_t user = grid.rank(); user < nusers; user += grid.size()) {
      char* const line = text + user * line_nbytes;
      std::uint32_t length = 0;
      if (sums[user] != 0) {
        length += write_number(line, user, ' ');
        length += write_number(line + length, sums[user], ' ');
        length += write_number(line + length, last_times[user], '\n');
      }
      nbytes[user] = length;
    }
    const par::appended_records appended =
        par::append_records(grid, report, lines{text, nbytes}, nusers, nullptr, staging, nusers * line_nbytes, space);
    std::int64_t error = got == wanted ? 0 : -EIO;
    for (const std::int64_t e : {std::int64_t{summed}, std::int64_t{timed}, appended.offset}) error = e < 0 ? e : error;
    if (block.leader()) result[simt::block_rank()] = error != 0 ? error : static_cast<std::int64_t>(appended.nbytes);
  }
};

int main() {
  constexpr std::uint32_t n = 20'000, nusers = 700;
  constexpr unsigned nblocks = 4, nthreads = 128;
  const example::folder folder;
  std::vector<event> all(n);
  std::vector<std::uint64_t> sums(nusers), last_times(nusers);
  for (std::uint32_t i = 0; i < n; ++i) {
    all[i] = {(i * 2654435761u >> 7) % (nusers - 100), 1 + i % 1000, i * std::uint64_t{1'000'003}};
    sums[all[i].user] += all[i].score;
    last_times[all[i].user] = all[i].time;
  }
  folder.write("events", std::string(reinterpret_cast<const char*>(all.data()), n * sizeof(event)));
  std::ostringstream wanted;
  for (std::uint64_t user = 0; user < nusers; ++user) {
    if (sums[user] != 0) wanted << user << ' ' << sums[user] << ' ' << last_times[user] << '\n';
  }

  {
    const gpufs::mount fs(folder.path(), {.cache_nbytes = 1 << 20, .writable = true});
    const gpufs::host_file events(fs, "events");
    gpufs::host_file report(fs, "report", O_WRONLY | O_CREAT);
    // One space for all three calls: as large as the one that wants most.
    using gpufs::par::scan_space;
    const std::uint64_t to_send = scan_space::nbytes_to_send(nusers, nblocks);
    const std::uint64_t to_append = scan_space::nbytes_to_append(nusers, nblocks, nthreads);
    const std::uint64_t nbytes = to_send < to_append ? to_append : to_send;
    const example::device_array<std::byte> space(nbytes);
    const example::device_array<event> read(n);
    const example::device_array<std::uint32_t> users(n), lengths(nusers);
    const example::device_array<std::uint64_t> scores(n), times(n), sum(nusers), last(nusers);  // zeros
    const example::device_array<char> text(nusers * line_nbytes), staging(nusers * line_nbytes);
    const example::device_array<std::int64_t> result(nblocks);
    // Cooperative: all blocks run at once, so that they may wait for each other.
    const make_report kernel{.events = events.ref(),
                             .report = report.ref(),
                             .n = n,
                             .nusers = nusers,
                             .read = read.get(),
                             .users = users.get(),
                             .scores = scores.get(),
                             .times = times.get(),
                             .sums = sum.get(),
                             .last_times = last.get(),
                             .text = text.get(),
                             .staging = staging.get(),
                             .nbytes = lengths.get(),
                             .space = {space.get(), nbytes},
                             .result = result.get()};
    gpufs::simt::launch<nthreads, 4>({.grid = nblocks, .block = nthreads, .cooperative = true}, kernel);
    for (const std::int64_t found : result.read()) {
      example::check(found == static_cast<std::int64_t>(wanted.str().size()), "a block knows how long the report is");
    }
    report.close();  // what was appended is in the file, or this throws
  }
  std::ifstream file(folder.path() + "/report", std::ios::binary);
  std::stringstream got;
  got << file.rdbuf();
  example::check(got.str() == wanted.str(), "a line for each user who has played, in their order");
}
