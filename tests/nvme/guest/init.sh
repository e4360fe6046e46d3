#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# The first program of the guest that guest.py makes. It runs one file of steps, and says of each whether it passed.
mkdir -p /sbin /usr/bin /usr/sbin
/bin/busybox --install -s
export PATH=/sbin:/bin:/usr/sbin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
depmod
modprobe nvme
modprobe vfio_iommu_type1  # which modprobe of kmod loads with vfio-pci, and busybox's does not
echo "GUEST: is up"

npassed=0
# step NAME COMMAND...
step() {
  local name=$1 begin=$(cut -d ' ' -f 1 /proc/uptime)
  shift
  if "$@" > /tmp/log 2>&1; then
    npassed=$((npassed + 1))
    echo "GUEST: passed: $name ($begin to $(cut -d ' ' -f 1 /proc/uptime) s)"
  else
    cat /tmp/log
    dmesg | tail -n 20
    echo "GUEST: FAILED: $name"
  fi
}
# program TEST WORDS...: one test of in_guest.cpp, on $controller
program() {
  local test=$1
  shift
  /in_guest "$controller" "$@" --gtest_filter="$test"
}
# refused ERRNO WORDS HOW...
refused() {
  local error=$1 says=$2
  shift 2
  program guest_refusal.is_as_told "refused=$error" "says=$says" "$@"
}
driver() { basename "$(readlink "/sys/bus/pci/devices/$controller/driver")"; }
disks() { (cd "/sys/bus/pci/devices/$controller/nvme" && ls -d nvme*/nvme*n* | sed 's,.*/,,'); }
# within SECONDS COMMAND...
within() {
  local n=$(($1 * 10))
  shift
  until "$@"; do
    n=$((n - 1))
    [ $n -gt 0 ] || return 1
    sleep 0.1
  done
}
# The kernel's driver has it, with all its disks, and nothing else is left of what vfio took.
has_disks() { [ "$(disks 2>/dev/null | wc -l)" -eq "$1" ] && for each in $(disks); do [ -b "/dev/$each" ] || return 1; done; }
given_back() {
  within 20 has_disks "$1" && [ "$(driver)" = nvme ] && [ "$(cat "/sys/bus/pci/devices/$controller/driver_override")" = "(null)" ]
}
# Runs it, and looks whether the controller is as before.
and_given_back() {
  program "$@" && given_back 2
}

. "/$steps.sh"
echo "GUEST: $npassed steps passed"
poweroff -f
