# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)
set(gpufs_config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/gpufs")

install(DIRECTORY include/ "${CMAKE_CURRENT_BINARY_DIR}/include/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(TARGETS gpufs EXPORT gpufsTargets)
if(TARGET gpufs_c)
  install(TARGETS gpufs_c EXPORT gpufsTargets)
endif()
install(EXPORT gpufsTargets NAMESPACE gpufs:: DESTINATION "${gpufs_config_dir}")
if(GPUFS_HAVE_CUDA)
  install(TARGETS gpufs_cuda EXPORT gpufsCudaTargets)
  if(TARGET gpufs_device)
    install(TARGETS gpufs_device EXPORT gpufsCudaTargets)
    install(FILES "${GPUFS_DEVICE_FATBIN}" "${GPUFS_DEVICE_LTOIR}" DESTINATION "${CMAKE_INSTALL_LIBDIR}/gpufs")
  endif()
  install(EXPORT gpufsCudaTargets NAMESPACE gpufs:: DESTINATION "${gpufs_config_dir}")
endif()

configure_package_config_file(cmake/gpufsConfig.cmake.in "${CMAKE_CURRENT_BINARY_DIR}/gpufsConfig.cmake"
                              INSTALL_DESTINATION "${gpufs_config_dir}")
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/gpufsConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/gpufsConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/gpufsConfigVersion.cmake"
              cmake/GpufsDependencies.cmake cmake/GpufsCudaArchitectures.cmake cmake/GpufsCudaToolkit.cmake
              cmake/GpufsPrograms.cmake DESTINATION "${gpufs_config_dir}")

# As they lie here, so that README's links lead somewhere; but those into bench/, research/ and tests/, as README says.
install(FILES LICENSE NOTICE README.md CHANGELOG.md CONTRIBUTING.md DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY docs examples DESTINATION "${CMAKE_INSTALL_DOCDIR}" PATTERN examples/tests EXCLUDE)
