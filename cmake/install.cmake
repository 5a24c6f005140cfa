# cmake --install: libraries, headers, firn.pc, the CMake package (firn::firn_shared, firn::firn_static), the command, its
# man pages and completions.
include(CMakePackageConfigHelpers)

install(TARGETS firn_static firn_shared EXPORT firn-targets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/firn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT firn-targets NAMESPACE firn:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/firn)
configure_package_config_file(cmake/firn-config.cmake.in ${CMAKE_BINARY_DIR}/firn-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/firn)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/firn-config-version.cmake COMPATIBILITY SameMinorVersion)
set(FIRN_DL "")
if(CMAKE_DL_LIBS)
    set(FIRN_DL "-l${CMAKE_DL_LIBS}")
endif()
configure_file(cmake/firn.pc.in ${CMAKE_BINARY_DIR}/firn.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/firn-config.cmake ${CMAKE_BINARY_DIR}/firn-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/firn)
install(FILES ${CMAKE_BINARY_DIR}/firn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(TARGETS firn RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES cmake/firn-completion.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME firn)
install(FILES cmake/_firn.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _firn)
install(FILES cmake/firn.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
if(NOT CMAKE_CROSSCOMPILING AND NOT FIRN_SANITIZE)
    add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/man/firn.1 DEPENDS firn ${CMAKE_SOURCE_DIR}/cmake/make_man.sh VERBATIM
        COMMAND ${CMAKE_SOURCE_DIR}/cmake/make_man.sh $<TARGET_FILE:firn> ${CMAKE_BINARY_DIR}/man)
    add_custom_target(firn_man ALL DEPENDS ${CMAKE_BINARY_DIR}/man/firn.1)
    install(DIRECTORY ${CMAKE_BINARY_DIR}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
