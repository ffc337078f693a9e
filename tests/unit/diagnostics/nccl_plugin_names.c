// Constants as in a network plugin of a site, which reads variables that NCCL does not.
static const char kConstants[] = "NET/Site\0NCCL_SITE_RAILS\0NCCL_IB_HCA\0";

const char* constants_of_this_plugin(void);
const char* constants_of_this_plugin(void) { return kConstants; }
