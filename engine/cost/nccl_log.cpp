#include "engine/cost/nccl_log.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <sstream>

#include "engine/base/errors.h"

namespace moe {
namespace {

constexpr size_t kResultColumns = 8;  // time, algbw, busbw, errors: out of place, then in place
constexpr double kNsPerUs = 1e3;
// Largest nThread and nGpus that are accepted; a larger number means a damaged file.
constexpr int64_t kMostRanks = 1'000'000;

template <class Number>
std::optional<Number> number_of(const std::string& word) {
  Number value{};
  const char* end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

/// Returns the words of a line, without the prefix "[1,0]<stdout>:" of mpirun --tag-output.
std::vector<std::string> words_of(std::string line) {
  const std::string tag = "<stdout>:";
  if (const size_t at = line.find(tag); line.rfind('[', 0) == 0 && at != std::string::npos) {
    line.erase(0, at + tag.size());
  }
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

class Parser {
 public:
  explicit Parser(const std::string& name) : name_(name) {}

  void line(const std::string& text) {
    ++line_;
    std::vector<std::string> words = words_of(text);
    if (words.empty()) return;
    if (words[0] == "#") words.erase(words.begin());
    if (words.empty()) return;
    if (number_of<int64_t>(words[0])) return row(words);
    if (words[0] == "Rank" && words.size() > 1) return rank(words);
    if (words[0] == "nThread") return shape(words);
    if (words[0] == "size") return columns(words);
    const std::string start = words.size() > 2 ? words[0] + ' ' + words[1] + ' ' + words[2] : "";
    if (start == "Collective test starting:" && words.size() > 3) program_ = words[3];
    if (start == "Out of bounds" && words.size() > 5 && words[5] != "0") {
      fail(
          "nccl-tests reports out of bounds values: {}; the log is refused, because the results of "
          "the run are wrong",
          words[5]);
    }
    if (start == "Avg bus bandwidth") ended_ = true;
  }

  NcclLog finish() {
    if (log_.rows.size() < 2) {
      throw user_error(
          "{}: it has {} rows of nccl-tests (size count type ... time), but needs at least 2",
          name_, log_.rows.size());
    }
    if (!ended_) {
      throw user_error(
          "{}: the line 'Avg bus bandwidth' at the end is missing; was the run cut off?", name_);
    }
    if (is_program("alltoall_perf")) {
      log_.collective = Collective::kAllToAll;
    } else if (is_program("all_reduce_perf")) {
      log_.collective = Collective::kAllReduce;
    } else if (!program_.empty()) {
      throw user_error("{}: it is a log of {}, allowed: all_reduce_perf, alltoall_perf", name_,
                       program_);
    }
    log_.num_ranks =
        ranks_in_group_.empty() ? threads_times_gpus_ : ranks_in_group_[group_of_rank_0_];
    if (log_.num_ranks < 1) {
      throw user_error(
          "{}: a line with the number of ranks is missing ('# nThread ...' or '#  Rank  0 ...')",
          name_);
    }
    return std::move(log_);
  }

 private:
  /// Whether the log is of this program, whose build may add a suffix (NAME_SUFFIX=_mpi).
  bool is_program(std::string_view name) const {
    return program_.starts_with(name) &&
           (program_.size() == name.size() ||
            std::isalnum(static_cast<unsigned char>(program_[name.size()])) == 0);
  }

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> f, Args&&... args) const {
    throw user_error("{}:{}: {}", name_, line_, fmt::format(f, std::forward<Args>(args)...));
  }

  // Reads a line "Rank  0 Group  0 Pid ..." or "Rank  0 Pid ...".
  void rank(const std::vector<std::string>& words) {
    const std::string group = words.size() > 3 && words[2] == "Group" ? words[3] : "";
    ++ranks_in_group_[group];
    if (words[1] == "0") group_of_rank_0_ = group;
  }

  // Reads a line "nThread 1 nGpus 8 minBytes ...".
  void shape(const std::vector<std::string>& words) {
    if (words.size() < 4 || words[2] != "nGpus") return;
    threads_times_gpus_ = count("nThread", words[1]) * count("nGpus", words[3]);
  }

  int64_t count(const char* name, const std::string& word) const {
    const int64_t value = number_of<int64_t>(word).value_or(0);
    if (value < 1 || value > kMostRanks) {
      fail("{} is '{}', must be 1 to {}", name, word, kMostRanks);
    }
    return value;
  }

  // Reads the header "size count type redop root time algbw busbw #wrong time ...".
  void columns(const std::vector<std::string>& words) {
    const auto has = [&](const char* word) {
      return std::find(words.begin(), words.end(), word) != words.end();
    };
    has_root_ = has("root");
    counts_wrong_ = has("#wrong");
  }

  double result(const std::string& column, const std::string& word) const {
    const std::optional<double> value = number_of<double>(word);
    if (!value || !std::isfinite(*value) || *value < 0)
      fail("{} is '{}', must be a number of at least 0", column, word);
    return *value;
  }

  void row(const std::vector<std::string>& words) {
    size_t first = 3;  // first result column, after size, count and type
    std::string redop;
    if (words.size() > first && !number_of<double>(words[first])) redop = words[first++];
    if (has_root_) ++first;
    if (words.size() < first + kResultColumns) {
      fail("the row ends after {} of {} columns; was the log cut off?", words.size(),
           first + kResultColumns);
    }
    const double size = result("size", words[0]);
    const double us = result("time", words[first]);
    const std::string& wrong = words[first + 3];
    if (counts_wrong_ && wrong != "N/A" && result("#wrong", wrong) > 0) {
      fail("#wrong is {} at size {}; the log is refused, because the results of the run are wrong",
           wrong, words[0]);
    }
    const bool reduces = !redop.empty() && redop != "none";
    const Collective collective = reduces ? Collective::kAllReduce : Collective::kAllToAll;
    if (size == 0) return;
    if (!(us > 0)) fail("time is {} at size {}, must be above 0", words[first], words[0]);
    if (!log_.rows.empty() && size <= log_.rows.back().first) {
      fail(
          "size {} is not above that of the row before, {:.0f}; use the log of one sweep with one "
          "type",
          words[0], log_.rows.back().first);
    }
    log_.collective = collective;
    log_.rows.emplace_back(size, us * kNsPerUs);
  }

  const std::string& name_;
  NcclLog log_;
  int64_t line_ = 0;
  bool has_root_ = false, counts_wrong_ = false, ended_ = false;
  std::string program_;
  std::map<std::string, int64_t> ranks_in_group_;
  std::string group_of_rank_0_;
  int64_t threads_times_gpus_ = 0;
};

}  // namespace

NcclLog parse_nccl_log(const std::string& text, const std::string& name) {
  Parser parser(name);
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) parser.line(line);
  return parser.finish();
}

}  // namespace moe
