# Between staging and packing of an archive, which may be unpacked anywhere: its ddp.conf can name no plugin, and says who can.
cmake_policy(SET CMP0009 NEW)  # follow no links
file(GLOB_RECURSE settings ${CPACK_TEMPORARY_DIRECTORY}/ddp.conf)
foreach(file IN LISTS settings)
  file(READ ${file} text)
  string(REGEX REPLACE "\noptional [^\n]*" "\n# Inactive: Slurm wants an absolute path. share/libddp/scripts/ddp-plugin on\n# writes the right one to /etc/slurm/plugstack.conf.d." text "${text}")
  file(WRITE ${file} "${text}")
endforeach()
