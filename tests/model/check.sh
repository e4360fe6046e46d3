#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs Spin on the models here: check.sh [bounded|full|mutations]. bounded: configurations of seconds, for CI; full: all, in half an hour;
# mutations: each known mistake must be found. MODEL_OUT: where the work goes (build/model); model.xml there has the results as JUnit's.
set -euo pipefail

mode=${1:-bounded}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${MODEL_OUT:-$here/../../build/model}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cases='' failed=0 model=page

die() {
  echo "check.sh: $*" >&2
  exit 1
}
for tool in spin gcc; do command -v "$tool" >/dev/null || die "there is no $tool here (Debian: apt-get install $tool)"; done

# explore NAME DEFINES...: all states of one configuration of $model.pml. Leaves pan's words in log, and its number of errors in errors ('' when it
# came to no end).
explore() {
  local name=$1 folder=$out/$1
  shift
  rm -rf "$folder"
  mkdir -p "$folder"
  log=$folder/log
  (
    cd "$folder"
    spin "${@/#/-D}" -a "$here/$model.pml" >"$log" 2>&1
    gcc -O2 -w -DCOLLAPSE -DSAFETY -DMEMLIM=6000 -o pan pan.c >>"$log" 2>&1
    ./pan -m1000000 >>"$log" 2>&1
  ) || true
  errors=$(sed -n 's/.* errors: \([0-9]*\)$/\1/p' "$log")
  if grep -q -e 'max search depth too small' -e 'reached -DMEMLIM' -e 'out of memory' "$log" && [[ $errors == 0 ]]; then errors=''; fi
}

# record NAME GOOD WORDS
record() {
  printf '   %-24s %s\n' "$1" "$3"
  cases+="<testcase classname=\"model\" name=\"$1\">"
  if [[ $2 != yes ]]; then
    failed=$((failed + 1))
    cases+="<failure message=\"$(sed 's/&/\&amp;/g; s/</\&lt;/g; s/"/\&quot;/g' <<<"$3")\"/>"
  fi
  cases+=$'</testcase>\n'
}

# right NAME DEFINES...: there is no error.
right() {
  local good=no
  explore "$@"
  local words="no end; see $log"
  if [[ $errors == 0 ]]; then
    good=yes
    words="$(awk '/states, stored/ {print $1}' "$log") states, $(sed -n 's/.*elapsed time \(.*\) seconds/\1/p' "$log") s"
  elif [[ -n $errors ]]; then
    words="WRONG: spin -t -p -g -k $out/$1/$model.pml.trail ${*/#/-D} tests/model/$model.pml"
    words=${words/ -D$1 / }
  fi
  record "$1" $good "$words"
}

# wrong MISTAKE DEFINES...: with this mistake there is one.
wrong() {
  local good=no words='NOT FOUND'
  explore "$1" "MUTATE_$1" "${@:2}"
  if [[ ${errors:-0} != 0 ]] && grep -q '^pan:1: ' "$log"; then
    good=yes
    words="found: $(sed -n 's/^pan:1: \(.*\) (at depth.*/\1/p' "$log" | cut -c1-60)"
  fi
  record "$1" $good "$words"
}

case $mode in
  bounded)
    right READ READ NREADERS=2 NOPS=1
    right READ_UNPINNED READ LOOKER NREADERS=2 NOPS=1 ONE_ORDER NO_CHANGE FAILURES=0
    right WRITE WRITE NOPS=1
    right WRITE_WHOLE WRITE NOPS=1 WHOLE_PAGES
    right WRITE_LIMIT WRITE NOPS=2 NO_FSYNC FAILURES=0
    right TRUNCATE TRUNCATE NOPS=1 FAILURES=0
    right STORED WRITE STORED NOPS=1 WHOLE_PAGES FAILURES=0
    right STORED_TRUNCATE TRUNCATE STORED NOPS=1 FAILURES=0
    model=twin
    right TWIN SHARE MSYNC
    right TWIN_CUT CUT NSTORES=1 NOTHERS=0
    model=late
    right LATE NPAGES=2 NWRITES=1 NASKS=1
    model=operation
    right OPERATION NREADERS=1
    right OPERATION_READERS NBEGINNERS=1
    right TO_FRAME TO_FRAME NREADERS=1 NOTHERS=0
    right TO_FRAME_READERS TO_FRAME NBEGINNERS=1 NOTHERS=0
    right KERNEL_FIRST TO_FRAME KERNEL_FIRST NBEGINNERS=1
    model=row
    right ROW READER WRITER
    right ROW_WHOLE READER WHOLE
    right ROW_CUT READER WRITER CUT
    model=part
    right PART CHANGE LOOKER
    model=part_write
    right PART_CUT WHOLE CUT
    right PART_BOTH BOTH
    model=nvme_queue
    right NVME_RESET NCOMMANDS=2 NTIMEOUTS=0
    right NVME_WRAP NSTUCK=0 NTIMEOUTS=0
    ;;
  full)
    right READ READ NREADERS=3 NOPS=1
    right READ_TWICE READ NREADERS=2 NOPS=2 NO_CHANGE
    right READ_UNPINNED READ LOOKER NREADERS=2 NOPS=1
    right WRITE WRITE NOPS=1 READER
    right WRITE_LISTS WRITE NOPS=1 NLISTS=2
    right WRITE_WHOLE WRITE NOPS=1 WHOLE_PAGES
    right WRITE_TWICE WRITE NOPS=2 FAILURES=0
    right WRITE_LIMIT WRITE NOPS=2 NO_FSYNC FAILURES=0
    right TRUNCATE TRUNCATE NOPS=2 FAILURES=0
    right STORED WRITE STORED NOPS=1 WHOLE_PAGES FAILURES=0 READER
    right STORED_PARTS WRITE STORED NOPS=1 FAILURES=0
    right STORED_TWICE WRITE STORED NOPS=2 WHOLE_PAGES FAILURES=0
    right STORED_TRUNCATE TRUNCATE STORED NOPS=2 FAILURES=0
    model=twin
    right TWIN SHARE MSYNC PWRITE
    right TWIN_TWICE SHARE NSPARES=2 NMAPS=2 NSTORES=2
    right TWIN_CUT CUT NSPARES=2
    model=late
    right LATE NPAGES=2 NWRITES=1
    right LATE_ONE_PAGE NWRITES=1
    right LATE_TWICE NPAGES=2 NASKS=1
    model=operation
    right OPERATION
    right OPERATION_TWICE NBEGINNERS=3 NREADERS=1
    right TO_FRAME TO_FRAME NREADERS=1
    right TO_FRAME_READERS TO_FRAME NOTHERS=0 FAILURES=0
    right KERNEL_FIRST TO_FRAME KERNEL_FIRST NBEGINNERS=1 NREADERS=3
    model=row
    right ROW READER WRITER NREADS=3
    right ROW_WHOLE READER WRITER WHOLE
    right ROW_CUT READER WRITER CUT
    model=part
    right PART NREADERS=3 CHANGE
    right PART_TWICE NREADS=2 CHANGE LOOKER
    model=part_write
    right PART_WRITE PART WHOLE CUT
    right PART_CUT WHOLE CUT READERS=2
    right PART_BOTH BOTH
    model=nvme_queue
    right NVME NCOMMANDS=2
    right NVME_LATE NCOMMANDS=2 NSTUCK=0
    right NVME_RESET NCOMMANDS=3 NTIMEOUTS=0
    ;;
  mutations)
    for mistake in CLAIM_PINS TAKE_PINNED TAKE_LEAVES_ENTRY KEY_UNCHECKED STAMP_UNCHECKED FAIL_LEAVES_ENTRY NO_SECOND_LOOK WAITER_IGNORES_ERROR FAIL_KEEPS_FILLING; do
      wrong $mistake READ NREADERS=2 NOPS=2
    done
    for mistake in LOOKED_AT_WHILE_FILLED LOOKED_ONCE STAYED_IF_NOT_CLAIMED; do
      wrong $mistake READ LOOKER NREADERS=2 NOPS=1 ONE_ORDER NO_CHANGE FAILURES=0
    done
    for mistake in UNLISTED CLEAR_LATE MASK_LATE MASK_STORED UNLOCK_EARLY DIRTY_BEFORE_MASK WHOLE_PAGE CLEANER_UNPINNED ERROR_FORGOTTEN; do
      wrong $mistake WRITE NOPS=1
    done
    wrong TRY_ONLY WRITE NOPS=2 NO_FSYNC FAILURES=0
    for mistake in SIZE_EARLY GROW_LATE NO_GATE NO_LOCK_PASS SCAN_UNPINNED SCAN_FILLING; do
      wrong $mistake TRUNCATE NOPS=1 FAILURES=0
    done
    for mistake in STORES_UNTOLD NEW_PAGE_UNTOLD STORED_FORGOTTEN FILLED_BEFORE_STORED; do
      wrong $mistake WRITE STORED NOPS=1 WHOLE_PAGES FAILURES=0
    done
    wrong MAPPED_STAYS TRUNCATE STORED NOPS=1 FAILURES=0
    model=twin
    for mistake in COUNT_UNLOCKED UNLOCKED_EARLY LOADED_TWICE NOTED_UNLOCKED LISTED_UNLOCKED UNPINNED_BEFORE_NOTING LAST_SEEN_UNLOCKED \
      TWIN_NOT_KEPT; do
      wrong $mistake SHARE MSYNC
    done
    wrong TWINS_AT_ONCE SHARE PWRITE NSTORES=2
    wrong SPARE_KEPT SHARE NSPARES=2
    for mistake in TWIN_BEYOND_THE_END NOTED_BESIDE_THE_GATE CUT_BESIDE_THE_TWIN; do
      wrong $mistake CUT NSTORES=2 NOTHERS=0
    done
    model=late
    for mistake in RECLAIMED_BY_TWO LATE_PIN_KEPT LATE_LIST_KEPT SLOT_GIVEN_BACK LIST_NOT_LOST UNLOCK_CLEARS TIMEOUT_UNTOLD \
      RECLAIMED_UNANSWERED PAGE_TWICE_IN_A_BATCH; do
      wrong $mistake NPAGES=2 NASKS=1
    done
    for mistake in SLOT_BEFORE_REQUEST_READ LOST_AFTER_ABANDON; do
      wrong $mistake NPAGES=2 NWRITES=1
    done
    wrong SYNC_BESIDE_LATE NWRITES=1 NASKS=1
    model=operation
    for mistake in UNANSWERED TAKES_ANY SLOT_GIVEN_BACK_EARLY PIN_KEPT LATE_ANSWER_ENTERS ABANDONED_BEFORE_BEGIN; do
      wrong $mistake NREADERS=1
    done
    for mistake in COPY_NOT_PINNED COPY_PINNED_AFTER_TAKE COPY_UNPINNED_EARLY COPY_STAYS_PINNED; do
      wrong $mistake TO_FRAME NBEGINNERS=1 NOTHERS=0
    done
    wrong COPY_NOT_COUNTED TO_FRAME NREADERS=1 NOTHERS=0
    wrong COPY_WAITED_FOR TO_FRAME KERNEL_FIRST NBEGINNERS=1
    model=row
    for mistake in NO_FIRST_LOOK NO_SECOND_LOOK NO_FENCE FILLED_BEFORE_THE_FENCE; do wrong $mistake READER WRITER; done
    wrong WHOLE_PAGE_WITHOUT_FENCE READER WHOLE
    wrong STORED_BESIDE_THE_GATE READER CUT
    model=part
    for mistake in VALID_BEFORE_THE_BYTES NO_LOOK_AT_THE_VERSION GIVE_UP_KEEPS_BUSY WHOLE_WITH_BUSY_SECTORS WORD_NOT_CLEARED PARTIAL_IS_A_HIT \
      BUSY_SECTORS_ARE_TAKEN LOOKED_AT_IN_PART WORD_LOOKED_AT_FIRST; do
      wrong $mistake CHANGE LOOKER
    done
    model=part_write
    for mistake in DIRTY_EVICTED SIZE_BEFORE_CLAIM CLAIMED_SECTORS_ARE_FILLED PART_NOT_BROUGHT_IN NOT_CLAIMED VALID_BEFORE_THE_BYTES \
      CUT_DOES_NOT_WAIT; do
      wrong $mistake WHOLE CUT
    done
    wrong WAITS_WITH_CLAIMS BOTH READERS=0
    model=nvme_queue
    for mistake in EACH_RINGS_FOR_ITSELF NEVER_TOLD NOBODY_LOOKS_AGAIN PHASE_OF_THE_FIRST_TURN PUBLISHED_BEFORE_WRITTEN PUBLISHED_IN_ANY_TURN \
      RUNG_TO_THE_TAIL SQHD_IS_DONE TWO_POLL ENTRY_READ_IN_PARTS; do
      wrong $mistake NSTUCK=0 NTIMEOUTS=0
    done
    for mistake in ENTRIES_KEPT EPOCH_KEPT GATE_LOOKED_AT_FIRST GATE_NOT_WAITED_FOR GIVEN_UP_IS_FREE NOT_RESET PUBLISHED_KEPT; do
      wrong $mistake NCOMMANDS=2 NTIMEOUTS=0
    done
    wrong LATE_ENTRY_IS_DONE NCOMMANDS=2 NSTUCK=0
    wrong GIVEN_UP_WITHOUT_A_LOOK NCOMMANDS=2
    ;;
  *) die "there is no mode '$mode'" ;;
esac

n=$(grep -c '<testcase' <<<"$cases")
printf '<testsuites><testsuite name="model" tests="%d" failures="%d">\n%s</testsuite></testsuites>\n' "$n" "$failed" "$cases" >"$out/model.xml"
printf '   model, %s: %d right, %d not, in %d s\n' "$mode" $((n - failed)) "$failed" "$SECONDS"
((failed == 0))
