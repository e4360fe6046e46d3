# SPDX-License-Identifier: Apache-2.0
"""Bugs in graphs."""

from __future__ import annotations

from .bug import Bug

LISTS = "apps/graph/lists.hpp"
BUILDER = "apps/graph/builder.cpp"
SEARCHES = "graph_test_cpu"
BUILDS = "graph_build_test"
OF_ALL = "graphs.of_all_shapes_have_the_results_of_serial_algorithms"
BY_ALL = "made_graphs.of_a_generator_have_its_edges_and_are_equal_by_all_engines"

BUGS = (
    Bug(
        "edge_of_the_next_list",
        "a list ends an edge late for who asks whose edge it is",
        LISTS,
        "if (warp.shfl(past, owner + step - 1) <= warp.rank()) owner += step;",
        "if (warp.shfl(past, owner + step - 1) < warp.rank()) owner += step;",
        SEARCHES,
        OF_ALL,
    ),
    Bug(
        "piece_ends_early",
        "a piece of a long list lacks its last edge",
        LISTS,
        "begin + edges_a_piece < list_end ? begin + edges_a_piece : list_end;",
        "begin + edges_a_piece < list_end ? begin + edges_a_piece - 1 : list_end;",
        SEARCHES,
        OF_ALL,
    ),
    Bug(
        "vertex_behind_the_last_is_one",
        "a target that is the number of vertices is followed",
        LISTS,
        "const bool is_there = is_read && target < nvertices;",
        "const bool is_there = is_read && target <= nvertices;",
        SEARCHES,
        "damaged.list_leads_out_of_the_graph",
    ),
    Bug(
        "failed_read_is_an_empty_list",
        "a list that cannot be read counts as one without edges",
        LISTS,
        "if (here.n == 0) return here.error;",
        "if (here.n == 0) return error;",
        SEARCHES,
        "damaged.file_is_cut_while_it_is_read",
    ),
    Bug(
        "pieces_have_the_sum_of_one",
        "of a vertex whose list is in pieces, the sum is that of the last piece",
        "apps/graph/pagerank.hpp",
        "simt::atomic_ref<std::uint64_t>(sums[list.of]).add_relaxed(sum);",
        "sums[list.of] = sum;",
        SEARCHES,
        OF_ALL,
    ),
    Bug(
        "who_leads_to_a_vertex_is_not_linked",
        "weak components are those that vertices lead to",
        "apps/graph/components.hpp",
        "link_by(direction::in, 0, all_of_a_list, largest);",
        "link_by(direction::in, 0, 0, largest);",
        SEARCHES,
        OF_ALL,
    ),
    Bug(
        "far_ones_wait_no_more",
        "vertices beyond a bucket are forgotten when it is taken",
        "apps/graph/shortest_paths.hpp",
        "waiting[w] = all & ~near_ones;",
        "waiting[w] = 0;",
        SEARCHES,
        OF_ALL,
    ),
    Bug(
        "list_is_left_too_early",
        "a vertex counts as found where another one's neighbour is in the frontier",
        "apps/graph/bfs.hpp",
        "(leading & now.mine) != 0",
        "leading != 0",
        SEARCHES,
        OF_ALL,
    ),
    Bug(
        "offsets_are_believed",
        "offsets that go back are not noticed",
        "apps/graph/graph_file.cpp",
        " && std::is_sorted(offsets.begin(), offsets.end());",
        ";",
        SEARCHES,
        "damaged.offsets_do_not_ascend",
    ),
    Bug(
        "edges_with_other_weights_are_others",
        "an edge that comes again with another weight is kept",
        BUILDER,
        "return target_of(a) == target_of(b);",
        "return a == b;",
        BUILDS,
        "made_graphs.of_text_have_the_lines_edges",
    ),
    Bug(
        "fewer_edges_than_counted",
        "lists that have fewer edges than were counted are written as they are",
        BUILDER,
        "if (!std::equal(next.begin(), next.end(), begins.begin() + 1)) fail_changed();",
        "",
        BUILDS,
        "made_graphs.of_edges_that_change_meanwhile_are_refused",
    ),
    Bug(
        "each_thread_tells_of_edges",
        "whichever thread has gone through a part of the edges says so, also where only one may call Python",
        BUILDER,
        "if (std::this_thread::get_id() == caller) progress(now, edges_.nparts());",
        "progress(now, edges_.nparts());",
        BUILDS,
        "made_graphs.tell_the_calling_thread_how_far_they_are",
    ),
    Bug(
        "each_thread_tells_of_lines",
        "whichever thread has read a part of a text says so, also where only one may call Python",
        "apps/graph/text_edges.cpp",
        "if (std::this_thread::get_id() == caller) progress(done, nparts());",
        "progress(ndone, nparts());",
        BUILDS,
        "made_graphs.tell_the_calling_thread_how_far_they_are",
    ),
    Bug(
        "weight_of_a_direction",
        "an edge and its way back have weights of their own",
        "apps/graph/generator.hpp",
        "low = a < b ? a : b, high = a < b ? b : a;",
        "low = a, high = b;",
        BUILDS,
        BY_ALL,
    ),
    Bug(
        "line_at_a_parts_begin_is_lost",
        "a line that begins where a part of the text does is nobody's",
        "apps/graph/text_edges.cpp",
        "from = part == 0 ? first : first - 1,",
        "from = first,",
        BUILDS,
        "made_graphs.of_long_text_have_all_lines_once",
    ),
)
