# SPDX-License-Identifier: Apache-2.0
# Steps of the guest (init.sh, guest.py) that has no IOMMU: the controller is reached by its registers.
controller=0000:00:04.0

step 'the kernel has the disks' within 20 has_disks 2
step 'who does not say so does not get it' refused EOPNOTSUPP 'there is no IOMMU' from_kernel
step 'a user may not' refused EPERM 'it takes root' from_kernel without_iommu user=1000
step 'lanes read and write blocks' and_given_back guest_blocks.lanes_read_and_write_them_by_several_queues from_kernel without_iommu
step 'the disks are filled' program guest_disk.is_filled
step 'kernels read them' and_given_back guest_files.are_read_as_the_disks_were_written from_kernel without_iommu
step 'kernels write them' and_given_back guest_files.are_written_and_synced from_kernel without_iommu
step 'the disks have it' program guest_disk.has_what_kernels_have_written_and_nothing_else_changed writes=4
