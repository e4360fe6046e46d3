#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a machine with GPUs: builds, runs the GPU's tests, the same under compute-sanitizer, and the benches; writes logs and JSON to OUT.
# Tests go side by side over all GPUs that CUDA_VISIBLE_DEVICES has; the soak and the benches want one for themselves, the first.
#   bench/on_gpu.sh OUT [build|tests|sanitize|soak|wheel|bench ...]    default: all but soak and wheel
#   GPUFS_DEPS: a folder with what is not installed (README, "offline"). GPUFS_TESTS=OFF: builds no tests and examples.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$1"
out=$(realpath "$1")
shift
steps=${*:-build tests sanitize bench}
build=${GPUFS_BUILD:-build-gpu}
mkdir -p "$out"
failed=0

step_build() {
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGPUFS_BENCH=ON -DGPUFS_TESTS="${GPUFS_TESTS:-ON}" \
    -DGPUFS_EXAMPLES="${GPUFS_TESTS:-ON}" -DGPUFS_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native \
    ${GPUFS_DEPS:+-DGPUFS_DEPS="$(realpath "$GPUFS_DEPS")"} ${GPUFS_CMAKE_OPTIONS:-} >"$out/configure.log" 2>&1 &&
    cmake --build "$build" >"$out/build.log" 2>&1 || { tail -30 "$out/configure.log" "$out/build.log"; return 1; }
}

gpus=()
find_gpus() {
  IFS=, read -ra gpus <<<"${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $(($(nvidia-smi -L | wc -l) - 1)))}"
  [ ${#gpus[@]} -gt 0 ] || { echo "no GPU"; return 1; }
}

# side_by_side JOBS FUNCTION: calls it for each line of words, JOBS at once on each GPU. What it prints comes as each ends, so that
# who is stopped has what was done.
side_by_side() {
  export -f "$2"
  export out gpu_names="${gpus[*]}"
  xargs -P $(($1 * ${#gpus[@]})) --process-slot-var=slot -L 1 \
    bash -c 'gpus=($gpu_names); CUDA_VISIBLE_DEVICES=${gpus[slot % ${#gpus[@]}]} "$@"' bash "$2"
}

gpu_programs() { find "$build/tests" "$build/apps/tests" "$build/research/tests" "$build/examples" -maxdepth 2 -name '*_cuda' -type f -executable | sort; }

# One program: its exit status, seconds, and what GoogleTest said.
test_one() {
  local name status begin=$SECONDS
  name=$(basename "$1")
  # Those that use two GPUs where there are two.
  case $name in file_processes_cuda | file_devices_cuda | simt_device_cuda | example_17_*) export CUDA_VISIBLE_DEVICES=${gpu_names// /,} ;; esac
  # shellcheck disable=SC2086
  timeout -k 5 "${GPUFS_TEST_TIMEOUT:-200}" "$1" ${2:-} >"$out/$name.log" 2>&1
  status=$?
  printf '%-32s exit %d  %d s | %s\n' "$name" "$status" $((SECONDS - begin)) \
    "$(grep -E '\[  (PASSED|FAILED)' "$out/$name.log" | tail -1)"
}

# All test programs; what fails beside others is tried again alone, as some tests are about time. Few at once: a GPU gives processes
# turns of milliseconds, and a kernel that waits for the host spends all of its own.
step_tests() {
  find_gpus || return 1
  gpu_programs | sed 's/soak_cuda$/& 5/' | side_by_side "${GPUFS_TEST_JOBS:-2}" test_one | tee "$out/tests.txt"
  local name rc=0
  for name in $(grep -v ' exit 0 ' "$out/tests.txt" | cut -d' ' -f1); do
    echo "alone:"
    gpu_programs | grep "/$name$" | sed 's/soak_cuda$/& 5/' | side_by_side 1 test_one | tee "$out/alone.txt"
    grep -q ' exit 0 ' "$out/alone.txt" || { rc=1; tail -30 "$out/$name.log"; }
  done
  return $rc
}

# GPUFS_SOAK_SECONDS: how long (600).
step_soak() {
  find_gpus || return 1
  CUDA_VISIBLE_DEVICES=${gpus[0]} "$build/tests/trust/soak_cuda" "${GPUFS_SOAK_SECONDS:-600}" >"$out/soak.txt" 2>&1
  local rc=$?
  tail -3 "$out/soak.txt"
  return $rc
}

# Each tool over every GPU test program, with fewer seeds: the tools slow kernels down by an order of magnitude or two.
# memcheck takes host memory that was registered while a kernel runs for out of bounds ("... is inside the nearest allocation");
# so it gets the tests that register before the launch, and pulls from pinned memory (mem_store). So it is with memory of the device
# that is allocated then: tables that grow.
# racecheck takes relaxed atomics on one word of shared memory for a race: not the bench's TLB, whose words are those.
# What fails beside others is tried again alone, as some tests are about time.
# Left out are tests whose kernels wait for each other, or for the host between two launches, as the tools run one after the other;
# tests that see what happens only at a GPU's speed; and the soak and the kills, whose kernels are in processes that end by them.
sanitize_one() {
  local tool=$1 program=$2 name filter='*-concurrency.page_whose_read_stalls_holds_up_nobody_else' status
  filter+=':host_files.open_and_close_beside_a_kernel_that_runs:stream.runs_launches_in_order_while_the_host_goes_on'
  filter+=':graphs.are_captured_while_the_mount_serves_other_kernels'
  filter+=':windows_that_change.are_those_of_another_mapping_for_who_looks_once'
  filter+=':file_memory.of_later_blocks_hears_of_windows_and_ended_versions'
  name=$(basename "$program")
  [ "$tool" != memcheck ] || filter="$filter:*/mapped:*/automatic*:*/in_memory:*pulled*:limits.of_pinned_host_memory_hold:file_memory.*"
  [ "$tool" != memcheck ] || filter+=":of/gathered_rows.*/by_windows:of/row_batches.*/by_windows:of/gathered_rows.*/being_written:part_pages_of_changing_files.*"
  [ "$tool" != memcheck ] || filter+=":graphs.larger_than_the_cache_*:read_once_of_changing_files.*:*take_what_is_written/zero_in_place:queries.of_columns_of_all_types_*"
  [ "$tool" != racecheck ] || filter="$filter:pointer_variants.*tlb:pointer_variants.pages_that_fight_for_an_entry"
  [ "$tool" != racecheck ] || filter+=":row_batch_admits.a_row_that_one_batch_has_twice:row_batch_admits.all_that_is_missed_*"
  GPUFS_TEST_SEEDS=${GPUFS_SANITIZE_SEEDS:-3} GPUFS_SANITIZER=$tool GTEST_FILTER=$filter timeout -k 5 "${GPUFS_SANITIZE_TIMEOUT:-240}" \
    compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9 "$program" >"$out/$tool-$name.log" 2>&1
  status=$?
  printf '%-10s %-32s exit %d  %s | %s\n' "$tool" "$name" "$status" "$(grep -E 'SUMMARY' "$out/$tool-$name.log" | tail -1)" \
    "$(grep -E '\[  (PASSED|FAILED)' "$out/$tool-$name.log" | head -1)"
}

# GPUFS_SANITIZE_TOOLS: which tools (default: all four). GPUFS_SANITIZE_PROGRAMS: of the programs, those whose path this pattern fits.
step_sanitize() {
  local tools=${GPUFS_SANITIZE_TOOLS:-memcheck racecheck initcheck synccheck} programs
  find_gpus || return 1
  programs=$(gpu_programs | grep -v -e /soak_cuda -e /kill_cuda | grep -E "${GPUFS_SANITIZE_PROGRAMS:-.}")
  [ -n "$programs" ] || { echo "no program fits GPUFS_SANITIZE_PROGRAMS"; return 1; }
  # Side by side, as the tools keep one core each busy. Two programs do nothing else than what memcheck cannot tell.
  # shellcheck disable=SC2086
  for tool in $tools; do printf "$tool %s\n" $programs; done | grep -v -e '^memcheck .*/example_12_' -e '^memcheck .*/file_windows_' |
    side_by_side "${GPUFS_SANITIZE_JOBS:-6}" sanitize_one | tee "$out/sanitize.txt"
  local again=$out/sanitize-alone.txt
  grep -v ' exit 0 ' "$out/sanitize.txt" | while read -r tool name _; do echo "$tool $(gpu_programs | grep "/$name$")"; done >"$again"
  if [ -s "$again" ]; then
    echo "alone:"
    sed -i '/ exit 0 /!d' "$out/sanitize.txt"
    side_by_side 1 sanitize_one <"$again" | tee -a "$out/sanitize.txt"
  fi
  sort -o "$out/sanitize.txt" "$out/sanitize.txt"
  ! grep -qv ' exit 0 ' "$out/sanitize.txt"
}

site=  # where step_wheel has installed the package, until the end
trap '[ -z "$site" ] || rm -rf "$site"' EXIT
# GPUFS_WHEEL: a wheel that ./dev wheel made, perhaps elsewhere. Installs it beside the Python packages that are here, lets it test
# itself with no compiler and no CUDA on PATH, and runs tests/python, but those of the sources alone.
step_wheel() {
  local python rc=0
  [ -n "${GPUFS_WHEEL-}" ] || { echo "GPUFS_WHEEL names no wheel"; return 1; }
  python=$(realpath -s "$(command -v "${GPUFS_PYTHON:-python3}")")
  site=$(mktemp -d)
  chmod 755 "$site"  # tests become other users
  "$python" -m pip install -q --no-index --no-deps --target "$site" "$GPUFS_WHEEL" || return 1
  local -x PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
  (cd / && env -i HOME="$HOME" PATH=/usr/bin:/bin PYTHONPATH="$PYTHONPATH" LD_LIBRARY_PATH="${LD_LIBRARY_PATH-}" "$python" -m gpufs.selftest) \
    2>&1 | tee "$out/selftest.txt" || rc=1
  # Each test in a line, and each failure in a file at once, so that a run that is cut says what it had found.
  # shellcheck disable=SC2046
  GPUFS_PYTEST_FAILURES=$out/pytest_failures.txt timeout -k 5 "${GPUFS_PYTEST_TIMEOUT:-400}" "$python" -m pytest -v --tb=short -p no:cacheprovider -n "${GPUFS_PYTEST_JOBS:-8}" --durations 10 \
    $(printf -- ' --ignore tests/python/test_%s.py' arrays_memory arrows bench_report docs docs_site mutants package papers public_api spdx stacks stubs style) \
    tests/python >"$out/pytest.txt" 2>&1 || rc=1
  # Alone, as it fills the GPU's memory.
  timeout -k 5 100 "$python" -m pytest -q -p no:cacheprovider tests/python/test_arrays_memory.py >"$out/pytest_memory.txt" 2>&1 || rc=1
  tail -25 "$out/pytest.txt"
  tail -3 "$out/pytest_memory.txt"
  return $rc
}

# With the wheel that step_wheel has installed; else where gpufs was built as a Python package here (GPUFS_CMAKE_OPTIONS=-DGPUFS_PYTHON=ON,
# which wants nanobind); else with what is installed.
bench_python() {
  local python=${GPUFS_PYTHON:-python3} begin=$SECONDS
  if [ -n "$site" ]; then
    local -x PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
  elif compgen -G 'python/gpufs/_rows*.so' >/dev/null; then
    local -x PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH}
  fi
  "$python" -c 'import gpufs.arrays' 2>/dev/null || { echo "python: left out, as $python has no gpufs"; return 0; }
  # shellcheck disable=SC2086
  timeout "${GPUFS_BENCH_PYTHON_TIMEOUT:-900}" "$python" bench/python/arrays.py --out "$out/python.json" --dir "${GPUFS_BENCH_MEMORY:-/dev/shm}" \
    ${GPUFS_BENCH_ARGS:-} >"$out/python.log" 2>&1
  local rc=$?
  [ $rc -eq 0 ] || echo "python FAILED"
  cat "$out/python.log"
  echo "python took $((SECONDS - begin)) s"
  return $rc
}

# GPUFS_BENCHES: which programs (default: all). GPUFS_BENCH_ARGS: options for each (--quick). GPUFS_BENCH_MEMORY: a folder in memory.
# GPUFS_BENCH_DISK: a folder on a disk (default: the build's; empty: leave that case out), GPUFS_BENCH_DISK_GIB: the file there (24).
step_bench() {
  local rc=0 program options begin
  find_gpus || return 1
  export CUDA_VISIBLE_DEVICES=${gpus[0]}
  GPUFS_COMMIT=${GPUFS_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
  export GPUFS_COMMIT
  for program in ${GPUFS_BENCHES:-hot cold batches small_batches admission first write products beside pointers arrays pointer_papers image_search cache staged ahead nvme host_cost sms updates parts bfs graphs scans scan_papers own_use own_lists par_files par_append vectors words query python}; do
    [ "$program" != python ] || { bench_python || rc=1; continue; }
    # shellcheck disable=SC2206
    options=(${GPUFS_BENCH_ARGS:-})
    [ "$program" = cache ] || options+=(--dir "${GPUFS_BENCH_MEMORY:-/dev/shm}")
    [ "$program" != cold ] || [ -z "${GPUFS_BENCH_DISK-$build}" ] ||
      options+=(--disk-dir "${GPUFS_BENCH_DISK-$build}" --disk-gib "${GPUFS_BENCH_DISK_GIB:-24}")
    begin=$SECONDS
    timeout "${GPUFS_BENCH_TIMEOUT:-240}" "$build/bench/$program" --out "$out/$program.json" "${options[@]}" >"$out/$program.log" 2>&1 ||
      { rc=1; echo "$program FAILED"; }
    cat "$out/$program.log"
    echo "$program took $((SECONDS - begin)) s"
  done
  "${GPUFS_PYTHON:-python3}" bench/report.py "$out" || rc=1
  return $rc
}

for step in $steps; do
  begin=$SECONDS
  "step_$step" || { failed=1; echo "$step FAILED"; }
  echo "$step took $((SECONDS - begin)) s"
done
exit $failed
