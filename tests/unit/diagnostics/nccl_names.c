// Constants as in a libnccl.so.2 of version 2.18.3, which lacks what came later.
static const char kConstants[] =
    "Mismatched NCCL version detected : rank %d\0NCCL version %d\0NCCL version 2.18.3+cuda12.1\0"
    "NCCL_DEBUG\0NCCL_SOCKET_IFNAME\0NCCL_IB_HCA\0NCCL_IB_TIMEOUT\0NCCL_IB_RETRY_CNT\0NCCL_P2P_DISABLE\0NCCL_P2P_"
    "LEVEL\0"
    "NCCL_ALGO\0NCCL_PROTO\0NCCL_NTHREADS\0NCCL_MAX_NCHANNELS\0NCCL_CROSS_NIC\0NCCL_NET_GDR_LEVEL\0NCCL_DEBUG_FILE\0"
    "NCCL_CONF_FILE\0NCCL_IB_DISABLE\0NCCL_SITE_SWITCH\0NCCL_MAX_CTAS\0NCCL_GRAPH_FILE\0NCCL_CHECK_POINTERS\0"
    "/dev/shm/nccl-XXNCCL_NET_PLUGIN\0"               // after a constant without an end of its own
    "NCCL_BUFFSIZE set by environment to %s\0"        // a sentence
    "TORCH_NCCL_BLOCKING_WAIT\0fooNCCL_NOT_A_NAME\0"  // others
    "NCCL_\0NCCL_lower\0";

const char* constants_of_this_library(void);
const char* constants_of_this_library(void) { return kConstants; }
