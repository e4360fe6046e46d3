// SPDX-License-Identifier: Apache-2.0
// After every test nothing may remain: when a mount ends it holds no pin, no open file, no page that is not written; and the
// process has as many descriptors as before. Linked into every program of gpufs_device_test() and file_group_call; a test that
// leaves something on purpose says so.
#pragma once

namespace gpufs::test {

// The test that runs leaves something behind, and why: to be called before its mount ends.
void expect_leftovers(const char* why);
// The same, but no pin.
void expect_leftovers_but_pins(const char* why);

}  // namespace gpufs::test
