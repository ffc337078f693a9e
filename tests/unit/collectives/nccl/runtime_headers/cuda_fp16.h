// Stands for the CUDA runtime's header, which nccl.h includes and does not use.
#pragma once
