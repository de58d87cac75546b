#include "engine/comm/mpi.h"

#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <set>

#include "engine/base/errors.h"

namespace moe {
namespace {

// MPI counts in int.
constexpr Bytes kLongestMessage = Bytes{1} << 30;

const char* thread_level_name(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    default:
      return "MPI_THREAD_MULTIPLE";
  }
}

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, static_cast<size_t>(length)};
}

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) throw run_error("{}: {}", call, error_text(code));
}

}  // namespace

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, static_cast<size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

struct Mpi::Impl {
  int rank = 0, size = 1, size_here = 1;
  bool finished = false;
  std::mutex mutex;  // of channels: threads look one up while another opens one
  std::deque<MPI_Comm> channels;

  MPI_Comm channel(int64_t number) {
    const std::lock_guard lock(mutex);
    return channels.at(static_cast<size_t>(number));
  }
};

Mpi::Mpi() : impl_(std::make_unique<Impl>()) {
  int given = MPI_THREAD_SINGLE;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &given), "MPI_Init_thread");
  MPI_Comm_rank(MPI_COMM_WORLD, &impl_->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &impl_->size);
  if (given < MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    throw run_error(
        "{} gives {}, and each lane of a rank is a thread that calls MPI: a library that was built "
        "with MPI_THREAD_MULTIPLE is needed",
        mpi_library(), thread_level_name(given));
  }
  MPI_Comm here = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here),
        "MPI_Comm_split_type");
  MPI_Comm_size(here, &impl_->size_here);
  MPI_Comm_free(&here);
}

Mpi::~Mpi() = default;

int64_t Mpi::rank() const {
  return impl_->rank;
}
int64_t Mpi::size() const {
  return impl_->size;
}
int64_t Mpi::size_here() const {
  return impl_->size_here;
}

int64_t Mpi::open_channel() {
  MPI_Comm made = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &made), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
  const std::lock_guard lock(impl_->mutex);
  impl_->channels.push_back(made);
  return static_cast<int64_t>(impl_->channels.size()) - 1;
}

std::optional<Mpi::Letter> Mpi::read(int64_t channel) {
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  int there = 0;
  check(
      MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, impl_->channel(channel), &there, &message, &status),
      "MPI_Improbe");
  if (there == 0) return std::nullopt;
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  Letter letter{status.MPI_SOURCE, std::string(static_cast<size_t>(bytes), '\0')};
  check(MPI_Mrecv(letter.text.data(), bytes, MPI_BYTE, &message, &status), "MPI_Mrecv");
  return letter;
}

void Mpi::finish() {
  if (impl_->finished) return;
  impl_->finished = true;
  for (MPI_Comm& channel : impl_->channels) MPI_Comm_free(&channel);
  MPI_Finalize();
}

void Mpi::abort(int status) {
  MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

struct Messages::State {
  std::vector<MPI_Request> requests;
  std::vector<int64_t> peers;
};

Messages::Messages(Mpi& mpi) : mpi_(mpi), state_(std::make_unique<State>()) {}

Messages::~Messages() = default;

void Messages::send(int64_t channel, int64_t peer, int tag, const void* data, Bytes bytes) {
  const MPI_Comm comm = mpi_.impl_->channel(channel);
  for (Bytes at = 0; at < bytes; at += kLongestMessage) {
    state_->requests.push_back(MPI_REQUEST_NULL);
    state_->peers.push_back(peer);
    check(MPI_Isend(static_cast<const char*>(data) + at,
                    static_cast<int>(std::min(kLongestMessage, bytes - at)), MPI_BYTE,
                    static_cast<int>(peer), tag, comm, &state_->requests.back()),
          "MPI_Isend");
  }
}

void Messages::receive(int64_t channel, int64_t peer, int tag, void* data, Bytes bytes) {
  const MPI_Comm comm = mpi_.impl_->channel(channel);
  for (Bytes at = 0; at < bytes; at += kLongestMessage) {
    state_->requests.push_back(MPI_REQUEST_NULL);
    state_->peers.push_back(peer);
    check(MPI_Irecv(static_cast<char*>(data) + at,
                    static_cast<int>(std::min(kLongestMessage, bytes - at)), MPI_BYTE,
                    static_cast<int>(peer), tag, comm, &state_->requests.back()),
          "MPI_Irecv");
  }
}

bool Messages::over() {
  if (state_->requests.empty()) return true;
  int all = 0;
  const int code = MPI_Testall(static_cast<int>(state_->requests.size()), state_->requests.data(),
                               &all, MPI_STATUSES_IGNORE);
  if (code != MPI_SUCCESS) {
    throw run_error("MPI lost a message of rank{} {}: {}", missing().size() == 1 ? "" : "s",
                    fmt::join(missing(), ", "), error_text(code));
  }
  if (all == 0) return false;
  state_->requests.clear();
  state_->peers.clear();
  return true;
}

std::vector<int64_t> Messages::missing() const {
  std::set<int64_t> peers;
  for (size_t i = 0; i < state_->requests.size(); ++i) {
    int over = 0;
    MPI_Request_get_status(state_->requests[i], &over, MPI_STATUS_IGNORE);
    if (over == 0) peers.insert(state_->peers[i]);
  }
  return {peers.begin(), peers.end()};
}

void Messages::give_up() {
  for (MPI_Request& request : state_->requests) {
    if (request == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&request);
    MPI_Request_free(&request);
  }
  state_->requests.clear();
  state_->peers.clear();
}

}  // namespace moe
