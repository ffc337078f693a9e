// Slurm's SPANK interface for C++: its header has no extern "C" of its own in some releases.
#pragma once

#include <sys/types.h>

extern "C" {
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>
}
