# Between staging and packing of the Debian packages: moves and converts files to Debian's conventions.
set(packages runtime libddp development libddp-dev slurm_plugin slurm-plugin-ddp python python3-libddp)

while(packages)
  list(POP_FRONT packages component package)
  set(root ${CPACK_TEMPORARY_DIRECTORY}/${component})
  if(NOT IS_DIRECTORY ${root})
    continue()
  endif()

  # Configuration of the system's Slurm.
  if(IS_DIRECTORY ${root}/usr/etc)
    file(RENAME ${root}/usr/etc ${root}/etc)
  endif()

  # Debian's zsh looks for completions of packages there.
  if(IS_DIRECTORY ${root}/usr/share/zsh/site-functions)
    file(RENAME ${root}/usr/share/zsh/site-functions ${root}/usr/share/zsh/vendor-completions)
  endif()

  set(documents ${root}/usr/share/doc/${package})
  file(REMOVE ${documents}/LICENSE)
  file(COPY ${CPACK_DDP_PACKAGING_FOLDER}/deb/copyright DESTINATION ${documents})

  file(GLOB_RECURSE pages ${root}/usr/share/man/*)
  foreach(page IN LISTS pages)
    execute_process(COMMAND gzip -9n ${page} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endwhile()
