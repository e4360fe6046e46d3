#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Takes QEMU's controller over inside a guest with a Linux of its own: through vfio-pci, behind QEMU's Intel IOMMU; by its registers,
# without one; and sees one refused whose disk is mounted. No part of the check, as it wants a kernel.
#   in_guest.sh BUILD ROOT
# BUILD: a build with libgpufs.a for the CPU machine. ROOT: where Debian's linux-image (or another with its modules), kmod and
# busybox-static lie unpacked (dpkg -x), or / where they are installed. Needs qemu-system-x86_64, cpio, xz.
set -euo pipefail
[ $# -eq 2 ] || { sed -n '3,8s/^# \?//p' "$0" >&2; exit 2; }
build=$(realpath "$1") root=$(realpath "$2")
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

lib=/usr/lib/$(gcc -print-multiarch)
g++ -std=c++20 -O1 -DGPUFS_HAVE_CPU_MACHINE=1 -Iinclude -I"$build/include" -Isrc -Itests -I. tests/nvme/in_guest.cpp "$build/libgpufs.a" \
  -static "$lib"/lib{boost_context,uring,gtest}.a -o "$work/in_guest" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }

version=$(basename "$(find "$root"/lib/modules "$root"/usr/lib/modules -mindepth 1 -maxdepth 1 2>/dev/null | head -1)")
kernel=$root/boot/vmlinuz-$version
[ -r "$kernel" ] || { echo "no kernel at $kernel" >&2; exit 1; }
mkdir -p "$work"/guest/{bin,dev,proc,sys,mnt,mod}
cp "$root/bin/busybox" "$work/guest/bin/"
mv "$work/in_guest" "$work/guest/"
kmod=$root/bin/kmod
export LD_LIBRARY_PATH=$root/lib/$(gcc -print-multiarch):$root/usr/lib/$(gcc -print-multiarch)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
(exec -a depmod "$kmod" -b "$root" "$version")
for module in vfio_iommu_type1 vfio-pci nvme ext4; do (exec -a modprobe "$kmod" -d "$root" -S "$version" --show-depends "$module"); done |
  awk '/^insmod/ && !seen[$2]++ {print $2}' | while read -r module; do
  cp "$module" "$work/guest/mod/"
  basename "$module" >>"$work/guest/mod/order"
done
cat >"$work/guest/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in $(cat /mod/order); do insmod "/mod/$module"; done
read -r wanted < /wanted
if [ "$wanted" = mounted ]; then
  mke2fs /dev/nvme0n1 > /dev/null && mount -t ext4 /dev/nvme0n1 /mnt
  /in_guest 0000:00:01.0 from_kernel without_iommu; /in_guest list
else
  /in_guest 0000:00:01.0 $wanted && [ -e /sys/bus/pci/drivers/nvme/0000:00:01.0 ] && echo "GUEST: taken, and given back"
fi
poweroff -f
INIT
chmod +x "$work/guest/init"

# boot WANTED SAYS [WORDS FOR THE KERNEL [QEMU'S OPTIONS...]]
boot() {
  local wanted=$1 says=$2 words=${3-}
  shift $(($# < 3 ? $# : 3))
  echo "$wanted" >"$work/guest/wanted"
  (cd "$work/guest" && find . | cpio -o -H newc --quiet) >"$work/initrd"
  truncate -s 0 "$work/image" && truncate -s 16M "$work/image"
  timeout -k 5 180 qemu-system-x86_64 -M q35,kernel-irqchip=split -accel tcg -cpu max,la57=off -m 1024 -smp 2 -nodefaults -display none \
    -no-reboot -kernel "$kernel" -initrd "$work/initrd" -serial stdio -append "console=ttyS0 quiet panic=-1 $words" "$@" \
    -drive "file=$work/image,format=raw,if=none,id=d0" -device nvme,drive=d0,serial=x,addr=1 </dev/null >"$work/log" 2>&1 || true
  grep -q "$says" "$work/log" && { echo "ok: $wanted"; return; }
  cat "$work/log"
  echo "FAILED: $wanted"
  exit 1
}
boot from_kernel 'GUEST: taken, and given back' intel_iommu=on -device intel-iommu
boot 'from_kernel without_iommu' 'GUEST: taken, and given back'
boot mounted 'it is in use: nvme0n1 is mounted at /mnt'
