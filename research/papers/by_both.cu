// SPDX-License-Identifier: Apache-2.0
// The same for GPUs.
#include "research/papers/by_both.cpp"
