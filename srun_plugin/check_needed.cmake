# Run when the plugin has been linked: fails if it needs more than the C library, which any host has that runs Slurm. Compilers
# and versions of fmt differ in what they leave to shared libraries.
execute_process(COMMAND ${READELF} --dynamic --wide ${PLUGIN} OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "[" "<" dynamic "${dynamic}")  # an open bracket would make one element of a list
string(REGEX MATCHALL "Shared library: <[-_.+a-zA-Z0-9]+" needed "${dynamic}")
list(TRANSFORM needed REPLACE ".*<" "")
list(FILTER needed EXCLUDE REGEX "^(libc|libm|libdl|libpthread|librt|ld-linux[-_a-z0-9]*|ld64)\\.so\\.")
if(needed)
  file(REMOVE ${PLUGIN})
  message(FATAL_ERROR "linking the plugin for srun: it needs ${needed}, which nodes may lack; only the C library is allowed")
endif()
