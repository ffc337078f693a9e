# For bats files on the cluster: a plugin for srun that stands for pyxis, which containers need.

# install_pyxis: a plugin with pyxis' options, of which it says in the tasks' environment what it got.
install_pyxis() {
  [ -e /usr/include/slurm/spank.h ] || skip "needs slurm/spank.h (libslurm-dev)"
  cat >"$shared/pyxis.c" <<'SOURCE'
#include <stdio.h>
#include <stdlib.h>
#include <slurm/spank.h>
SPANK_PLUGIN(fake_pyxis, 1)
static char values[3][4096];
static int take(int which, const char* value, int remote) {
  (void)remote;
  snprintf(values[which], sizeof values[which], "%s", value);
  return 0;
}
int slurm_spank_init(spank_t spank, int count, char** words) {
  (void)count, (void)words;
  static struct spank_option options[] = {
    {"container-image", "IMAGE", "image", 1, 0, take},
    {"container-mounts", "MOUNTS", "mounts", 1, 1, take},
    {"container-workdir", "PATH", "working folder", 1, 2, take}};
  for (int i = 0; i < 3; ++i)
    if (spank_option_register(spank, &options[i]) != ESPANK_SUCCESS) return -1;
  return 0;
}
int slurm_spank_task_init(spank_t spank, int count, char** words) {
  (void)count, (void)words;
  spank_setenv(spank, "FAKE_IMAGE", values[0], 1);
  spank_setenv(spank, "FAKE_MOUNTS", values[1], 1);
  spank_setenv(spank, "FAKE_WORKDIR", values[2], 1);
  return 0;
}
SOURCE
  cc -shared -fPIC -o "$shared/pyxis.so" "$shared/pyxis.c"
  echo "optional $shared/pyxis.so" >"$DDP_CLUSTER_DIR/etc/plugstack.conf.d/zz_container.conf"
}

remove_pyxis() { rm -f "$DDP_CLUSTER_DIR/etc/plugstack.conf.d/zz_container.conf"; }
