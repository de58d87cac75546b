// Stands in for NCCL where a test compiles kernels/cuda/collectives/nccl.cpp for the host:
// communicators of one rank whose calls end after so many polls, or never, as the test says. It
// moves no bytes. Strict: a communicator that is asked for more before it has settled, or used
// after its end, is noted.
#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <set>
#include <string>
#include <vector>

enum ncclResult_t {
  ncclSuccess,
  ncclUnhandledCudaError,
  ncclSystemError,
  ncclInternalError,
  ncclInvalidArgument,
  ncclInvalidUsage,
  ncclRemoteError,
  ncclInProgress
};
enum ncclDataType_t { ncclInt8, ncclFloat32 };
enum ncclRedOp_t { ncclSum };
struct ncclUniqueId {
  char internal[128];
};
#define NCCL_VERSION(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))
#define NCCL_VERSION_CODE NCCL_VERSION(2, 28, 9)
#define NCCL_CONFIG_UNDEF_INT INT_MIN
struct ncclConfig_t {
  int blocking, minCTAs, maxCTAs, nChannelsPerNetPeer;
};
#define NCCL_CONFIG_INITIALIZER \
  { 1, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT }

struct ncclComm {
  int rank = 0, polls_left = 0;  // negative: never
  ncclResult_t outcome = ncclSuccess;
  ncclComm** child = nullptr;  // to be written when this one settles, or is aborted
};
using ncclComm_t = ncclComm*;

namespace emulation {

struct Nccl {
  int polls = 0;                       // of the next calls
  ncclResult_t outcome = ncclSuccess;  // theirs
  std::vector<std::string> calls;
  std::vector<std::string> misuse;
  std::set<ncclComm*> alive;
  std::vector<ncclConfig_t> configs;  // of new communicators, parts of others too
};
inline Nccl nccl;

inline ncclComm* new_comm(int rank) {
  auto* comm = new ncclComm{rank, nccl.polls, nccl.outcome};
  nccl.alive.insert(comm);
  return comm;
}
inline void end_comm(ncclComm* comm) {
  if (nccl.alive.erase(comm) == 0) nccl.misuse.push_back("ended twice");
  if (comm->child) *comm->child = new_comm(comm->rank);  // the library's thread was at it
  delete comm;
}
inline ncclResult_t ask(ncclComm* comm, const std::string& call) {
  nccl.calls.push_back(call);
  if (nccl.alive.count(comm) == 0) {
    nccl.misuse.push_back(call + " of none");
    return ncclInvalidArgument;
  }
  if (comm->polls_left != 0) nccl.misuse.push_back(call + " before the last call has settled");
  comm->polls_left = nccl.polls;
  comm->outcome = nccl.outcome;
  return nccl.polls == 0 ? nccl.outcome : ncclInProgress;
}
inline ncclResult_t in_group(const std::string& call) {
  nccl.calls.push_back(call);
  return ncclSuccess;
}

}  // namespace emulation

inline ncclResult_t ncclGetVersion(int* version) {
  *version = 22809;
  return ncclSuccess;
}
inline ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  return ncclSuccess;
}
inline const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "some error";
}
inline const char* ncclGetLastError(ncclComm_t) {
  return "connection closed by peer";
}
inline ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId, int rank,
                                           ncclConfig_t* config) {
  if (config->blocking != 0) emulation::nccl.misuse.push_back("a blocking communicator");
  emulation::nccl.configs.push_back(*config);
  *comm = emulation::new_comm(rank);
  return ncclSuccess;  // in progress all the same
}
inline ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int, ncclComm_t* child,
                                  ncclConfig_t* config) {
  if (config->blocking != 0) emulation::nccl.misuse.push_back("a blocking communicator");
  emulation::nccl.configs.push_back(*config);
  comm->child = child;
  return emulation::ask(comm, "split " + std::to_string(color));
}
inline ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (emulation::nccl.alive.count(comm) == 0) {
    emulation::nccl.misuse.push_back("polled after its end");
    return ncclInvalidArgument;
  }
  *state = comm->polls_left == 0 ? comm->outcome : ncclInProgress;
  if (comm->polls_left > 0 && --comm->polls_left == 0 && comm->child) {
    *comm->child = emulation::new_comm(comm->rank);
    comm->child = nullptr;
  }
  return ncclSuccess;
}
inline ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
inline ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return emulation::ask(comm, "finalize");
}
inline ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  emulation::nccl.calls.push_back("destroy");
  emulation::end_comm(comm);
  return ncclSuccess;
}
inline ncclResult_t ncclCommAbort(ncclComm_t comm) {
  emulation::nccl.calls.push_back("abort");
  emulation::end_comm(comm);
  return ncclInProgress;
}
inline ncclResult_t ncclGroupStart() {
  return emulation::in_group("group");
}
inline ncclResult_t ncclSend(const void*, size_t bytes, ncclDataType_t, int peer, ncclComm_t,
                             cudaStream_t) {
  return emulation::in_group("send " + std::to_string(bytes) + " to " + std::to_string(peer));
}
inline ncclResult_t ncclRecv(void*, size_t bytes, ncclDataType_t, int peer, ncclComm_t comm,
                             cudaStream_t) {
  emulation::in_group("receive " + std::to_string(bytes) + " from " + std::to_string(peer));
  comm->polls_left = emulation::nccl.polls;  // of the whole group, which names no communicator
  comm->outcome = emulation::nccl.outcome;
  return ncclSuccess;
}
inline ncclResult_t ncclGroupEnd() {
  emulation::in_group("end of group");
  return emulation::nccl.polls == 0 ? emulation::nccl.outcome : ncclInProgress;
}
inline ncclResult_t ncclAllReduce(const void*, void*, size_t count, ncclDataType_t, ncclRedOp_t,
                                  ncclComm_t comm, cudaStream_t) {
  return emulation::ask(comm, "all_reduce " + std::to_string(count));
}
