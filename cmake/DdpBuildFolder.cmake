# Installing as root into a system folder leaves the build folder its owner's, who can install from it again: what is made
# at install time is removed there, and CMake's own list of what was installed, which it writes last, is there
# before, and the owner's.
install(CODE "
  set(ddp_build_folder [==[${PROJECT_BINARY_DIR}]==])
  set(ddp_manifest \"\${ddp_build_folder}\")
  if(CMAKE_INSTALL_COMPONENT)
    string(APPEND ddp_manifest \"/install_manifest_\${CMAKE_INSTALL_COMPONENT}.txt\")
  else()
    string(APPEND ddp_manifest \"/install_manifest.txt\")
  endif()
  file(REMOVE \"\${ddp_manifest}\")
  file(TOUCH \"\${ddp_manifest}\")
  execute_process(COMMAND chown \"--reference=\${ddp_build_folder}\" \"\${ddp_manifest}\" OUTPUT_QUIET ERROR_QUIET)
" ALL_COMPONENTS)
