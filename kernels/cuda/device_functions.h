// The functions of the device table, as plugin.cpp lists them; kernels/device.h describes each. The
// collectives have a table of their own (process_groups.h), and take_error is in plugin.cpp.
#pragma once

#include <type_traits>

#include "kernels/device.h"

namespace moe::kernels::cuda {

/// The type of a function of the device table, without the pointer.
template <auto Member>
using DeviceFunction =
    std::remove_pointer_t<std::remove_reference_t<decltype(DeviceTable{}.*Member)>>;

// runtime.cpp
DeviceFunction<&DeviceTable::num_devices> num_devices;
DeviceFunction<&DeviceTable::use_device> use_device;
DeviceFunction<&DeviceTable::info> info;
DeviceFunction<&DeviceTable::allocate> allocate;
DeviceFunction<&DeviceTable::release> release;
DeviceFunction<&DeviceTable::allocate_host> allocate_host;
DeviceFunction<&DeviceTable::release_host> release_host;
DeviceFunction<&DeviceTable::make_stream> make_stream;
DeviceFunction<&DeviceTable::end_stream> end_stream;
DeviceFunction<&DeviceTable::make_event> make_event;
DeviceFunction<&DeviceTable::end_event> end_event;
DeviceFunction<&DeviceTable::record> record;
DeviceFunction<&DeviceTable::wait> wait;
DeviceFunction<&DeviceTable::over> over;
DeviceFunction<&DeviceTable::elapsed_ns> elapsed_ns;
DeviceFunction<&DeviceTable::copy> copy;
DeviceFunction<&DeviceTable::fill> fill;

// finite.cu, largest.cu, routing.cu, link.cu
DeviceFunction<&DeviceTable::note_nonfinite> note_nonfinite;
DeviceFunction<&DeviceTable::largest_columns> largest_columns;
DeviceFunction<&DeviceTable::route_top_k> route_top_k;
DeviceFunction<&DeviceTable::top_k_work_bytes> top_k_work_bytes;
DeviceFunction<&DeviceTable::sleep> sleep;
DeviceFunction<&DeviceTable::paced_copies> paced_copies;

// recording.cpp
DeviceFunction<&DeviceTable::begin_recording> begin_recording;
DeviceFunction<&DeviceTable::end_recording> end_recording;
DeviceFunction<&DeviceTable::launches> launches;
DeviceFunction<&DeviceTable::replay> replay;
DeviceFunction<&DeviceTable::release_recording> release_recording;

/// Returns at least `bytes` bytes that are kept for a stream (products/blas.h), and that each call
/// that queues work on it may overwrite; null on failure (see errors.h).
void* work_area(Stream stream, int64_t bytes);
/// Frees what is kept for a stream; called before the stream is destroyed, since a new stream may
/// get its address.
void forget_gemm(Stream stream);

}  // namespace moe::kernels::cuda
