#include "engine/routing/trace.h"

#include <algorithm>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/fnv.h"
#include "engine/base/index.h"
#include "engine/routing/popularity.h"

namespace moe {
namespace {

constexpr uint64_t kShuffleSeed = 1;  // of the random order of tokens in a trace with only counts
// The most choices of a step and layer, over all ranks, that are made from counts.
constexpr int64_t kMostMade = int64_t{1} << 27;
constexpr int64_t kHighestBlock = 1'000'000;
// A trace made from a file of another tool may have up to kRoom counts and choices, or kRoomForEach
// per number in the file if that is more. The trace is larger than the file because all ranks get
// as many tokens as the rank with the most, and every expert has a count.
constexpr double kRoom = 1 << 22, kRoomForEach = 64;

/// Returns the step and layer of a record, and the rank, as text for errors.
std::string place(const Trace& t, int64_t record, int64_t rank) {
  return fmt::format("step {}, layer {}, rank {}", record / t.layers, record % t.layers, rank);
}

void check_sizes(const Trace& t, const std::string& source) {
  const auto check = [&](const char* name, int64_t value, int64_t lo, int64_t hi) {
    if (value >= lo && value <= hi) return;
    throw user_error("{}: {} = {} is not allowed; give {} to {}", source, name, value, lo, hi);
  };
  check("steps", t.steps, 1, 1'000'000'000);
  check("layers", t.layers, 1, 1'000'000);
  check("ranks", t.ranks, 1, 1'000'000);
  check("tokens", t.tokens, 0, 1'000'000'000);
  check("experts", t.experts, 1, kNoExpert);
  check("k", t.k, 1, t.experts);
}

/// Adds the choices of one rank in a record to `counts`. Throws UserError for an expert that does
/// not exist or that a token chose twice. chosen: for each expert the last choice counted, or -1.
void count(const Trace& t, int64_t record, int64_t rank, std::span<uint32_t> counts,
           std::vector<int64_t>& chosen, const std::string& source) {
  const int64_t first = (record * t.ranks + rank) * t.tokens * t.k;
  for (int64_t i = 0; i < t.tokens * t.k; ++i) {
    const uint16_t e = t.choices[index(first + i)];
    if (e == kNoExpert) continue;
    if (e >= t.experts) {
      throw user_error("{}: {}, token {}, choice {}: expert {} is not allowed; give 0 to {}",
                       source, place(t, record, rank), i / t.k, i % t.k, e, t.experts - 1);
    }
    if (std::exchange(chosen[e], first + i) >= first + i / t.k * t.k) {
      throw user_error("{}: {}, token {}: expert {} is chosen twice", source,
                       place(t, record, rank), i / t.k, e);
    }
    ++counts[e];
  }
}

/// Throws UserError unless the counts of a rank can be sums of k different choices per token.
void check_counts(const Trace& t, int64_t record, int64_t rank, std::span<const uint32_t> counts,
                  const std::string& source) {
  int64_t sum = 0;
  for (const uint32_t n : counts) sum += n;
  if (sum % t.k != 0 || sum > t.tokens * t.k) {
    throw user_error(
        "{}: {}: the counts sum to {} choices, allowed: k = {} for each of at most {} tokens",
        source, place(t, record, rank), sum, t.k, t.tokens);
  }
  for (size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] <= sum / t.k) continue;
    throw user_error(
        "{}: {}: expert {} is chosen {} times by {} tokens; allowed: at most once per token",
        source, place(t, record, rank), e, counts[e], sum / t.k);
  }
}

std::span<uint32_t> counts_of(Trace& t, int64_t record, int64_t rank) {
  return std::span(t.counts).subspan(index((record * t.ranks + rank) * t.experts),
                                     index(t.experts));
}
std::span<const uint32_t> counts_of(const Trace& t, int64_t record, int64_t rank) {
  return std::span(t.counts).subspan(index((record * t.ranks + rank) * t.experts),
                                     index(t.experts));
}

constexpr std::string_view kMagic = "MOETRACE";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 8 + 4 + 4 + 6 * 8;

void put(std::string& out, uint64_t value, int bytes) {
  char text[sizeof value];
  for (int b = 0; b < bytes; ++b) text[b] = static_cast<char>(value >> (8 * b));
  out.append(text, static_cast<size_t>(bytes));
}

/// Reads little-endian numbers one after the other. Requires: `bytes` has them.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  uint64_t next(int bytes) {
    uint64_t value = 0;
    for (int b = 0; b < bytes; ++b, ++at_) {
      value |= uint64_t{static_cast<uint8_t>(bytes_[at_])} << (8 * b);
    }
    return value;
  }

 private:
  std::string_view bytes_;
  size_t at_ = 0;
};

int choice_bytes(const Trace& t) {
  if (t.choices.empty() && t.tokens > 0) return 0;
  return t.experts <= 255 ? 1 : 2;
}

/// Size of the whole file in bytes; a double, since sizes in a damaged header may be huge.
double file_bytes(const Trace& t, int bytes_a_choice) {
  const double records = static_cast<double>(t.steps) * static_cast<double>(t.layers);
  const double per_rank = 4.0 * static_cast<double>(t.experts) +
                          static_cast<double>(bytes_a_choice) * static_cast<double>(t.tokens) *
                              static_cast<double>(t.k);
  return static_cast<double>(kHeaderBytes) + 4.0 * static_cast<double>(t.layers) + 8 +
         records * (4 + static_cast<double>(t.ranks) * per_rank);
}

void read_record(Trace& t, int64_t record, int bytes_a_choice, Reader& in,
                 const std::string& source) {
  const auto number = static_cast<int64_t>(in.next(4));
  if (number != record) {
    throw user_error("{}: record {} (step {}, layer {}) is numbered {}: the content is mixed up",
                     source, record, record / t.layers, record % t.layers, number);
  }
  for (int64_t i = 0; i < t.ranks * t.experts; ++i) {
    t.counts.push_back(static_cast<uint32_t>(in.next(4)));
  }
  if (bytes_a_choice == 0) return;
  const uint64_t none = bytes_a_choice == 1 ? 0xFF : kNoExpert;
  for (int64_t i = 0; i < t.ranks * t.tokens * t.k; ++i) {
    const uint64_t e = in.next(bytes_a_choice);
    t.choices.push_back(e == none ? kNoExpert : static_cast<uint16_t>(e));
  }
}

void check_same_counts(const Trace& t, const std::vector<uint32_t>& read,
                       const std::string& source) {
  const auto at = std::mismatch(read.begin(), read.end(), t.counts.begin());
  if (at.first == read.end()) return;
  const int64_t i = at.first - read.begin();
  throw user_error(
      "{}: {}: the count of expert {} is {}, but {} choices name it: the content is mixed up",
      source, place(t, i / (t.ranks * t.experts), i / t.experts % t.ranks), i % t.experts,
      *at.first, *at.second);
}

/// Makes the choices of a record [ranks * tokens, k] from counts only.
std::vector<uint16_t> made_choices(const Trace& t, const std::string& name, int64_t record) {
  if (t.ranks * t.tokens > kMostMade / t.k) {
    throw user_error(
        "{}: the trace has only counts, of {} ranks of {} tokens; at most {} choices (k = {}) can "
        "be made from counts",
        name, t.ranks, t.tokens, kMostMade, t.k);
  }
  std::vector<uint16_t> choices(index(t.ranks * t.tokens * t.k), kNoExpert);
  for (int64_t rank = 0; rank < t.ranks; ++rank) {
    // Lists each expert as often as it is chosen: entries that are n apart (n tokens) differ.
    std::vector<uint16_t> row;
    const std::span<const uint32_t> counts = counts_of(t, record, rank);
    for (size_t e = 0; e < counts.size(); ++e) row.insert(row.end(), counts[e], uint16_t(e));
    const int64_t n = static_cast<int64_t>(row.size()) / t.k;
    const uint32_t key = stream_key(kShuffleSeed, RandomStream::kTokens, {record, rank});
    const std::vector<int32_t> order = permutation(n, key);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < t.k; ++j) {
        choices[index((rank * t.tokens + i) * t.k + j)] = row[index(j * n + order[index(i)])];
      }
    }
  }
  return choices;
}

/// Returns the number of the record that answers a query; throws UserError if the trace has none.
int64_t record_of(const Trace& t, const std::string& name, bool cycle, const RoutingQuery& q) {
  const auto refuse = [&](const char* what, int64_t has, int64_t asked) {
    throw user_error("{}: the trace has {} {}, but {} are requested", name, has, what, asked);
  };
  if (q.experts != t.experts) refuse("experts", t.experts, q.experts);
  if (q.k != t.k) refuse("choices per token (k)", t.k, q.k);
  if (q.layer >= t.layers) refuse("MoE layers", t.layers, q.layer + 1);
  if (q.ranks * q.tokens != t.ranks * t.tokens) {
    throw user_error(
        "{}: the trace has {} ranks of {} tokens, but {} ranks of {} are requested; the products "
        "must be equal",
        name, t.ranks, t.tokens, q.ranks, q.tokens);
  }
  if (q.step >= t.steps && !cycle) {
    throw user_error(
        "{}: the trace has {} steps, but step {} is requested; cycle = true starts again at the "
        "first",
        name, t.steps, q.step + 1);
  }
  return q.step % t.steps * t.layers + q.layer;
}

/// Returns the choices of a record [ranks * tokens, k]. `made` keeps those made from counts.
std::span<const uint16_t> choices_of(const Trace& t, const std::string& name, int64_t record,
                                     std::vector<uint16_t>& made) {
  const size_t n = index(t.ranks * t.tokens * t.k);
  if (!t.choices.empty()) return std::span(t.choices).subspan(index(record) * n, n);
  made = made_choices(t, name, record);
  return made;
}

void replay(const Trace& t, const std::string& name, int64_t record, const RoutingQuery& q,
            int64_t rank, std::span<int32_t> choices) {
  std::vector<uint16_t> made;
  const auto all = choices_of(t, name, record, made).subspan(index(rank * q.tokens * q.k));
  for (size_t i = 0; i < choices.size(); ++i) choices[i] = all[i] == kNoExpert ? -1 : all[i];
}

ExpertCounts loads_of(const Trace& t, const std::string& name, int64_t record,
                      const RoutingQuery& q) {
  ExpertCounts loads(q.ranks, q.experts);
  if (q.ranks == t.ranks) {
    for (int64_t r = 0; r < q.ranks; ++r) {
      const std::span<const uint32_t> counts = counts_of(t, record, r);
      std::copy(counts.begin(), counts.end(), &loads.at(r, 0));
    }
    return loads;
  }
  std::vector<uint16_t> made;
  const std::span<const uint16_t> all = choices_of(t, name, record, made);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] != kNoExpert) ++loads.at(static_cast<int64_t>(i) / (q.tokens * q.k), all[i]);
  }
  return loads;
}

}  // namespace

void finish_trace(Trace& trace, const std::string& source) {
  check_sizes(trace, source);
  MOE_CHECK(trace.blocks.size() == index(trace.layers),
            "{}: the trace has {} blocks and {} layers, but must have one block per layer", source,
            trace.blocks.size(), trace.layers);
  const bool counted = trace.choices.empty() && trace.tokens > 0;
  if (!counted)
    trace.counts.assign(index(trace.steps * trace.layers * trace.ranks * trace.experts), 0);
  std::vector<int64_t> chosen(index(trace.experts), -1);
  for (int64_t record = 0; record < trace.steps * trace.layers; ++record) {
    for (int64_t rank = 0; rank < trace.ranks; ++rank) {
      const std::span<uint32_t> counts = counts_of(trace, record, rank);
      if (counted) {
        check_counts(trace, record, rank, counts, source);
      } else {
        count(trace, record, rank, counts, chosen, source);
      }
    }
  }
}

void check_room(const Trace& t, int64_t known, const std::string& source) {
  check_sizes(t, source);
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  const double room = real(t.steps) * real(t.layers) * real(t.ranks) *
                      (real(t.experts) + real(t.tokens) * real(t.k));
  if (room <= std::max(kRoom, kRoomForEach * real(known))) return;
  throw user_error(
      "{}: {} steps, {} layers, {} ranks of up to {} tokens and {} experts need {:.0f} counts and "
      "choices, but the file has {} numbers; allowed: {:.0f}, or {:.0f} per number if that is more",
      source, t.steps, t.layers, t.ranks, t.tokens, t.experts, room, known, kRoom, kRoomForEach);
}

std::string trace_bytes(const Trace& t) {
  const int bytes_a_choice = choice_bytes(t);
  std::string out(kMagic);
  out.reserve(static_cast<size_t>(file_bytes(t, bytes_a_choice)));
  put(out, kVersion, 4);
  put(out, static_cast<uint64_t>(bytes_a_choice), 4);
  for (const int64_t size : {t.steps, t.layers, t.ranks, t.tokens, t.experts, t.k}) {
    put(out, static_cast<uint64_t>(size), 8);
  }
  for (const int32_t block : t.blocks) put(out, static_cast<uint32_t>(block), 4);
  const int64_t num_counts = t.ranks * t.experts;
  const int64_t num_choices = bytes_a_choice == 0 ? 0 : t.ranks * t.tokens * t.k;
  for (int64_t record = 0; record < t.steps * t.layers; ++record) {
    put(out, static_cast<uint64_t>(record), 4);
    for (int64_t i = 0; i < num_counts; ++i) put(out, t.counts[index(record * num_counts + i)], 4);
    for (int64_t i = 0; i < num_choices; ++i) {
      put(out, t.choices[index(record * num_choices + i)], bytes_a_choice);
    }
  }
  put(out, fnv1a(kFnvStart, out.data(), out.size()), 8);
  return out;
}

Trace read_trace(std::string_view bytes, const std::string& source) {
  if (bytes.substr(0, kMagic.size()) != kMagic || bytes.size() < kHeaderBytes + 8) {
    throw user_error("{}: the file is not a routing trace, or its header is truncated", source);
  }
  Reader in(bytes.substr(kMagic.size()));
  const uint64_t version = in.next(4), bytes_a_choice = in.next(4);
  if (version != kVersion) {
    throw user_error("{}: the file has version {}, but this program reads version {}", source,
                     version, kVersion);
  }
  if (bytes_a_choice > 2) {
    throw user_error("{}: the file has {} bytes per choice, but must have 0, 1 or 2", source,
                     bytes_a_choice);
  }
  Trace t;
  for (int64_t* size : {&t.steps, &t.layers, &t.ranks, &t.tokens, &t.experts, &t.k}) {
    *size = static_cast<int64_t>(in.next(8));
  }
  check_sizes(t, source);
  const double expected = file_bytes(t, static_cast<int>(bytes_a_choice));
  if (expected != static_cast<double>(bytes.size())) {
    throw user_error("{}: is {}: it has {} bytes, but its header states {:.0f}", source,
                     static_cast<double>(bytes.size()) < expected ? "truncated" : "too long",
                     bytes.size(), expected);
  }
  for (int64_t l = 0; l < t.layers; ++l) t.blocks.push_back(static_cast<int32_t>(in.next(4)));
  for (int64_t record = 0; record < t.steps * t.layers; ++record) {
    read_record(t, record, static_cast<int>(bytes_a_choice), in, source);
  }
  const std::vector<uint32_t> read = t.counts;
  finish_trace(t, source);
  check_same_counts(t, read, source);
  if (in.next(8) != fnv1a(kFnvStart, bytes.data(), bytes.size() - 8)) {
    throw user_error("{}: its checksum does not match its content", source);
  }
  for (size_t l = 0; l < t.blocks.size(); ++l) {
    const int32_t least = l == 0 ? 0 : t.blocks[l - 1] + 1;
    if (t.blocks[l] >= least && t.blocks[l] <= kHighestBlock) continue;
    throw user_error("{}: layer {} is block {}; allowed: {} to {}", source, l, t.blocks[l], least,
                     kHighestBlock);
  }
  return t;
}

RoutingModel routing_of(std::shared_ptr<const Trace> trace, const std::string& name, bool cycle) {
  MOE_CHECK(trace != nullptr, "routing model {}: its trace is null, but must be set", name);
  return {name,
          [=](const RoutingQuery& q, int64_t rank, std::span<int32_t> choices) {
            replay(*trace, name, record_of(*trace, name, cycle, q), q, rank, choices);
          },
          [=](const RoutingQuery& q) {
            return loads_of(*trace, name, record_of(*trace, name, cycle, q), q);
          }};
}

}  // namespace moe
