// SPDX-License-Identifier: Apache-2.0
#include "count_bytes.cpp"
