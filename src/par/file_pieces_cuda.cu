// SPDX-License-Identifier: Apache-2.0
#include "file_pieces.hpp"
