// The interface of the shared library: C names for dlsym. A program should open the library only
// when a GPU is requested, so that it also runs where there is neither a driver nor a CUDA library.
#include <string>

#include "kernels/cuda/attention/attention_library.h"
#include "kernels/cuda/collectives/process_groups.h"
#include "kernels/cuda/device_functions.h"
#include "kernels/cuda/errors.h"
#include "kernels/cuda/table.h"

namespace moe::kernels::cuda {
namespace {

const char* take_error_text() {
  static thread_local std::string message;
  message = take_error();
  return message.c_str();
}

const DeviceTable& device_table() {
  static const DeviceTable table = {
      .kernels = &cuda::table(),
      .mixed = &cuda::table_mixed(),
      .library_has_attention = cuda::library_has_attention,
      .process_groups = cuda::process_groups(),
      .num_devices = num_devices,
      .use_device = use_device,
      .info = info,
      .allocate = allocate,
      .release = release,
      .allocate_host = allocate_host,
      .release_host = release_host,
      .make_stream = make_stream,
      .end_stream = end_stream,
      .make_event = make_event,
      .end_event = end_event,
      .record = record,
      .wait = wait,
      .over = over,
      .elapsed_ns = elapsed_ns,
      .copy = copy,
      .fill = fill,
      .note_nonfinite = note_nonfinite,
      .largest_columns = largest_columns,
      .route_top_k = route_top_k,
      .top_k_work_bytes = top_k_work_bytes,
      .sleep = sleep,
      .paced_copies = paced_copies,
      .begin_recording = begin_recording,
      .end_recording = end_recording,
      .launches = launches,
      .replay = replay,
      .release_recording = release_recording,
      .take_error = take_error_text,
  };
  return table;
}

}  // namespace
}  // namespace moe::kernels::cuda

/// Returns a hash of the headers that program and plugin share, compared before the table is used.
extern "C" const char* moe_cuda_interface() {
  return MOE_DEVICE_INTERFACE;
}

extern "C" const moe::kernels::DeviceTable* moe_cuda_device() {
  return &moe::kernels::cuda::device_table();
}
