# SPDX-License-Identifier: Apache-2.0
# Steps of the guest (init.sh, guest.py) whose IOMMU is on: a controller of two namespaces; two functions that share an
# IOMMU group, the first of which has a partition with a file system; one that can be unplugged. docs/guide/nvme.md quotes what a user does.
controller=0000:00:04.0
user=1000

step 'the kernel has the disks' within 20 has_disks 2
step 'who does not ask for a controller of the kernel does not get it' refused EBUSY "the kernel's driver has it, as nvme"
without_the_module() { refused EOPNOTSUPP 'is the module there? (modprobe vfio-pci)' from_kernel && given_back 2; }
step 'without vfio-pci it stays with the kernel' without_the_module
modprobe vfio-pci
step 'lanes read and write blocks' and_given_back guest_blocks.lanes_read_and_write_them_by_several_queues from_kernel
step 'memory is mapped and unmapped' and_given_back guest_blocks.memory_that_is_unmapped_makes_room from_kernel

step 'the disks are filled' program guest_disk.is_filled
step 'kernels read them' and_given_back guest_files.are_read_as_the_disks_were_written from_kernel
step 'kernels write them' and_given_back guest_files.are_written_and_synced from_kernel
step 'the disks have it' program guest_disk.has_what_kernels_have_written_and_nothing_else_changed writes=4
step 'a function that is reset' and_given_back guest_files.are_right_or_an_error_while_the_function_is_reset from_kernel writes=4
step 'the disks still have it' program guest_disk.has_what_kernels_have_written_and_nothing_else_changed writes=4

# As a user's controller, bound by root.
echo vfio-pci > /sys/bus/pci/devices/$controller/driver_override
echo $controller > /sys/bus/pci/devices/$controller/driver/unbind
echo $controller > /sys/bus/pci/drivers_probe
step 'it is bound by hand' [ "$(driver)" = vfio-pci ]
step 'a user without the right' refused EACCES 'may this user?' user=$user
chown $user /dev/vfio/$(basename $(readlink /sys/bus/pci/devices/$controller/iommu_group))
little_memory() { (ulimit -l 64 && refused ENOMEM 'raise RLIMIT_MEMLOCK' user=$user); }
step 'a user who may lock little memory' little_memory
step 'a user who may' program guest_files.are_read_as_the_disks_were_written user=$user writes=4
step 'it stays bound' [ "$(driver)" = vfio-pci ]
step 'who comes second' program guest_refusal.is_that_of_who_comes_second

limit=/sys/module/vfio_iommu_type1/parameters/dma_entry_limit
usual=$(cat $limit)
echo 2 > $limit
step 'few mappings' refused ENOSPC dma_entry_limit
echo "$usual" > $limit

killed() {
  program guest_files.are_read_until_the_program_is_killed writes=4 > /tmp/killed 2>&1 &
  within 60 grep -q 'GUEST: all is synced' /tmp/killed || { cat /tmp/killed; return 1; }
  sleep 1
  kill -9 "$(pidof in_guest)"
  wait $!
  [ $? -eq 137 ]
}
step 'a program that is killed' killed
step 'the next one takes it at once' program guest_files.are_read_as_the_disks_were_written writes=5

# Back to the kernel.
echo $controller > /sys/bus/pci/drivers/vfio-pci/unbind
echo > /sys/bus/pci/devices/$controller/driver_override
echo $controller > /sys/bus/pci/drivers_probe
step 'it is given back by hand' given_back 2
step 'the disks have what was synced before the kill' program guest_disk.has_what_kernels_have_written_and_nothing_else_changed writes=5

controller=0000:00:05.0
step 'the kernel has the partition' within 20 has_disks 1
mount_it() { mount -t ext4 -o ro "/dev/$(disks)p1" /mnt && cmp /mnt/folder/big /wanted/big; }
step 'the kernel reads its file system' mount_it
step 'a disk that is mounted' refused EBUSY 'n1p1 is mounted at /mnt' from_kernel
step 'it can be unmounted' umount /mnt
step 'a group that is not viable' refused EOPNOTSUPP 'which drivers of the kernel have: 0000:00:05.1 (nvme)' from_kernel
echo vfio-pci > /sys/bus/pci/devices/0000:00:05.1/driver_override
echo 0000:00:05.1 > /sys/bus/pci/devices/0000:00:05.1/driver/unbind
echo 0000:00:05.1 > /sys/bus/pci/drivers_probe
step 'kernels read its file system' program guest_files.of_an_ext4_partition_are_read from_kernel
step 'it is given back, too' given_back 1

controller=0000:01:00.0
step 'the kernel has the disk that can be unplugged' within 20 has_disks 1
step 'a device that is to be unplugged' program guest_files.are_read_while_the_device_is_being_unplugged from_kernel
step 'it leaves when the program has ended' within 20 [ ! -e /sys/bus/pci/devices/$controller ]
