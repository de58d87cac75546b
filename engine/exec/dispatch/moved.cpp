#include "engine/exec/dispatch/moved.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>

#include "engine/base/fnv.h"
#include "engine/base/threads.h"
#include "kernels/bf16.h"
#include "kernels/fp8.h"

namespace moe::dispatch {

using kernels::kFp8Block;

Mover::Mover(const Route& route, const Exchange& exchange, const Choices& choices,
             Communicator& comm)
    : route_(route),
      exchange_(exchange),
      choices_(choices),
      walk_(route_, exchange_, choices_),
      comm_(comm),
      place_(static_cast<size_t>(choices.tokens() * walk_.slots())) {
  for (auto& sent : sent_) sent.resize(static_cast<size_t>(exchange.ranks));
}

int64_t& Mover::at(const Row& row, int32_t slot) {
  return place_[static_cast<size_t>(row.token * walk_.slots() + slot)];
}

void Mover::encode(Way way, const float* values, uint8_t* row) const {
  const int64_t n = exchange_.hidden;
  switch (route_.wire(way)) {
    case Wire::kFp8: {
      std::vector<float> scales(static_cast<size_t>(n / kFp8Block));
      kernels::to_fp8_blocks(values, n, row, scales.data());
      std::memcpy(row + n, scales.data(), scales.size() * sizeof(float));
      break;
    }
    case Wire::kBf16:
      for (int64_t i = 0; i < n; ++i) {
        const kernels::Bf16 v = kernels::to_bf16(values[i]);
        std::memcpy(row + 2 * i, &v, 2);
      }
      break;
    case Wire::kFp32:
      std::memcpy(row, values, static_cast<size_t>(n) * sizeof(float));
  }
}

void Mover::decode(Way way, const uint8_t* row, float* values) const {
  const int64_t n = exchange_.hidden;
  if (route_.wire(way) == Wire::kFp32) {
    std::memcpy(values, row, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    kernels::Bf16 v{};
    if (route_.wire(way) == Wire::kBf16) {
      std::memcpy(&v, row + 2 * i, 2);
    } else {
      float scale = 0;
      std::memcpy(&scale, row + n + i / kFp8Block * 4, sizeof(float));
      v = kernels::to_bf16(kernels::from_e4m3(row[i]) * scale);
    }
    values[i] = to_float(v);
  }
}

void Mover::exchange(Way way, int64_t hop, const std::function<void(const Row&, uint8_t*)>& make,
                     const std::function<void(const Row&, const uint8_t*)>& take) {
  const int64_t me = comm_.rank(), size = route_.row_bytes(way);
  const auto ranks = static_cast<size_t>(exchange_.ranks);
  Pieces pieces;
  pieces.send_bytes.resize(ranks), pieces.receive_bytes.resize(ranks);
  walk_.rows(way, hop, [&](const Row& row) {
    if (row.from == me) pieces.send_bytes[static_cast<size_t>(row.to)] += size;
    if (row.to == me) pieces.receive_bytes[static_cast<size_t>(row.from)] += size;
  });
  const auto offsets = [&](const std::vector<moe::Bytes>& bytes) {
    std::vector<moe::Bytes> first(ranks);
    std::exclusive_scan(bytes.begin(), bytes.end(), first.begin(), moe::Bytes{0});
    return first;
  };
  pieces.send_offset = offsets(pieces.send_bytes);
  pieces.receive_offset = offsets(pieces.receive_bytes);
  const auto total = [](const std::vector<moe::Bytes>& bytes) {
    return static_cast<size_t>(std::accumulate(bytes.begin(), bytes.end(), moe::Bytes{0}));
  };
  Bytes send(total(pieces.send_bytes)), receive(total(pieces.receive_bytes));
  std::vector<moe::Bytes> next = pieces.send_offset;
  walk_.rows(way, hop, [&](const Row& row) {
    if (row.from != me) return;
    if (row.token >= 0) make(row, send.data() + next[static_cast<size_t>(row.to)]);
    next[static_cast<size_t>(row.to)] += size;
  });
  for (size_t to = 0; to < ranks; ++to) {
    if (static_cast<int64_t>(to) == me) continue;
    sent_[static_cast<size_t>(way)][to] += pieces.send_bytes[to];
  }
  comm_.all_to_all(name_of(way), send.data(), receive.data(), pieces);
  next = pieces.receive_offset;
  walk_.rows(way, hop, [&](const Row& row) {
    if (row.to != me) return;
    if (row.token >= 0) take(row, receive.data() + next[static_cast<size_t>(row.from)]);
    next[static_cast<size_t>(row.from)] += size;
  });
}

void Mover::dispatch(const Values& x,
                     const std::function<void(int64_t, int32_t, const float*)>& to) {
  const Way way = Way::kDispatch;
  const int64_t me = comm_.rank(), size = route_.row_bytes(way), n = exchange_.hidden;
  const int64_t first = choices_.first[static_cast<size_t>(me)];
  Bytes held;
  for (int64_t hop = 0; hop < walk_.hops(way); ++hop) {
    Bytes came;
    exchange(
        way, hop,
        [&](const Row& row, uint8_t* out) {
          if (hop == 0) {
            encode(way, x.data() + (row.token - first) * n, out);
          } else {
            std::memcpy(out, held.data() + at(row, row.slots[0]), static_cast<size_t>(size));
          }
        },
        [&](const Row& row, const uint8_t* in) {
          for (const int32_t slot : row.slots) at(row, slot) = static_cast<int64_t>(came.size());
          came.insert(came.end(), in, in + size);
        });
    held = std::move(came);
  }
  Values values(static_cast<size_t>(n));
  // The first hop back leaves from where slots are computed.
  walk_.rows(Way::kCombine, 0, [&](const Row& row) {
    if (row.from != me || row.token < 0) return;
    for (const int32_t slot : row.slots) {
      decode(way, held.data() + at(row, slot), values.data());
      to(row.token, slot, values.data());
    }
  });
}

void Mover::add_rows(const Row& row, const Values& held, float* sum) {
  std::vector<int64_t> added;
  for (const int32_t slot : row.slots) {
    if (std::find(added.begin(), added.end(), at(row, slot)) != added.end()) continue;
    added.push_back(at(row, slot));
    for (int64_t i = 0; i < exchange_.hidden; ++i) {
      sum[i] += held[static_cast<size_t>(added.back() + i)];
    }
  }
}

Values Mover::combine(const std::function<void(int64_t, int32_t, float*)>& from) {
  const Way way = Way::kCombine;
  const auto n = static_cast<size_t>(exchange_.hidden);
  const int64_t me = comm_.rank(), first = choices_.first[static_cast<size_t>(me)];
  const auto tokens = static_cast<size_t>(choices_.first[static_cast<size_t>(me) + 1] - first);
  Values held;
  std::vector<std::vector<int32_t>> slots(tokens);  // that the last hop brings to each token
  for (int64_t hop = 0; hop < walk_.hops(way); ++hop) {
    Values came;
    exchange(
        way, hop,
        [&](const Row& row, uint8_t* out) {
          Values sum(n), one(n);
          for (const int32_t slot : row.slots) {
            if (hop > 0) break;
            from(row.token, slot, one.data());
            std::transform(sum.begin(), sum.end(), one.begin(), sum.begin(), std::plus<>());
          }
          if (hop > 0) add_rows(row, held, sum.data());
          encode(way, sum.data(), out);
        },
        [&](const Row& row, const uint8_t* in) {
          for (const int32_t slot : row.slots) at(row, slot) = static_cast<int64_t>(came.size());
          came.resize(came.size() + n);
          decode(way, in, came.data() + came.size() - n);
          if (hop + 1 < walk_.hops(way)) return;
          auto& all = slots[static_cast<size_t>(row.token - first)];
          all.insert(all.end(), row.slots.begin(), row.slots.end());
        });
    held = std::move(came);
  }
  Values out(tokens * n);
  Bytes wire(static_cast<size_t>(route_.row_bytes(way)));
  for (size_t t = 0; t < tokens; ++t) {
    add_rows({me, me, me, first + static_cast<int64_t>(t), slots[t]}, held, out.data() + t * n);
    encode(way, out.data() + t * n, wire.data());
    decode(way, wire.data(), out.data() + t * n);
  }
  return out;
}

namespace {

/// Runs body(rank, its communicator) on a thread per rank; throws what the first to fail threw.
void on_ranks(int64_t ranks, const std::function<void(int64_t, Communicator&)>& body) {
  InProcessWorld world(ranks, 1, {});
  std::mutex mutex;
  std::exception_ptr failed;
  {
    const ThreadGroup threads(
        ranks, [](int64_t rank) { return fmt::format("rank {} of a dispatch", rank); },
        [&](int64_t rank) {
          try {
            body(rank, world.comm(rank, 0));
          } catch (const std::exception& e) {
            const std::scoped_lock lock(mutex);
            if (!failed) failed = std::current_exception();
            world.abort(e.what());
          }
        });
  }
  if (failed) std::rethrow_exception(failed);
}

}  // namespace

Moved move_exact(const Route& route, const Exchange& x, const Choices& choices) {
  constexpr std::array<float, 7> kTable = {-4, -2, -1, 0, 1, 2, 4};
  const int64_t n = x.hidden;
  std::vector<Values> outputs(static_cast<size_t>(x.ranks));
  Moved moved;
  for (auto& sent : moved.sent) sent.resize(static_cast<size_t>(x.ranks * x.ranks));
  on_ranks(x.ranks, [&](int64_t rank, Communicator& comm) {
    const int64_t first = choices.first[static_cast<size_t>(rank)];
    const int64_t tokens = choices.first[static_cast<size_t>(rank) + 1] - first;
    Values in(static_cast<size_t>(tokens * n));
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < n; ++h) {
        in[static_cast<size_t>(t * n + h)] =
            kTable[static_cast<size_t>((3 * rank + 5 * t + 7 * (h / 7) + 11 * h) % 7)];
      }
    }
    Mover mover(route, x, choices, comm);
    std::map<std::pair<int64_t, int32_t>, Values> outs;
    mover.dispatch(in, [&](int64_t token, int32_t slot, const float* values) {
      const auto of = choices.of(token, x.topk);
      float factor = 0;  // of all choices that the slot stands for
      for (int32_t i = 0; i < x.topk; ++i) {
        const int32_t e = of[static_cast<size_t>(i)];
        const bool here = e >= 0 && (route.to_all ? x.rank_of(e) == slot : i == slot);
        if (here) factor += static_cast<float>(e % 3 + 1);
      }
      Values& out = outs[{token, slot}];
      for (int64_t h = 0; h < n; ++h) out.push_back(factor * values[h]);
    });
    outputs[static_cast<size_t>(rank)] =
        mover.combine([&](int64_t token, int32_t slot, float* values) {
          const Values& out = outs.at({token, slot});
          std::copy(out.begin(), out.end(), values);
        });
    for (size_t way = 0; way < 2; ++way) {
      const auto& sent = mover.sent(static_cast<Way>(way));
      std::copy(sent.begin(), sent.end(), moved.sent[way].begin() + rank * x.ranks);
    }
  });
  moved.fnv1a = kFnvStart;
  for (const Values& values : outputs) {
    for (const float v : values) {
      const auto whole = static_cast<int32_t>(v);
      moved.fnv1a = fnv1a(moved.fnv1a, &whole, sizeof(whole));
    }
  }
  return moved;
}

}  // namespace moe::dispatch
