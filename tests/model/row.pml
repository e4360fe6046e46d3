// SPDX-License-Identifier: Apache-2.0
// A row that a batch stores past the cache into a file's mapping (par/detail/store_rows.hpp; docs/design/batches.md, "What a scatter does"),
// beside all that brings its page into the cache, for Spin, as page.pml. Checked: once its writer has returned, each read gives the
// row; in the end the file has it, and so has the page if it is cached; nothing is stored where the file has been cut.
//
// The page has two bytes: byte 0 is the row, byte 1 others'. It has one frame at most. Looking it up under its bucket's lock, and
// evicting it, are one step each (page.pml has them). What is stored to the mapping, and that the page is in the table, others who
// hold no lock may see later than it happens, but not after a fence of who did it. The row was written by pwrite before, and may be in
// the cache still, written back or not.
//
// READER: reads NREADS times. WRITER: a pwrite of byte 1. WHOLE: one of both bytes, which stores in place. CUT: a truncation.

#ifndef NREADS
#define NREADS 2
#endif

#define BEFORE 1  // values of bytes: what the row was
#define ROW 2
#define OTHER 3

byte host[2];             // the file
byte on_way;              // the row, stored, and not seen by others yet
bit mapped = 1;           // the file may be stored to
byte size = 2;

bit cached = 1, seen = 1, filling, dirty = 1;  // the frame, and whether who looks without a lock sees that the table has it
byte data[2] = BEFORE;
bit mask[2] = 1;
byte pins;
bit list_lock;

byte writing;             // the gate
bit closed;
bit row_is_written;       // no part of the code
byte ndone;

active proctype time() {
end:
  do
  :: d_step { on_way != 0 -> assert(mapped); host[0] = on_way; on_way = 0 }
  :: d_step { cached && !seen -> seen = 1 }
  od
}

active proctype evictor() {
end:
  do
  :: d_step { cached && !filling && !dirty && pins == 0 -> cached = 0; seen = 0 }
  od
}

inline write_back() {  // the caller has the list's lock
  if
  :: d_step { dirty -> dirty = 0; pins++ };
    b = 0;
    do
    :: b < 2 ->
      if
      :: d_step { mask[b] -> mask[b] = 0 };
        value = data[b];
        host[b] = value
      :: !mask[b]
      fi;
      b++
    :: b == 2 -> break
    od;
    pins--
  :: !dirty
  fi
}

active proctype cleaner() {
  byte b, value;
end:
  do
  :: d_step { dirty && !list_lock -> list_lock = 1 };
    write_back();
    list_lock = 0
  od
}

inline pass_gate() { d_step { !closed -> writing++ } }
inline leave_gate() { d_step { writing-- } }

// Pins the page; `fills`: the caller must fill it.
inline acquire() {
  if
  :: d_step { cached -> pins++; fills = 0 };
    !filling
  :: d_step { !cached -> cached = 1; seen = 0; filling = 1; pins++; fills = 1 }
  fi
}
// Its leader's fence, after which it reads the file, or stores to it.
inline fence() { seen = 1 }
inline fill() {
#ifdef MUTATE_FILLED_BEFORE_THE_FENCE
  data[0] = (size > 0 -> host[0] : 0);
  fence();
#else
  fence();
  data[0] = (size > 0 -> host[0] : 0);
#endif
  data[1] = (size > 1 -> host[1] : 0);
  filling = 0
}
inline write_byte(at, what) {
  acquire();
  if
  :: fills -> fill()
  :: !fills
  fi;
  data[at] = what;
  mask[at] = 1;
  d_step { size = (size > at -> size : at + 1); dirty = 1 };
  pins--
}

active proctype row_writer() {
  bit fills, past;
  pass_gate();
#ifdef MUTATE_NO_FIRST_LOOK
  past = mapped;
#else
  past = mapped && !(cached && seen);
#endif
#ifdef MUTATE_STORED_BESIDE_THE_GATE
  leave_gate();
#endif
  if
  :: past ->
    on_way = ROW;
#ifndef MUTATE_NO_FENCE
    on_way == 0;
#endif
#ifndef MUTATE_NO_SECOND_LOOK
    past = !(cached && seen)
#endif
  :: !past
  fi;
#ifndef MUTATE_STORED_BESIDE_THE_GATE
  leave_gate();
#endif
  if
  :: !past ->
    pass_gate();
    write_byte(0, ROW);
    leave_gate()
  :: past
  fi;
  d_step { row_is_written = 1; ndone++ }
}

#ifdef READER
active proctype reader() {
  bit fills, after;
  byte n;
  do
  :: n < NREADS ->
    after = row_is_written;
    acquire();
    if
    :: fills -> fill()
    :: !fills
    fi;
#if !defined(WHOLE) && !defined(CUT)
    assert(!after || data[0] == ROW);
#endif
    pins--;
    n++
  :: n == NREADS -> break
  od;
  ndone++
}
#endif

#ifdef WRITER
active proctype writer() {
  bit fills;
  pass_gate();
  write_byte(1, OTHER);
  leave_gate();
  ndone++
}
#endif

#ifdef WHOLE
active proctype whole_page() {
  bit fills;
  pass_gate();
  acquire();
  if
  :: fills && mapped ->
#ifndef MUTATE_WHOLE_PAGE_WITHOUT_FENCE
    fence();
#endif
    data[0] = OTHER;
    host[0] = OTHER;
    data[1] = OTHER;
    host[1] = OTHER;
    filling = 0;
    pins--
  :: !(fills && mapped) ->
    data[0] = OTHER;
    data[1] = OTHER;
    filling = 0;
    d_step { mask[0] = 1; mask[1] = 1 };
    d_step { size = 2; dirty = 1 };
    pins--
  fi;
  leave_gate();
  ndone++
}
#endif

#ifdef CUT
active proctype truncater() {
  closed = 1;
  writing == 0;
  d_step { size = 0; mapped = 0 };
  if
  :: d_step { cached -> pins++ };
    !filling;
    d_step { data[0] = 0; data[1] = 0; mask[0] = 0; mask[1] = 0 };
    pins--
  :: !cached
  fi;
  d_step { !list_lock -> host[0] = 0; host[1] = 0; closed = 0 };
  ndone++
}
#endif

#ifdef READER
#define N_READER 1
#else
#define N_READER 0
#endif
#ifdef WRITER
#define N_WRITER 1
#else
#define N_WRITER 0
#endif
#ifdef WHOLE
#define N_WHOLE 1
#else
#define N_WHOLE 0
#endif
#ifdef CUT
#define N_CUT 1
#else
#define N_CUT 0
#endif

active proctype checker() {
  byte b, value;
  ndone == 1 + N_READER + N_WRITER + N_WHOLE + N_CUT;
  d_step { !list_lock -> list_lock = 1 };
  write_back();
  d_step {
    on_way == 0 ->
    assert(pins == 0 && writing == 0 && !dirty);
    assert(!cached || (data[0] == (size > 0 -> host[0] : 0) && data[1] == (size > 1 -> host[1] : 0)));
#ifdef CUT
    assert(host[0] == ROW || host[0] == 0);
#else
#ifdef WHOLE
    assert(host[0] == ROW || host[0] == OTHER);
#else
    assert(host[0] == ROW);
#endif
#ifdef WRITER
    assert(host[1] == OTHER);
#endif
#endif
  }
}
