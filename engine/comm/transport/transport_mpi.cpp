// The only file that calls MPI.
#include <fmt/ranges.h>
#include <mpi.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <set>

#include "engine/base/errors.h"
#include "engine/comm/transport/transport.h"

namespace moe {
namespace {

// MPI's counts are int.
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
  if (code != MPI_SUCCESS) throw run_error("{} failed: {}", call, error_text(code));
}

class Mpi final : public Transport {
 public:
  Mpi() {
    int given = MPI_THREAD_SINGLE;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &given), "MPI_Init_thread");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    if (given < MPI_THREAD_MULTIPLE) {
      MPI_Finalize();
      throw run_error(
          "{} supports only {}, but each lane of a rank is a thread that calls MPI: use a library "
          "that was built with MPI_THREAD_MULTIPLE",
          mpi_library(), thread_level_name(given));
    }
    MPI_Comm here = MPI_COMM_NULL;
    check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here),
          "MPI_Comm_split_type");
    MPI_Comm_size(here, &size_here_);
    MPI_Comm_rank(here, &place_here_);
    MPI_Comm_free(&here);
  }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  int64_t size_here() const override { return size_here_; }
  int64_t place_here() const override { return place_here_; }
  int64_t open_channel() override {
    MPI_Comm made = MPI_COMM_NULL;
    check(MPI_Comm_dup(MPI_COMM_WORLD, &made), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
    const std::lock_guard lock(mutex_);
    channels_.push_back(made);
    return static_cast<int64_t>(channels_.size()) - 1;
  }

  std::unique_ptr<Messages> messages() override;

  std::optional<ControlMessage> read(int64_t channel) override {
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    int there = 0;
    check(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm(channel), &there, &message, &status),
          "MPI_Improbe");
    if (there == 0) return std::nullopt;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    ControlMessage received{status.MPI_SOURCE, std::string(static_cast<size_t>(bytes), '\0')};
    check(MPI_Mrecv(received.text.data(), bytes, MPI_BYTE, &message, &status), "MPI_Mrecv");
    return received;
  }

  void finish() override {
    if (finished_) return;
    finished_ = true;
    for (MPI_Comm& channel : channels_) MPI_Comm_free(&channel);
    MPI_Finalize();
  }

  void abort(int status) override { MPI_Abort(MPI_COMM_WORLD, status); }

  MPI_Comm comm(int64_t channel) {
    const std::lock_guard lock(mutex_);
    return channels_.at(static_cast<size_t>(channel));
  }

 private:
  int rank_ = 0, size_ = 1, size_here_ = 1, place_here_ = 0;
  bool finished_ = false;
  std::mutex mutex_;  // guards channels_: a thread may read it while another opens a channel
  std::deque<MPI_Comm> channels_;
};

class MpiMessages final : public Messages {
 public:
  explicit MpiMessages(Mpi& mpi) : mpi_(mpi) {}

  void send(int64_t channel, int64_t peer, int tag, const void* data, Bytes bytes) override {
    const MPI_Comm comm = mpi_.comm(channel);
    for (Bytes at = 0; at < bytes; at += kLongestMessage) {
      requests_.push_back(MPI_REQUEST_NULL);
      peers_.push_back(peer);
      check(MPI_Isend(static_cast<const char*>(data) + at,
                      static_cast<int>(std::min(kLongestMessage, bytes - at)), MPI_BYTE,
                      static_cast<int>(peer), tag, comm, &requests_.back()),
            "MPI_Isend");
    }
  }

  void receive(int64_t channel, int64_t peer, int tag, void* data, Bytes bytes) override {
    const MPI_Comm comm = mpi_.comm(channel);
    for (Bytes at = 0; at < bytes; at += kLongestMessage) {
      requests_.push_back(MPI_REQUEST_NULL);
      peers_.push_back(peer);
      check(MPI_Irecv(static_cast<char*>(data) + at,
                      static_cast<int>(std::min(kLongestMessage, bytes - at)), MPI_BYTE,
                      static_cast<int>(peer), tag, comm, &requests_.back()),
            "MPI_Irecv");
    }
  }

  bool over() override {
    if (requests_.empty()) return true;
    int all = 0;
    const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all,
                                 MPI_STATUSES_IGNORE);
    if (code != MPI_SUCCESS) {
      throw run_error("MPI lost a message to or from rank{} {}: {}",
                      missing().size() == 1 ? "" : "s", fmt::join(missing(), ", "),
                      error_text(code));
    }
    if (all == 0) return false;
    requests_.clear();
    peers_.clear();
    return true;
  }

  std::vector<int64_t> missing() const override {
    std::set<int64_t> peers;
    for (size_t i = 0; i < requests_.size(); ++i) {
      int over = 0;
      MPI_Request_get_status(requests_[i], &over, MPI_STATUS_IGNORE);
      if (over == 0) peers.insert(peers_[i]);
    }
    return {peers.begin(), peers.end()};
  }

  void give_up() override {
    for (MPI_Request& request : requests_) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
    requests_.clear();
    peers_.clear();
  }

 private:
  Mpi& mpi_;
  std::vector<MPI_Request> requests_;
  std::vector<int64_t> peers_;
};

std::unique_ptr<Messages> Mpi::messages() {
  return std::make_unique<MpiMessages>(*this);
}

}  // namespace

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, static_cast<size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

std::unique_ptr<Transport> open_transport() {
  return std::make_unique<Mpi>();
}

}  // namespace moe
