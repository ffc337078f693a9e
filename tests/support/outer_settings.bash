# What tests take from where they are started: what must not reach the programs under test, a launcher or allocation around
# them and the user's own defaults; and who can run these programs.

# Keeps the tests' own variables, and SLURM_CONF, which is how commands find the tests' cluster.
forget_outer_settings() {
  local name
  for name in $(compgen -e); do
    case $name in
      DDP_BIN_DIR | DDP_CLUSTER_DIR | DDP_JOBS | DDP_LMOD_INIT | DDP_MODULECMD) ;;
      DDP_FRAMEWORKS_PYTHON | DDP_RECORDED_TOPOLOGIES | DDP_STEP | DDP_TORCH_PYTHON | SLURM_CONF) ;;
      SLURM_* | SLURMD_* | SBATCH_* | SALLOC_* | SRUN_*) unset "$name" ;;
      PMI_* | PMIX_* | OMPI_* | PRTE_* | MV2_COMM_WORLD_* | MPI_LOCAL*) unset "$name" ;;
      RANK | *_RANK | WORLD_SIZE | *_WORLD_SIZE | ROLE_NAME | MASTER_*) unset "$name" ;;
      DDP_* | DDPRUN_* | PET_* | TORCHELASTIC_* | TORCH_* | PYTHON_EXEC) unset "$name" ;;
      OMP_* | HWLOC_* | NCCL_* | GLOO_* | UCX_NET_DEVICES | *_SOCKET_IFNAME) unset "$name" ;;
      CUDA_VISIBLE_DEVICES | CUDA_DEVICE_* | ROCR_VISIBLE_DEVICES | HIP_VISIBLE_DEVICES | ZE_*) unset "$name" ;;
    esac
  done
}

# others_can_run PROGRAM: whether another user can: a checkout may lie in a folder of root's.
others_can_run() { setpriv --reuid=65534 --regid=65534 --clear-groups test -x "$1"; }
