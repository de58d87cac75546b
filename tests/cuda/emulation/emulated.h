// For cases that only the host's emulation can run: they choose the order of threads, or call what
// the table does not show. Nothing here runs on a GPU.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/errors.h"
#include "kernels/cuda/table.h"
#include "tests/cuda/on_device.h"
