// SPDX-License-Identifier: Apache-2.0
#include "gather_by_host.hpp"
