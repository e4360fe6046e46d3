// SPDX-License-Identifier: Apache-2.0
// The machine: all that device code is written against.
#pragma once
#include "gpufs/simt/atomic.hpp"
#include "gpufs/simt/cold.hpp"
#include "gpufs/simt/config.hpp"
#include "gpufs/simt/counter.hpp"
#include "gpufs/simt/device_array.hpp"
#include "gpufs/simt/group.hpp"
#include "gpufs/simt/group_call.hpp"
#include "gpufs/simt/launch.hpp"
#include "gpufs/simt/memory.hpp"
#include "gpufs/simt/platform.hpp"
#include "gpufs/simt/schedule.hpp"
#include "gpufs/simt/stop.hpp"
#include "gpufs/simt/stream.hpp"
#include "gpufs/simt/thread.hpp"
#include "gpufs/simt/types.hpp"
#include "gpufs/simt/wait.hpp"
