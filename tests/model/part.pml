// SPDX-License-Identifier: Apache-2.0
// Pages that come sector by sector (cache/detail/sectors.hpp, file/detail/sector_fill.hpp; docs/design/part-pages.md), for Spin, as page.pml.
//
// One frame, in which pages of two sectors come one after the other. Looking a page up under its bucket's lock, and making room for it,
// are one step (page.pml has them); so is each atomic operation. Sectors are read and written one by one. The file's version ends at
// some moment, after which its bytes change. Checked: who reads a sector gets that of its page and version; a page that is taken for
// whole is; who looks without a pin gets no sector of another page; nobody waits for ever; in the end nothing is pinned or on its way.
//
// READERS want one sector or both, of any page, each NREADS times. LOOKER: one that looks without a pin. CHANGE: the version ends.

#ifndef NREADERS
#define NREADERS 2
#endif
#ifndef NREADS
#define NREADS 1
#endif
#define NPAGES 2
#define of_page(p, s) (1 + 2 * (p) + (s))

bit stale;             // the version has ended
byte changed;          // what its bytes have been raised by

bit claimed = 1, filling, partial;
byte key = NPAGES;     // none
byte stamp;            // counts the frame's pages
byte data[2];
bit valid[2], busy[2]; // the word of sectors
byte pins;
byte ndone;

#define is_valid(want) ((!(want & 1) || valid[0]) && (!(want & 2) || valid[1]))

active proctype evictor() {
end:
  do
  :: d_step { !claimed && pins == 0 -> claimed = 1; key = NPAGES }
  od
}

#ifdef CHANGE
active proctype writer() {
  stale = 1;
  changed = 10
}
#endif

// Brings in the sectors that the caller has claimed: `mine`. failed: the version has ended.
inline pull() {
  if
  :: mine & 1 -> data[0] = of_page(page, 0) + changed
  :: !(mine & 1)
  fi;
#ifdef MUTATE_VALID_BEFORE_THE_BYTES
  d_step { if :: mine & 2 -> valid[1] = 1 :: else fi };
#endif
  if
  :: mine & 2 -> data[1] = of_page(page, 1) + changed
  :: !(mine & 2)
  fi;
#ifdef MUTATE_NO_LOOK_AT_THE_VERSION
  failed = 0;
#else
  failed = stale;
#endif
  if
  :: failed ->
#ifndef MUTATE_GIVE_UP_KEEPS_BUSY
    d_step {
      if :: mine & 1 -> assert(busy[0]); busy[0] = 0 :: else fi;
      if :: mine & 2 -> assert(busy[1]); busy[1] = 0 :: else fi
    }
#else
    skip
#endif
  :: !failed ->
    d_step {
      if :: mine & 1 -> assert(busy[0]); busy[0] = 0; valid[0] = 1 :: else fi;
      if :: mine & 2 -> assert(busy[1]); busy[1] = 0; valid[1] = 1 :: else fi;
#ifdef MUTATE_WHOLE_WITH_BUSY_SECTORS
      whole = (valid[0] || busy[0]) && (valid[1] || busy[1])
#else
      whole = valid[0] && valid[1]
#endif
    };
    if
    :: whole -> partial = 0
    :: !whole
    fi
  fi
}

proctype reader() {
  byte page, want, mine, n;
  bit failed, fills, whole, hit;
  do
  :: n == NREADS -> break
  :: n < NREADS ->
    n++;
    if
    :: page = 0
    :: page = 1
    fi;
    if
    :: want = 1
    :: want = 2
    :: want = 3
    fi;
    failed = 0; mine = 0;
    // Pins the page, or makes room for it.
    if
    :: d_step { !claimed && key == page -> pins++; fills = 0 }
    :: d_step { claimed -> claimed = 0; key = page; stamp++; filling = 1; pins++; fills = 1 }
    fi;
    if
    :: fills ->
#ifndef MUTATE_WORD_NOT_CLEARED
      d_step { valid[0] = 0; valid[1] = 0; busy[0] = 0; busy[1] = 0 };
#endif
      d_step { partial = 1; filling = 0 };
      hit = 0
    :: !fills ->
      !filling;
#ifdef MUTATE_PARTIAL_IS_A_HIT
      hit = 1
#else
      hit = !partial
#endif
    fi;
    if
    :: hit
    :: !hit ->
      do
      :: d_step { is_valid(want) -> mine = 0 }; break
      :: d_step { !is_valid(want) ->
#ifdef MUTATE_BUSY_SECTORS_ARE_TAKEN
          mine = ((want & 1) && !valid[0] -> 1 : 0) + ((want & 2) && !valid[1] -> 2 : 0);
#else
          mine = ((want & 1) && !valid[0] && !busy[0] -> 1 : 0) + ((want & 2) && !valid[1] && !busy[1] -> 2 : 0);
#endif
          if :: mine & 1 -> busy[0] = 1 :: else fi;
          if :: mine & 2 -> busy[1] = 1 :: else fi
        };
        if
        :: mine != 0 ->
          pull();
          if
          :: failed -> break
          :: !failed
          fi
        :: mine == 0 -> is_valid(want) || ((want & 1) && !valid[0] && !busy[0]) || ((want & 2) && !valid[1] && !busy[1])
        fi
      od
    fi;
    if
    :: !failed && (want & 1) -> assert(data[0] == of_page(page, 0))
    :: failed || !(want & 1)
    fi;
    if
    :: !failed && (want & 2) -> assert(data[1] == of_page(page, 1))
    :: failed || !(want & 2)
    fi;
    pins--
  od;
  ndone++
}

#ifdef LOOKER
active proctype looker() {
  byte was, got, page, sector;
  bit ready, part, is_there;
  if
  :: page = 0
  :: page = 1
  fi;
  if
  :: sector = 0
  :: sector = 1
  fi;
#ifdef MUTATE_WORD_LOOKED_AT_FIRST
  is_there = valid[sector];
#endif
  d_step {
    was = stamp;
    part = partial;
    ready = !claimed && !filling && key == page
  };
  if
  :: ready && part ->
#ifdef MUTATE_LOOKED_AT_IN_PART
    is_there = 1;
#endif
#if !defined(MUTATE_LOOKED_AT_IN_PART) && !defined(MUTATE_WORD_LOOKED_AT_FIRST)
    is_there = valid[sector];
#endif
    ready = is_there
  :: else
  fi;
  if
  :: ready ->
    got = data[sector];
    d_step {
      if
      :: stamp == was && !claimed -> assert(got == of_page(page, sector))
      :: else
      fi
    }
  :: !ready
  fi
}
#endif

init {
  byte i;
  atomic {
    do
    :: i < NREADERS -> run reader(); i++
    :: i == NREADERS -> break
    od
  };
  ndone == NREADERS;
  assert(pins == 0 && !filling && !busy[0] && !busy[1] || claimed);
  assert(pins == 0)
}
