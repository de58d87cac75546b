#include "kernels/cuda/attention/cudnn_calls.h"

#include <dlfcn.h>

#include <optional>
#include <string>

namespace moe::kernels::cuda {
namespace {

std::optional<CudnnCalls> find() {
  // The major version of the headers; the interface does not change within it.
  const std::string name = "libcudnn.so." + std::to_string(CUDNN_MAJOR);
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  bool all = true;
  const auto take = [&](auto& call, const char* symbol) {
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(dlsym(library, symbol));
    all = all && call != nullptr;
  };
  CudnnCalls calls = {};
  take(calls.version, "cudnnGetVersion");
  take(calls.error_string, "cudnnGetErrorString");
  take(calls.create, "cudnnCreate");
  take(calls.set_stream, "cudnnSetStream");
  take(calls.create_descriptor, "cudnnBackendCreateDescriptor");
  take(calls.destroy_descriptor, "cudnnBackendDestroyDescriptor");
  take(calls.set_attribute, "cudnnBackendSetAttribute");
  take(calls.get_attribute, "cudnnBackendGetAttribute");
  take(calls.finalize, "cudnnBackendFinalize");
  take(calls.execute, "cudnnBackendExecute");
  return all ? std::optional(calls) : std::nullopt;
}

}  // namespace

const CudnnCalls* cudnn_calls() {
  static const std::optional<CudnnCalls> calls = find();
  return calls ? &*calls : nullptr;
}

}  // namespace moe::kernels::cuda
