// SPDX-License-Identifier: Apache-2.0
// Pages in part of a file that is open for writing (file/detail/sector_write.hpp; docs/design/part-pages.md, "Writing"), for Spin, as
// part.pml, which has the readers of a version.
//
// One page of two sectors of two bytes each, and the frame that it is in, or is not. Looking it up, and making room for it, are one step; so
// is each atomic operation. Bytes are read and written one by one. Each byte has one writer at a time, so that what it has to be is known
// (`want`). Checked: a writer that reads its bytes finds them; nobody reads what a frame had before; in the end the file has all bytes and its
// size; nobody waits for ever; in the end nothing is pinned or on its way.
//
// PART: one writes a byte of the first sector, twice. WHOLE: one writes the second sector, twice. CUT: the same one then cuts the file before
// it, lets it grow again, and writes the last byte. READERS read a sector each, of any. BOTH: one more writes all bytes of the page but the first,
// beside WHOLE; what these two give is either's.

#ifndef READERS
#define READERS 1
#endif
#define NBYTES 4
#define garbage 99
#define sector_of(b) ((b) / 2)

byte file[NBYTES] = 1; // what the host has
byte want[NBYTES] = 1; // what a reader must find
byte size = NBYTES, host_size = NBYTES;
bit cutting;           // the gate is closed
byte inside;           // writers in the gate

bit there;             // the page is in the frame
bit partial;
byte data[NBYTES];
bit valid[2], busy[2];
bit mask[NBYTES];
bit dirty, cleaning;
byte pins, ndone, nprocs;

active proctype evictor() {
end:
  do
#ifdef MUTATE_DIRTY_EVICTED
  :: d_step { there && pins == 0 -> there = 0; mask[0] = 0; mask[1] = 0; mask[2] = 0; mask[3] = 0; dirty = 0 }
#else
  :: d_step { there && pins == 0 && !dirty -> there = 0 }
#endif
  od
}

// Writes the page back: who holds its list's lock.
inline clean() {
  d_step { dirty && !cleaning -> dirty = 0; pins++; cleaning = 1 };
  taken = 0;
  do
  :: taken < NBYTES ->
    if
    :: d_step { mask[taken] -> mask[taken] = 0 };
      if
      :: taken >= host_size -> host_size = taken + 1
      :: else
      fi;
      file[taken] = data[taken]
    :: !mask[taken]
    fi;
    taken++
  :: taken == NBYTES -> break
  od;
  taken = 0;
  d_step { pins--; cleaning = 0 }
}

active proctype cleaner() {
  byte taken;
end:
  do
  :: clean()
  od
}

inline pin_page() {
  d_step {
    if
    :: there
    :: else -> there = 1; partial = 1; valid[0] = 0; valid[1] = 0; busy[0] = 0; busy[1] = 0;
      data[0] = garbage; data[1] = garbage; data[2] = garbage; data[3] = garbage
    fi;
    pins++
  }
}

// Brings a sector in that the caller has claimed.
inline pull(s) {
#ifndef MUTATE_SIZE_BEFORE_CLAIM
  ends = (size < host_size -> size : host_size);
#endif
  at = 2 * s;
  do
  :: at < 2 * s + 2 ->
    if
    :: at < ends -> data[at] = file[at]
    :: else -> data[at] = 0
    fi;
    at++
  :: at == 2 * s + 2 -> break
  od;
  publish(s)
}
inline publish(s) {
  at = 0;
  d_step {
    assert(busy[s]);
    ends = 0;
    busy[s] = 0; valid[s] = 1;
    if :: valid[0] && valid[1] -> partial = 0 :: else fi
  }
}

inline bring(s) {
#ifdef MUTATE_SIZE_BEFORE_CLAIM
  ends = (size < host_size -> size : host_size);
#endif
  do
  :: valid[s] -> break
#ifdef MUTATE_CLAIMED_SECTORS_ARE_FILLED
  :: d_step { !valid[s] -> busy[s] = 1 };
#else
  :: d_step { !valid[s] && !busy[s] -> busy[s] = 1 };
#endif
    pull(s)
  od
}

// Lets the writer claim a sector that it writes whole.
inline claim(s) {
  if
  :: d_step { valid[s] -> claimed = 0 }
  :: d_step { !valid[s] && !busy[s] -> claimed = 1; busy[s] = 1 }
  fi
}

inline note(b) {
  mask[b] = 1
}
inline grow(n) {
  d_step { if :: size < n -> size = n :: else fi }
}
inline end_write() {
  dirty = 1;
  pins--;
  inside--
}
inline enter() {
  d_step { !cutting -> inside++ }
}

// Writes one byte of a sector of which it keeps the other one.
inline write_byte(b, value) {
  enter();
  pin_page();
#ifdef MUTATE_PART_NOT_BROUGHT_IN
  claim(sector_of(b));
  data[b] = value;
  if
  :: claimed -> publish(sector_of(b))
  :: !claimed
  fi;
  note(b);
#else
  bring(sector_of(b));
  data[b] = value;
  note(b);
#endif
  want[b] = value;
  grow(b + 1);
  end_write()
}
// Writes the second sector.
inline write_whole(value) {
  enter();
  pin_page();
#ifdef MUTATE_NOT_CLAIMED
  claimed = 0;
#else
  claim(1);
#endif
#ifdef MUTATE_VALID_BEFORE_THE_BYTES
  if :: claimed -> publish(1); claimed = 0 :: !claimed fi;
#endif
  data[2] = value;
  data[3] = value;
#ifdef MUTATE_NOT_CLAIMED
  d_step { valid[1] = 1; if :: valid[0] -> partial = 0 :: else fi };
#endif
  if
  :: claimed -> publish(1)
  :: !claimed
  fi;
  note(2);
  note(3);
  d_step { want[2] = value; want[3] = value };
  grow(4);
  end_write()
}
// Reads its own byte.
inline check_byte(b) {
  pin_page();
  bring(sector_of(b));
  assert(data[b] == want[b]);
  pins--
}

#ifdef PART
active proctype part_writer() {
  byte at, ends;
  bit claimed;
  write_byte(1, 2);
  check_byte(1);
  write_byte(1, 3);
  check_byte(1);
  ndone++
}
#endif

#ifdef WHOLE
active proctype whole_writer() {
  byte at, ends;
  bit claimed;
  write_whole(4);
  check_byte(2);
  write_whole(5);
#ifndef BOTH
  check_byte(3);
#endif
#ifdef CUT
  // ftruncate(2)
  d_step { !cutting && inside == 0 -> cutting = 1 };
  size = 2;
  if
  :: d_step { there -> pins++ };
#ifndef MUTATE_CUT_DOES_NOT_WAIT
    !busy[1];
#endif
    if
    :: valid[1] -> data[2] = 0; data[3] = 0
    :: else
    fi;
    d_step { mask[2] = 0; mask[3] = 0 };
    pins--
  :: !there
  fi;
  !cleaning;
  d_step { file[2] = 0; file[3] = 0; host_size = 2; want[2] = 0; want[3] = 0 };
  cutting = 0;
  write_byte(3, 6);
  check_byte(2);
  check_byte(3);
#endif
  ndone++
}
#endif

#ifdef BOTH
// Two writers that cover both sectors: each claims all that it wants, or nothing.
proctype both_writer() {
  byte at, ends;
  bit claims[2];
  enter();
  pin_page();
#ifdef MUTATE_WAITS_WITH_CLAIMS
  byte first = _pid % 2;
  if
  :: valid[first]
  :: d_step { !valid[first] && !busy[first] -> busy[first] = 1; claims[first] = 1 }
  fi;
  if
  :: valid[1 - first]
  :: d_step { !valid[1 - first] && !busy[1 - first] -> busy[1 - first] = 1; claims[1 - first] = 1 }
  fi;
#else
  d_step {
    !busy[0] && !busy[1] ->
    claims[0] = !valid[0]; claims[1] = !valid[1];
    if :: claims[0] -> busy[0] = 1 :: else fi;
    if :: claims[1] -> busy[1] = 1 :: else fi
  };
#endif
  data[0] = 7; data[1] = 7; data[2] = 7; data[3] = 7;
  if :: claims[0] -> publish(0) :: else fi;
  if :: claims[1] -> publish(1) :: else fi;
  note(0); note(1); note(2); note(3);
  d_step { want[0] = 7; want[1] = 7; want[2] = 7; want[3] = 7 };
  end_write();
  ndone++
}
#endif

proctype reader() {
  byte at, ends, s;
  if
  :: s = 0
  :: s = 1
  fi;
  pin_page();
  bring(s);
  assert(data[2 * s] != garbage);
  assert(data[2 * s + 1] != garbage);
  pins--;
  ndone++
}

init {
  byte i, taken;
  atomic {
    do
    :: i < READERS -> run reader(); i++
    :: i == READERS -> break
    od;
    nprocs = READERS;
#ifdef PART
    nprocs++;
#endif
#ifdef WHOLE
    nprocs++;
#endif
#ifdef BOTH
    run both_writer();
    run both_writer();
    nprocs = nprocs + 2;
#endif
    i = 0
  };
  ndone == nprocs;
  // The last close.
  do
  :: clean()
  :: !dirty && !cleaning -> break
  od;
  assert(pins == 0);
  assert(!there || !busy[0] && !busy[1]);
  do
  :: i < NBYTES ->
    assert(i >= size || i < host_size && file[i] == want[i] || i >= host_size && want[i] == 0);
    if
    :: there && valid[sector_of(i)] -> assert(data[i] == (i < size -> want[i] : 0))
    :: else
    fi;
    i++
  :: i == NBYTES -> break
  od
}
