// The kernels of the lazy device (lazy_device.h): each is given to a stream and done later, by the
// CPU's fast table or, where activations are bfloat16, by the mixed reference.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/device.h"

namespace moe::test {

// --- of lazy_device.cpp

void give_work(kernels::Stream stream, std::function<void()> work);
/// Keeps an error where not all of the memory is the device's, unless p is null.
void check_memory(const void* p, int64_t bytes);
/// At random in [0, end).
int64_t lazy_below(int64_t end);

// --- of lazy_kernels.cpp

/// T: float or Bf16.
template <class T>
const kernels::KernelTable<T>& lazy_table();
void lazy_note_nonfinite(int64_t* first, kernels::EitherIn x, int64_t n, kernels::Stream stream);
void lazy_largest_columns(int32_t* column, kernels::EitherIn x, int64_t rows, int64_t cols,
                          int64_t pitch, kernels::Stream stream);
void lazy_route_top_k(const kernels::TopKRouting& routing, kernels::Stream stream);

}  // namespace moe::test
