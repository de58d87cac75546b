// The transfer of a network, emulated as a kernel on the device: real bytes, copied by blocks that
// occupy whole multiprocessors, as those of a collective library do, over a given time. The time is
// read from the device's nanosecond timer, which some devices advance only every microsecond. Such
// times are emulated, not times of NCCL.
#include <cuda/atomic>
#include <cuda/ptx>

#include "kernels/cuda/device.h"
#include "kernels/cuda/device_functions.h"

namespace moe::kernels::cuda {
namespace {

constexpr int kLinkThreads = 512;
constexpr int kBatch = 8;  // vectors in progress per thread: with 512 threads, 64 KB per block
constexpr int64_t kMaxPieces = 128;  // keeps the arguments of a launch below 4 KB
// The share of a block in a launch is copied in about kTurns chunks. Small chunks keep the pace
// even; large chunks keep enough bytes in progress. Chunks are whole vectors, for alignment.
constexpr int64_t kTurns = 16, kLeastChunk = 4 << 10, kLargestChunk = 64 << 10;

struct Pieces {  // passed by value, since the list is in host memory
  Copy copy[kMaxPieces];
  int64_t count, bytes;
};

__device__ int64_t clock_ns() {
  return static_cast<int64_t>(::cuda::ptx::get_sreg_globaltimer());
}
__device__ void wait_until(int64_t ns) {
  while (clock_ns() < ns) {
  }
}

// Time between two reads of a flag in host memory, each of which crosses the bus.
constexpr unsigned kLookNs = 200;

/// Returns `word` of LinkFlags as an atomic: a CPU thread accesses it while the kernel runs.
__device__ auto shared_with_host(int64_t& word) {
  return ::cuda::atomic_ref<int64_t, ::cuda::thread_scope_system>(word);
}

/// signal_begin() writes to LinkFlags that the transfer has begun; one thread of the grid calls it.
/// await_end() waits until LinkFlags permits the end; one thread per block calls it.
__device__ void signal_begin(const LinkSignal& signal, int64_t now_ns) {
  if (signal.begins == 0) return;
  if (shared_with_host(signal.flags->begun).load(::cuda::std::memory_order_relaxed) >=
      signal.begins)
    return;
  shared_with_host(signal.flags->began_ns).store(now_ns, ::cuda::std::memory_order_relaxed);
  shared_with_host(signal.flags->begun).store(signal.begins, ::cuda::std::memory_order_release);
}
__device__ void await_end(const LinkSignal& signal) {
  if (signal.ends == 0) return;
  while (shared_with_host(signal.flags->over).load(::cuda::std::memory_order_acquire) < signal.ends)
    __nanosleep(kLookNs);
}

__global__ void sleep_kernel(int64_t ns, LinkSignal signal) {
  if (threadIdx.x > 0) return;
  const int64_t began = clock_ns();
  signal_begin(signal, began);
  wait_until(began + ns);
  await_end(signal);
}

/// Copies by the whole block; bytes that do not fill a vector are copied singly. A thread reads a
/// batch before it writes one, because the compiler does not know that source and destination do
/// not overlap and would otherwise wait for each read.
template <class V>
__device__ void copy_as(char* to, const char* from, int64_t bytes) {
  const int64_t n = bytes / static_cast<int64_t>(sizeof(V));
  auto* out = reinterpret_cast<V*>(to);
  const auto* in = reinterpret_cast<const V*>(from);
  for (int64_t first = threadIdx.x; first < n; first += kBatch * kLinkThreads) {
    V batch[kBatch];
    for (int j = 0; j < kBatch; ++j)
      if (first + j * kLinkThreads < n) batch[j] = in[first + j * kLinkThreads];
    for (int j = 0; j < kBatch; ++j)
      if (first + j * kLinkThreads < n) out[first + j * kLinkThreads] = batch[j];
  }
  for (int64_t i = n * static_cast<int64_t>(sizeof(V)) + threadIdx.x; i < bytes; i += kLinkThreads)
    to[i] = from[i];
}

__device__ void copy_chunk(char* to, const char* from, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  if (address % sizeof(uint4) == 0) {
    copy_as<uint4>(to, from, bytes);
  } else if (address % sizeof(float) == 0) {
    copy_as<float>(to, from, bytes);
  } else {
    copy_as<char>(to, from, bytes);
  }
}

/// The chunks of all pieces are distributed to the blocks in turn. After each chunk, a block waits
/// until all bytes up to that chunk are due, counted from the block's start.
__global__ void __launch_bounds__(kLinkThreads)
    paced_copies_kernel(Pieces pieces, int64_t chunk, int64_t duration_ns, LinkSignal signal) {
  const int64_t blocks = gridDim.x, began = threadIdx.x == 0 ? clock_ns() : 0;
  if (threadIdx.x == 0 && blockIdx.x == 0) signal_begin(signal, began);
  int64_t chunks_before = 0, bytes_before = 0;
  for (int64_t p = 0; p < pieces.count; ++p) {
    const Copy& piece = pieces.copy[p];
    const int64_t chunks = (piece.bytes + chunk - 1) / chunk;
    const int64_t own = (blockIdx.x + blocks - chunks_before % blocks) % blocks;
    for (int64_t c = own; c < chunks; c += blocks) {
      const int64_t at = c * chunk, left = piece.bytes - at, bytes = left < chunk ? left : chunk;
      copy_chunk(static_cast<char*>(piece.to) + at, static_cast<const char*>(piece.from) + at,
                 bytes);
      const double share =
          static_cast<double>(bytes_before + at + bytes) / static_cast<double>(pieces.bytes);
      if (threadIdx.x == 0)
        wait_until(began + static_cast<int64_t>(static_cast<double>(duration_ns) * share));
      __syncthreads();
    }
    chunks_before += chunks;
    bytes_before += piece.bytes;
  }
  if (threadIdx.x > 0) return;
  wait_until(began + duration_ns);
  await_end(signal);
}

/// Returns the most shared memory that a block can have, in bytes, and permits paced_copies_kernel
/// to use it: then no second block fits on the multiprocessor. 0 on failure (see errors.h).
int64_t whole_shared_memory() {
  int device = 0, bytes = 0;
  const bool all =
      worked(cudaGetDevice(&device), "paced_copies") &&
      worked(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "paced_copies") &&
      worked(cudaFuncSetAttribute(paced_copies_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  bytes),
             "paced_copies");
  return all ? bytes : 0;
}

int64_t chunk_of(int64_t bytes, int64_t blocks) {
  constexpr auto kVector = static_cast<int64_t>(sizeof(uint4));
  const int64_t even = blocks_of(blocks_of(bytes, blocks * kTurns), kVector) * kVector;
  return even < kLeastChunk ? kLeastChunk : even > kLargestChunk ? kLargestChunk : even;
}

}  // namespace

void sleep(int64_t ns, const LinkSignal& signal, Stream stream) {
  launch(sleep_kernel, 1, kWarp, stream, ns, signal);
}

/// If there are more copies than fit into a launch, several launches share duration_ns in
/// proportion to their bytes. The first signals the begin, the last waits for LinkSignal::ends.
void paced_copies(const Copy* copies, int64_t count, int64_t duration_ns, int32_t blocks,
                  const LinkSignal& signal, Stream stream) {
  if (blocks < 1)
    return keep_error("cuda: paced_copies got " + std::to_string(blocks) +
                      " blocks; at least 1 is needed");
  const int64_t shared_bytes = whole_shared_memory();
  if (shared_bytes == 0) return;
  int64_t total = 0, sent = 0, spent_ns = 0, next = 0;
  for (int64_t i = 0; i < count; ++i) total += copies[i].bytes;
  do {
    const bool first = next == 0;
    Pieces pieces{};
    for (; next < count && pieces.count < kMaxPieces; ++next) {
      if (copies[next].bytes == 0) continue;
      pieces.copy[pieces.count++] = copies[next];
      pieces.bytes += copies[next].bytes;
    }
    sent += pieces.bytes;
    const double share = static_cast<double>(sent) / static_cast<double>(total);
    const int64_t until_ns = next == count
                                 ? duration_ns
                                 : static_cast<int64_t>(static_cast<double>(duration_ns) * share);
    launch_with_shared(
        shared_bytes, paced_copies_kernel, blocks, kLinkThreads, stream, pieces,
        chunk_of(pieces.bytes, blocks), until_ns - spent_ns,
        LinkSignal{signal.flags, first ? signal.begins : 0, next == count ? signal.ends : 0});
    spent_ns = until_ns;
  } while (next < count);
}

}  // namespace moe::kernels::cuda
